"""A case: what is run, where, how, and how long a batch took, for questions and measurements alike. Nothing is fitted.

What the work costs comes from the model's cost per item, or, where text is generated, from the shape of the decoder.
Which cases there are to learn from is in `casebook`.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from importlib.resources import files
from operator import attrgetter
from typing import Any

from accel_platform.hardware.catalog import DeviceSpec, find_spec
from accel_platform.hardware.device_spec import silicon
from accel_platform.precisions import PRECISIONS
from accel_platform.workloads.kv_cache import Decoder
from predictor.data.evidence import KnownDevice, Target
from predictor.data.traced_models import ItemCost

UNSTATED = "unstated"
LAYER_OUTPUTS, ALL_OPERATORS = "layers", "operators"
"""How a model's activations are counted: what its layers put out, as timm and fvcore count and this platform does, or,
where only that is known, what all operators write, which is two to three times more: the one says little of the other.
"""
IMAGES, TOKENS, FIXED_SIZE = "images of a stated size", "tokens", "inputs of one unstated size"
_HALF_PRECISION_BYTES = 2
"""Bytes of a number of `amp`, of what a decoder keeps of its past, and of a published checkpoint unless stated."""


@dataclass(frozen=True)
class WorkloadCost:
    """What one batch asks of a device."""

    parameters: float
    flops: float
    activation_bytes: float
    """Activations written (one pass), as `Case.counted` says, or keys and values read (generation)."""
    weight_bytes: float
    """Weights read: once, or once per generated token."""
    steps: float
    """Passes through the network, each with its launches."""
    held_bytes: float
    """In memory besides the weights: all activations of a pass, or what is kept of the sequences in the end."""


@dataclass(frozen=True, eq=False)
class Sample:
    """One figure, or one asked for: then `latency_ms` is NaN.

    Cases are equal, and one dictionary key, where all fields are equal; a NaN equals a NaN.
    """

    model: str
    family: str
    mode: str
    batch_size: int
    size: float
    """Pixels along an edge, or tokens in; NaN where inputs have one fixed size that nobody states."""
    work: WorkloadCost
    hardware: str
    kind: str
    """Of silicon: gpu, cpu or npu; knowledge of one device helps with another of its kind."""
    device: str
    devices: int
    peak_flops: float
    """In the precision, of all devices together; NaN where nothing is published or known."""
    bandwidth: float
    """Bytes per second; NaN where nothing is published or known."""
    memory_mib: float
    """What all devices have; NaN where nothing is published or known."""
    backend: str
    precision: str
    layout: str = ""
    compiler: str = ""
    version: float = math.nan
    counted: str = LAYER_OUTPUTS
    reads: str = FIXED_SIZE
    vendor: str = ""
    """Who makes the device: those of one vendor share the software that runs on them. Empty where unknown."""
    latency_ms: float = math.nan
    memory_peak_mib: float = math.nan

    def __eq__(self, other: object) -> bool:
        return self.key() == other.key() if isinstance(other, Sample) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.key())

    def key(self) -> tuple[Any, ...]:
        """Return all fields, None in place of NaN: a NaN is unequal to itself, and its hash is that of the object."""
        return tuple(None if isinstance(v, float) and math.isnan(v) else v for v in _fields_of(self))

    def without_figures(self) -> Sample:
        """Return what was run, where and how: equal for all measurements of one configuration."""
        return replace(self, latency_ms=math.nan, memory_peak_mib=math.nan)

    @property
    def setting(self) -> str:
        """All that one benchmark campaign keeps fixed, as one name."""
        return f"{self.devices} {self.device} {self.backend} {self.layout} {self.compiler} {self.version}"

    @property
    def shape(self) -> tuple[str, str, int, float | None]:
        """Equal for the same work done elsewhere."""
        size = None if math.isnan(self.size) else self.size
        return self.model, self.mode, self.batch_size if self.mode == "generation" else 0, size


_fields_of = attrgetter(*(field.name for field in fields(Sample)))


def make_sample(
    *,
    model: str,
    family: str,
    cost: ItemCost | None,
    mode: str,
    batch_size: int,
    size: float | None,
    precision: str | None,
    device: DeviceSpec,
    hardware: str,
    backend: str,
    devices: int = 1,
    output_tokens: int | None = None,
    decoder: Decoder | None = None,
    layout: str = "",
    compiler: str = "",
    version: float = math.nan,
    latency_ms: float | None = None,
    memory_peak_mib: float | None = None,
) -> Sample | str:
    """The case, or the reason why it cannot be made.

    `cost` is of one item at this size; `size` is tokens in, where there are any; generation needs `output_tokens`
    and the shape of the decoder, which is known of those in `decoders.csv` and otherwise given. `device` is what is
    published of it (`find_spec`), what its host observed (`device_spec_for`), or what users write of their own; its
    figures may be None.
    """
    precision = precision or UNSTATED
    if mode == "generation":
        work = _generation_cost(decoder or find_published_decoder(model), size, output_tokens, batch_size, precision)
    else:
        work = _forward_cost(cost, batch_size, precision)
    if isinstance(work, str):
        return work
    half = weight_bytes(precision, mode) <= 2 and device.peak_fp16_tensor_tflops is not None
    peak = device.peak_fp16_tensor_tflops if half else device.peak_fp32_tflops
    pixels = cost.image_size if cost is not None and mode != "generation" else None
    edge = size or pixels
    return Sample(
        model=model,
        family=family,
        mode=mode,
        batch_size=batch_size,
        size=math.nan if edge is None else float(edge),
        work=work,
        hardware=hardware,
        kind=device.kind,
        device=device.name,
        devices=devices,
        peak_flops=_scale_or_nan(peak, 1e12 * devices),
        bandwidth=_scale_or_nan(device.bandwidth_gb_s, 1e9 * devices),
        memory_mib=_scale_or_nan(device.memory_gib, 1024 * devices),
        backend=backend,
        precision=precision,
        layout=layout,
        compiler=compiler,
        version=version,
        counted=LAYER_OUTPUTS if mode == "generation" or (cost and cost.layer_output_bytes) else ALL_OPERATORS,
        reads=FIXED_SIZE if edge is None else TOKENS if pixels is None else IMAGES,
        vendor=device.vendor or "",
        latency_ms=_scale_or_nan(latency_ms),
        memory_peak_mib=_scale_or_nan(memory_peak_mib),
    )


def device_spec_for(target: Target, devices: Mapping[Target, KnownDevice]) -> DeviceSpec:
    """What is known of a target's device (`hardware.silicon`)."""
    name = target.device_id or target.device or target.hardware
    device = devices.get(target)
    if device is None:
        return silicon(target.device, name, target.hardware)
    return silicon(
        target.device,
        name,
        target.hardware,
        cores=device.cores,
        clock_max_mhz=device.clock_max_mhz,
        vector_bits=device.vector_bits,
        memory_mib=device.memory_mib,
    )


