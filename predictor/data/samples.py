"""Samples: what was run, where, how, and how long a batch took.

A query is a sample without figures. The cost of the work comes from the model's cost per item, or, for generation, from
the shape of the decoder.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache, cached_property, lru_cache
from importlib.resources import files
from operator import attrgetter
from typing import Any

from accel_platform.hardware.catalog import DeviceSpec, find_spec
from accel_platform.hardware.device_spec import device_spec, peak_ops_per_s
from accel_platform.workloads.kv_cache import Decoder
from predictor.data.evidence import KnownDevice, Target
from predictor.data.number_widths import HALF_PRECISION_BYTES, UNSTATED, activation_bytes_per_number, weight_bytes
from predictor.data.roofline import ALL_OPERATORS, LAYER_OUTPUTS, roofline_terms
from predictor.data.traced_models import ItemCost

IMAGES, TOKENS, FIXED_SIZE = "images of a stated size", "tokens", "inputs of one unstated size"


@dataclass(frozen=True)
class WorkloadCost:
    """Work of one batch on a device."""

    parameters: float
    flops: float
    activation_bytes: float
    """Activations written in all passes, counted as `Sample.counted` says; keys and values read in generation."""
    weight_bytes: float
    """Weights read: once, or once per generated token or denoising step."""
    steps: float
    """Number of passes, each of which launches all kernels; in generation layers times output tokens."""
    held_bytes: float
    """Memory besides the weights in bytes: all activations of one pass, or the key-value cache at the end."""


@dataclass(frozen=True, eq=False)
class Sample:
    """One measured or queried figure; `latency_ms` is NaN for a query.

    Samples are equal, and one dictionary key, if all fields are equal; a NaN equals a NaN.
    """

    model: str
    family: str
    mode: str
    batch_size: int
    size: float
    """Pixels along an edge, or input tokens; NaN for inputs of a fixed, unstated size."""
    work: WorkloadCost
    hardware: str
    kind: str
    """Kind of silicon: gpu, cpu or npu."""
    device: str
    devices: int
    peak_flops: float
    """FLOPs per second in the precision, of all devices together; NaN where unknown."""
    bandwidth: float
    """Bytes per second, of all devices together; NaN where unknown."""
    memory_mib: float
    """Memory of all devices together; NaN where unknown."""
    backend: str
    precision: str
    cache_bytes: float = math.nan
    """Last cache of all devices together; NaN where unknown."""
    layout: str = ""
    compiler: str = ""
    version: float = math.nan
    counted: str = LAYER_OUTPUTS
    reads: str = FIXED_SIZE
    vendor: str = ""
    """Maker of the device, whose devices share their software. Empty where unknown."""
    own: bool = False
    """True if the log's users measured or imported it, False if it comes from a knowledge pack."""
    latency_ms: float = math.nan
    memory_peak_mib: float = math.nan

    def __eq__(self, other: object) -> bool:
        return self.key() == other.key() if isinstance(other, Sample) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.key())

    def key(self) -> tuple[Any, ...]:
        """Return all fields, with None in place of NaN, which is unequal to itself."""
        return _with_none(field_values(self))

    def configuration(self) -> tuple[Any, ...]:
        """Return a key that all measurements of one configuration share, of the log's users and of packs."""
        return _with_none(_configuration_values(self))

    @cached_property
    def roofline(self) -> tuple[float, float, float, float]:
        """`roofline_terms`, cached because every model that is fitted to the sample needs them."""
        return roofline_terms(self)

    @cached_property
    def costs(self) -> tuple[float, ...]:
        """Parameters, FLOPs, activation bytes, size, batch, steps and devices; cached like `roofline`."""
        work = self.work
        flops = max(work.flops, 1.0)
        return work.parameters, flops, work.activation_bytes, self.size, self.batch_size, work.steps, self.devices

    @cached_property
    def setting(self) -> str:
        """Name of what one benchmark campaign keeps fixed: devices, runtime and version."""
        return f"{self.devices} {self.device} {self.backend} {self.layout} {self.compiler} {self.version}"

    @cached_property
    def workload_key(self) -> tuple[str, str, int, float | None]:
        """Key of the workload, equal on every device."""
        size = None if math.isnan(self.size) else self.size
        return self.model, self.mode, self.batch_size if self.mode == "generation" else 0, size


