"""What holds a device up in answer to a question. The roofline itself is `accel_platform.analysis.roofline`."""

from __future__ import annotations

from typing import Literal, cast

from accel_platform.analysis.roofline import ItemWork, limits_of
from accel_platform.hardware.catalog import DeviceSpec
from predictor.answers import Bound
from predictor.asked import Asked


def bound_of(asked: Asked, spec: DeviceSpec) -> Bound | None:
    """Of one forward pass; None where a cost, the peak or the bandwidth is not known, and for other modes."""
    cost = asked.cost
    if asked.mode != "inference" or cost is None:
        return None
    work = ItemWork(cost.parameters, cost.flops, cost.activation_bytes)
    limits = limits_of(work, asked.precision, asked.batch_size, spec)
    if limits is None or limits.compute_ms is None or limits.memory_ms is None:
        return None
    by = cast("Literal['compute', 'memory']", limits.bound)
    return Bound(by=by, compute_ms=limits.compute_ms, memory_ms=limits.memory_ms)