def parse_device_name(name: str) -> tuple[int, DeviceSpec | None]:
    """How many of which device of the spec sheet: `4 x Nvidia A100 GPU` is four."""
    found = re.match(r"(\d+) x (.+)", name)
    return (int(found[1]), find_spec(found[2])) if found else (1, find_spec(name))


def find_published_decoder(name: str) -> Decoder | None:
    """The shape of a published decoder; None of one that `decoders.csv` does not hold."""
    slug = re.sub(r"[^a-z0-9.]+", "-", name.lower().rpartition("/")[2])
    return next((decoder for stem, decoder in _published_decoders() if slug.startswith(stem)), None)


def weight_bytes(precision: str, mode: str) -> float:
    """Bytes of one weight, told by the precision's name: half a byte of `int4`.

    Where it tells nothing they are those of float32, but of a decoder that generates, and of `amp`, half of that.
    """
    known = PRECISIONS.get(precision)
    if known:
        return known.weight_bytes
    bits = re.search(r"(64|32|16|8|4)", precision)
    if bits:
        return int(bits.group()) / 8
    return 4 if precision == UNSTATED and mode != "generation" else _HALF_PRECISION_BYTES


def finite_float(value: Any) -> float | None:
    """A figure as a file wrote it; None where it wrote none that is finite."""
    try:
        figure = float(value)
    except (TypeError, ValueError):
        return None
    return figure if math.isfinite(figure) else None


def _forward_cost(cost: ItemCost | None, batch: int, precision: str) -> WorkloadCost | str:
    if cost is None or cost.flops <= 0 or cost.parameters <= 0:
        return "cost of the model, or the length it was asked for at, unknown"
    written = cost.layer_output_bytes or cost.activation_bytes
    if not written:
        return "the activations of the model are unknown"
    known = PRECISIONS.get(precision)
    width = known.activation_bytes if known else max(_HALF_PRECISION_BYTES, weight_bytes(precision, "inference"))
    activation_bytes = written * batch * width / 4
    return WorkloadCost(
        parameters=cost.parameters,
        flops=cost.flops * batch,
        activation_bytes=activation_bytes,
        weight_bytes=cost.parameters * weight_bytes(precision, "inference"),
        steps=1.0,
        held_bytes=activation_bytes,
    )


def _generation_cost(
    model: Decoder | None, into: float | None, out: int | None, batch: int, precision: str
) -> WorkloadCost | str:
    """A prompt read in one pass, then one pass per token, each of which reads the weights and all keys and values."""
    if model is None:
        return "it was not made to generate, or the shape of its decoder is unknown"
    if into is None or out is None:
        return "how many tokens go in or come out is not stated"
    return WorkloadCost(
        parameters=model.parameters,
        flops=2 * model.active_parameters * batch * (into + out),
        activation_bytes=_HALF_PRECISION_BYTES * model.moved(into, out) * batch * out,
        weight_bytes=model.read_parameters(batch) * weight_bytes(precision, "generation") * out,
        steps=out * model.layers,
        held_bytes=_HALF_PRECISION_BYTES * model.held(into + out) * batch,
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


def _scale_or_nan(value: float | None, factor: float = 1.0) -> float:
    return math.nan if value is None else value * factor


MAX_SPEED_LIMIT_RATIO = 4.0
"""Times faster than computing at the published peak, or than reading the weights at the published bandwidth: who does
not state a precision may have used weights of 4 bits, a quarter of what is then assumed."""


def speed_limit_ratio(sample: Sample, latency_ms: float) -> float:
    """Than its device at full speed; 0 where no rate of it is known. Peaks are published of 16 bits and more."""
    compute_s = sample.work.flops / sample.peak_flops if weight_bytes(sample.precision, sample.mode) >= 2 else math.nan
    needs = [seconds for seconds in (compute_s, sample.work.weight_bytes / sample.bandwidth) if not math.isnan(seconds)]
    return 1e3 * max(needs, default=0.0) / latency_ms
