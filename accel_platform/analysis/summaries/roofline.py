"""Roofline model: the least time of a batch at a device's peak rate and bandwidth, compared with measured cells.

Peaks are those of the spec sheet, or derived from what a host observed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict, cast

from accel_platform.analysis.query.cells import PooledCell
from accel_platform.hardware.catalog import DeviceSpec
from accel_platform.hardware.device_spec import device_spec, peak_ops_per_s
from accel_platform.precisions import PRECISIONS
from accel_platform.warehouse.reader import Reader
from accel_platform.workloads.model_catalog import find_model, sequence_length_for


@dataclass(frozen=True)
class ItemWork:
    """Cost of one item in float32; None where it is unknown."""

    parameters: float
    flops: float
    activation_bytes: float | None


@dataclass(frozen=True)
class RooflineLimits:
    """Least times of a batch in milliseconds; None where the device's rate is unknown."""

    compute_ms: float | None
    memory_ms: float | None
    bytes_moved: float
    peak_flops_per_s: float | None
    bandwidth_bytes_per_s: float | None

    @property
    def bound(self) -> str | None:
        """`compute` or `memory`, whichever takes longer; None if either is unknown."""
        if self.compute_ms is None or self.memory_ms is None:
            return None
        return "compute" if self.compute_ms >= self.memory_ms else "memory"

    @property
    def least_ms(self) -> float | None:
        """Least time of the batch by the known limits; None if neither is known."""
        return max((ms for ms in (self.compute_ms, self.memory_ms) if ms is not None), default=None)


def roofline_limits(work: ItemWork, precision: str | None, batch_size: int, spec: DeviceSpec) -> RooflineLimits | None:
    """Return the limits of one forward pass; None if the precision's width or the activations are unknown.

    compute = FLOPs / peak; memory = (weights once + activations written) / bandwidth (Williams, Waterman and
    Patterson, 2009). The peak is that of `peak_ops_per_s`.

    Activations count as narrow as the weights, because runtimes that quantize may keep them so (TensorRT). NPUs write
    none of them, because their compilers stream through several operators.
    """
    width = PRECISIONS.get(precision or "")
    if width is None or work.activation_bytes is None:
        return None
    peak = peak_ops_per_s(spec, width.name)
    moved = work.parameters * width.weight_bytes
    if spec.kind != "npu":
        moved += work.activation_bytes / 4 * min(width.weight_bytes, width.activation_bytes) * batch_size
    return RooflineLimits(
        compute_ms=None if peak is None else 1e3 * work.flops * batch_size / peak,
        memory_ms=None if spec.bandwidth_gb_s is None else 1e3 * moved / (spec.bandwidth_gb_s * 1e9),
        bytes_moved=moved,
        peak_flops_per_s=peak,
        bandwidth_bytes_per_s=None if spec.bandwidth_gb_s is None else spec.bandwidth_gb_s * 1e9,
    )


def roof_corners(
    peak_flops_per_s: float, bandwidth_bytes_per_s: float | None, least: float, most: float
) -> list[tuple[float, float]]:
    """Return the corners of a device's roof between two intensities, each as FLOP/byte and FLOP/s.

    The roof rises with the bandwidth up to the peak rate. Without a known bandwidth it is the peak rate alone.
    """
    if bandwidth_bytes_per_s is None:
        return [(least, peak_flops_per_s), (most, peak_flops_per_s)]
    highest = min(peak_flops_per_s, most * bandwidth_bytes_per_s)
    ridge = min(max(peak_flops_per_s / bandwidth_bytes_per_s, least), most)
    return sorted({(least, min(peak_flops_per_s, least * bandwidth_bytes_per_s)), (ridge, highest), (most, highest)})


class RooflineFields(TypedDict):
    """A cell's place in a roofline plot, its limits, and its share of them; None where unknown."""

    achieved_flops_per_s: float | None
    intensity_flops_per_byte: float | None
    peak_flops_per_s: float | None
    bandwidth_bytes_per_s: float | None
    compute_ms: float | None
    memory_ms: float | None
    roofline_ms: float | None
    """Least time of the batch by the known limits."""
    share: float | None
    """Least time by the roofline over the measured one."""
    bound: str | None
    """`compute` or `memory`."""
    unavailable: str | None
    """Unknown quantities, in words; None if all are known."""


class RooflineCell(PooledCell, RooflineFields):
    """A cell with its roofline."""


_DEVICES = """
SELECT device_id, hardware, cores, clock_max_mhz, vector_bits, memory_mib FROM devices
WHERE available AND device_id IS NOT NULL
ORDER BY observed_at, host_id
"""
_MODELS = """
SELECT model_id, parameters, flops_per_item, activation_bytes_per_item FROM models
WHERE parameters IS NOT NULL AND flops_per_item IS NOT NULL
"""
# Some files state a model's cost at an image size, in millions and (for multiply-adds) billions.
_STATED = """
SELECT r.model_id, r.image_size,
    max(TRY_CAST(e.payload->>'$.original.parameters_millions' AS DOUBLE)) * 1e6 AS parameters,
    max(TRY_CAST(e.payload->>'$.original.gmacs' AS DOUBLE)) * 2e9 AS flops,
    max(TRY_CAST(e.payload->>'$.original.macts' AS DOUBLE)) * 4e6 AS activation_bytes
FROM results AS r JOIN events AS e ON e.event_id = r.event_id
WHERE r.image_size IS NOT NULL
GROUP BY r.model_id, r.image_size
"""