_FIELDS = tuple(field.name for field in fields(Sample))
field_values = attrgetter(*_FIELDS)
"""All fields of a sample, in order."""
_configuration_values = attrgetter(*(name for name in _FIELDS if name not in ("own", "latency_ms", "memory_peak_mib")))


def _with_none(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the values with None in place of NaN."""
    return tuple([None if isinstance(v, float) and math.isnan(v) else v for v in values])


@dataclass(frozen=True)
class Workload:
    """Work to run: batches of a model in one mode, at one size and precision."""

    model: str
    family: str
    mode: str
    batch_size: int
    size: float | None
    """Input tokens of an item; None for images and other inputs of a fixed size."""
    precision: str | None
    """Precision of the weights; None where it is not stated."""
    cost: ItemCost | None = None
    """Cost of one item at this size. None where it is unknown, and in generation."""
    output_tokens: int | None = None
    """Tokens that each item generates. Only generation needs them, and the decoder."""
    decoder: Decoder | None = None
    """Shape of the model's decoder; None for that of `decoders.csv`."""


@dataclass(frozen=True)
class Setup:
    """Devices and software that run a workload. Texts are empty, and the version is NaN, where they are not stated."""

    device: DeviceSpec
    """Spec of one device: published (`find_spec`), observed by its host (`device_spec_for`) or the user's own. Its
    figures may be None."""
    hardware: str
    backend: str
    devices: int = 1
    layout: str = ""
    compiler: str = ""
    version: float = math.nan


def make_sample(workload: Workload, setup: Setup) -> Sample | str:
    """Return the sample of a workload on a setup, without figures, or the reason why it cannot be made."""
    work = _batch_cost(workload)
    if isinstance(work, str):
        return work
    cost = None if workload.mode == "generation" else workload.cost
    pixels = None if cost is None else cost.image_size
    edge = workload.size or pixels
    precision, devices = workload.precision or UNSTATED, setup.devices
    device = setup.device.used_by(setup.backend) if devices == 1 else setup.device
    return Sample(
        model=workload.model,
        family=workload.family,
        mode=workload.mode,
        batch_size=workload.batch_size,
        size=math.nan if edge is None else float(edge),
        work=work,
        hardware=setup.hardware,
        kind=device.kind,
        device=device.name,
        devices=devices,
        peak_flops=_scale_or_nan(peak_ops_per_s(device, _computed_in(precision, workload.mode)), devices),
        bandwidth=_scale_or_nan(device.bandwidth_gb_s, 1e9 * devices),
        memory_mib=_scale_or_nan(device.memory_gib, 1024 * devices),
        cache_bytes=_scale_or_nan(device.cache_mib, 2**20 * devices),
        backend=setup.backend,
        precision=precision,
        layout=setup.layout,
        compiler=setup.compiler,
        version=setup.version,
        counted=LAYER_OUTPUTS if cost is None or cost.layer_output_bytes else ALL_OPERATORS,
        reads=FIXED_SIZE if edge is None else TOKENS if pixels is None else IMAGES,
        vendor=device.vendor or "",
    )


def device_spec_for(target: Target, devices: Mapping[Target, KnownDevice]) -> DeviceSpec:
    """Return the spec of a target's device, completed by what its host observed."""
    name = target.device_id or target.device or target.hardware
    device = devices.get(target)
    if device is None:
        return device_spec(target.device, name, target.hardware)
    return device_spec(
        target.device,
        name,
        target.hardware,
        cores=device.cores,
        clock_max_mhz=device.clock_max_mhz,
        vector_bits=device.vector_bits,
        memory_mib=device.memory_mib,
    )


def parse_device_name(name: str) -> tuple[int, DeviceSpec | None]:
    """Return the number of devices in a name and their spec: four for `4 x Nvidia A100 GPU`, None if unknown."""
    parts = re.match(r"(\d+) x (.+)", name)
    return (int(parts[1]), find_spec(parts[2])) if parts else (1, find_spec(name))


def find_published_decoder(name: str) -> Decoder | None:
    """Return the shape of a published decoder; None if `decoders.csv` does not hold it."""
    slug = re.sub(r"[^a-z0-9.]+", "-", name.lower().rpartition("/")[2])
    return next((decoder for stem, decoder in _published_decoders() if slug.startswith(stem)), None)


def _computed_in(precision: str, mode: str) -> str:
    """Return the precision that sets the peak: an unstated one is float32, or 16 bits for generation."""
    if precision != UNSTATED:
        return precision
    return "float16" if mode == "generation" else "float32"


def finite_float(value: Any) -> float | None:
    """Return a file's value as a finite float; None for any other value."""
    try:
        figure = float(value)
    except (TypeError, ValueError):
        return None
    return figure if math.isfinite(figure) else None


def _batch_cost(workload: Workload) -> WorkloadCost | str:
    """Return the work of one batch, or the reason why it is unknown."""
    batch_size, precision = workload.batch_size, workload.precision or UNSTATED
    if workload.mode != "generation":
        return _forward_cost(workload.cost, batch_size, precision)
    decoder = workload.decoder or find_published_decoder(workload.model)
    return _generation_cost(decoder, workload.size, workload.output_tokens, batch_size, precision)


@lru_cache(maxsize=256)
def _forward_cost(cost: ItemCost | None, batch: int, precision: str) -> WorkloadCost | str:
    if cost is None or cost.flops <= 0 or cost.parameters <= 0:
        return "cost of the model, or the length it was asked for at, unknown"
    written = cost.layer_output_bytes or cost.activation_bytes
    if not written:
        return "the activations of the model are unknown"
    activation_bytes = written * batch * activation_bytes_per_number(precision) / 4
    return WorkloadCost(
        parameters=cost.parameters,
        flops=cost.flops * batch,
        activation_bytes=activation_bytes,
        weight_bytes=cost.steps * cost.parameters * weight_bytes(precision, "inference"),
        steps=1.0,
        held_bytes=activation_bytes / cost.steps,
    )


def _generation_cost(
    model: Decoder | None, input_tokens: float | None, output_tokens: int | None, batch: int, precision: str
) -> WorkloadCost | str:
    """Return the cost of a generation: one pass over the prompt, then one per token that reads weights and cache."""
    if model is None:
        return "it was not made to generate, or the shape of its decoder is unknown"
    if input_tokens is None or output_tokens is None:
        return "how many tokens go in or come out is not stated"
    return WorkloadCost(
        parameters=model.parameters,
        flops=2 * model.active_parameters * batch * (input_tokens + output_tokens),
        activation_bytes=HALF_PRECISION_BYTES * model.moved(input_tokens, output_tokens) * batch * output_tokens,
        weight_bytes=model.read_parameters(batch) * weight_bytes(precision, "generation") * output_tokens,
        steps=output_tokens * model.layers,
        held_bytes=HALF_PRECISION_BYTES * model.held(input_tokens + output_tokens) * batch,
    )


@cache
def _published_decoders() -> tuple[tuple[str, Decoder], ...]:
    text = files(__package__).joinpath("decoders.csv").read_text(encoding="utf-8")
    return tuple(
        (
            row["name"],
            Decoder(
                float(row["parameters_b"]) * 1e9,
                float(row["active_parameters_b"]) * 1e9,
                float(row["layers"]),
                2 * float(row["layers"]) * float(row["kv_heads"]) * float(row["head_dim"]),
            ),
        )
        for row in csv.DictReader(text.splitlines())
    )


def _scale_or_nan(value: float | None, factor: float) -> float:
    return math.nan if value is None else value * factor


MAX_SPEED_LIMIT_RATIO = 4.0
"""Speed-limit ratio above which a figure is impossible: 4, because an unstated precision may mean weights of 4 bits, a
quarter of the assumed width."""

_MOST_TURBO = 2.1
"""Largest clock of a processor over the base clock that its published peak is of: 4.7 over 2.3 GHz (Core i7-12700H)."""


def speed_limit_ratio(sample: Sample, latency_ms: float) -> float:
    """Return how many times faster a latency is than the device at full speed; 0 for unknown rates.

    Peaks are published for 16 bits and more, so that smaller weights are held to the bandwidth only.
    """
    peak_flops = sample.peak_flops * (_MOST_TURBO if sample.kind == "cpu" else 1.0)
    compute_s = sample.work.flops / peak_flops if weight_bytes(sample.precision, sample.mode) >= 2 else math.nan
    needs = [seconds for seconds in (compute_s, sample.work.weight_bytes / sample.bandwidth) if not math.isnan(seconds)]
    return 1e3 * max(needs, default=0.0) / latency_ms
