"""The numbers a prediction rests on: cost of the work, spec of the device, and the roofline between them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from accel_platform.hardware.catalog import DeviceSpec, cpu_spec, find_spec
from accel_platform.precisions import PRECISIONS
from predictor.evidence import Device, Target
from predictor.subject import ItemCost

SCHEMA = 2
"""Raise it when the meaning of a feature changes: artefacts of another schema are refused."""

NUMERIC = (
    "log_parameters",
    "log_flops",
    "log_activation_bytes",
    "log_weight_bytes",
    "log_intensity",
    "log_batch_size",
    "log_sequence_length",
    "layers",
    "precision_bits",
    "log_peak_flops",
    "log_bandwidth",
    "log_roofline_ms",
)
CATEGORICAL = ("modality", "hardware", "backend", "device", "precision")


@dataclass(frozen=True)
class Features:
    """One cell: numbers in the order of NUMERIC (NaN where unknown), names in the order of CATEGORICAL."""

    numeric: tuple[float, ...]
    categorical: tuple[str | None, ...]


def features_of(
    cost: ItemCost,
    *,
    modality: str | None,
    target: Target,
    precision: str | None,
    batch_size: int,
    sequence_length: int | None,
    spec: DeviceSpec | None,
) -> Features:
    """Describe a cell. Logarithms are natural; an unknown figure stays NaN and is never guessed."""
    bits = precision_bits(precision)
    width = PRECISIONS.get(precision or "")
    flops = cost.flops * batch_size
    weights = math.nan if width is None else cost.parameters * width.weight_bytes
    activations = math.nan
    if width is not None and cost.activation_bytes is not None:
        activations = cost.activation_bytes * batch_size * width.activation_bytes / 4
    peak = _peak_flops(spec, bits)
    bandwidth = math.nan if spec is None or spec.bandwidth_gb_s is None else spec.bandwidth_gb_s * 1e9
    values = {
        "log_parameters": _log(cost.parameters),
        "log_flops": _log(flops),
        "log_activation_bytes": _log(activations),
        "log_weight_bytes": _log(weights),
        "log_intensity": _log(flops / (weights + activations)),
        "log_batch_size": _log(batch_size),
        "log_sequence_length": _log(sequence_length),
        "layers": math.nan if cost.layers is None else float(cost.layers),
        "precision_bits": math.nan if bits is None else float(bits),
        "log_peak_flops": _log(peak),
        "log_bandwidth": _log(bandwidth),
        "log_roofline_ms": _log(roofline_ms(flops, weights + activations, peak, bandwidth)),
    }
    return Features(
        numeric=tuple(values[name] for name in NUMERIC),
        categorical=(modality, target.hardware, target.backend, target.device_id, precision),
    )


def roofline_ms(flops: float, bytes_moved: float, peak_flops: float, bandwidth: float) -> float:
    """The least time the device can take: the longer of computing and of moving the bytes. NaN where a rate is.

    With the bandwidth unknown it is the time of computing alone, which is still a lower bound.
    """
    compute = flops / peak_flops
    memory = bytes_moved / bandwidth
    return 1e3 * (compute if math.isnan(memory) else max(compute, memory))


def precision_bits(precision: str | None) -> int | None:
    """Bits of one number: 32 for `float32`, 16 for `bfloat16`, 8 for `int8`; None where the name has none."""
    found = re.search(r"(64|32|16|8|4)", precision or "")
    return int(found.group()) if found else None


def device_spec(target: Target, devices: Mapping[Target, Device]) -> DeviceSpec | None:
    """What is published of the device, or derived from what its host observed; None where neither says anything."""
    published = find_spec(target.device)
    device = devices.get(target)
    # Of a CPU its host tells more than the vendor: how many of its cores there are.
    if device is None or device.cores is None or (published is not None and published.kind != "cpu"):
        return published
    return cpu_spec(
        target.device or target.hardware,
        cores=device.cores,
        clock_max_mhz=device.clock_max_mhz,
        vector_bits=device.vector_bits,
        memory_mib=device.memory_mib,
    )


def _peak_flops(spec: DeviceSpec | None, bits: int | None) -> float:
    if spec is None:
        return math.nan
    half = bits is not None and bits <= 16 and spec.peak_fp16_tensor_tflops is not None
    peak = spec.peak_fp16_tensor_tflops if half else spec.peak_fp32_tflops
    return math.nan if peak is None else peak * 1e12


def _log(value: float | None) -> float:
    return math.log(value) if value is not None and value > 0 else math.nan