class Rooflines:
    """Known costs of models and rates of devices at one snapshot, to compare cells with."""

    def __init__(self, reader: Reader) -> None:
        self._devices = {(row["device_id"], row["hardware"]): row for row in reader.rows(_DEVICES)}
        self._models = {
            row["model_id"]: ItemWork(row["parameters"], row["flops_per_item"], row["activation_bytes_per_item"])
            for row in reader.rows(_MODELS)
        }
        self._stated = {
            (row["model_id"], row["image_size"]): ItemWork(row["parameters"], row["flops"], row["activation_bytes"])
            for row in reader.rows(_STATED)
            if row["parameters"] and row["flops"]
        }
        self._specs: dict[tuple[Any, ...], DeviceSpec] = {}

    def spec_of(self, cell: Mapping[str, Any]) -> DeviceSpec:
        """Return the spec of the cell's device, or of the part of it that the cell's runtime uses."""
        key = (cell["device_id"], cell["hardware"], cell["device_name"], cell["backend"])
        if key not in self._specs:
            seen = self._devices.get(key[:2], {})
            observed = {name: seen.get(name) for name in ("cores", "clock_max_mhz", "vector_bits", "memory_mib")}
            identity = cell["device_id"] or cell["device_name"] or cell["hardware"]
            spec = device_spec(cell["device_name"], identity, cell["hardware"], **observed)
            self._specs[key] = spec.used_by(cell["backend"])
        return self._specs[key]

    def work_of(self, cell: Mapping[str, Any]) -> ItemWork | str:
        """Return the cost of one item of the cell, or the reason why it is unknown."""
        if cell["mode"] != "inference" or (cell["processes"] or 1) > 1:
            return "the roofline is of one forward pass in one process"
        if cell["provenance"] == "emulated":
            return "the time of an emulator says nothing of a device"
        if cell["image_size"] is not None and (stated := self._stated.get((cell["model_id"], cell["image_size"]))):
            return stated
        work = self._models.get(cell["model_id"])
        if work is None:
            return f"what {cell['model_id']} costs is not on record"
        spec = find_model(cell["model_id"])
        usual = None if spec is None else sequence_length_for(spec, None)
        if cell["image_size"] is not None or (spec is not None and cell["sequence_length"] != usual):
            return f"what {cell['model_id']} costs is on record for inputs of another size only"
        return work

    def rows(self, cells: Sequence[Mapping[str, Any]]) -> list[RooflineCell]:
        """Return each cell with its roofline."""
        return [cast("RooflineCell", {**cell, **self._roofline_fields(cell)}) for cell in cells]

    def _roofline_fields(self, cell: Mapping[str, Any]) -> RooflineFields:
        work = self.work_of(cell)
        if isinstance(work, str):
            return _no_roofline(work)
        if not cell["latency_ms"] or not cell["batch_size"]:
            return _no_roofline("the cell has no latency or no batch size")
        limits = roofline_limits(work, cell["precision"], cell["batch_size"], self.spec_of(cell))
        if limits is None:
            return _no_roofline(f"how many bytes {cell['precision'] or 'an unstated precision'} moves is not known")
        least = limits.least_ms
        lacking = [
            name
            for name, rate in (("peak rate", limits.peak_flops_per_s), ("bandwidth", limits.bandwidth_bytes_per_s))
            if rate is None
        ]
        device = cell["device_name"] or cell["device_id"] or cell["hardware"]
        return RooflineFields(
            achieved_flops_per_s=1e3 * work.flops * cell["batch_size"] / cell["latency_ms"],
            intensity_flops_per_byte=work.flops * cell["batch_size"] / limits.bytes_moved,
            peak_flops_per_s=limits.peak_flops_per_s,
            bandwidth_bytes_per_s=limits.bandwidth_bytes_per_s,
            compute_ms=limits.compute_ms,
            memory_ms=limits.memory_ms,
            roofline_ms=least,
            share=None if least is None else least / cell["latency_ms"],
            bound=limits.bound,
            unavailable=f"no {' and no '.join(lacking)} of {device} is published or was detected" if lacking else None,
        )


def _no_roofline(reason: str) -> RooflineFields:
    return RooflineFields(
        achieved_flops_per_s=None,
        intensity_flops_per_byte=None,
        peak_flops_per_s=None,
        bandwidth_bytes_per_s=None,
        compute_ms=None,
        memory_ms=None,
        roofline_ms=None,
        share=None,
        bound=None,
        unavailable=reason,
    )
