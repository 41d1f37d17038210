"""The resource that limits a device, by the roofline, in answer to a query."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal, cast

from accel_platform.analysis.summaries.roofline import ItemWork, limits_of
from accel_platform.hardware.catalog import DeviceSpec
from predictor.advisor.resolved_query import ResolvedQuery
from predictor.data.samples import Sample
from predictor.schemas.responses import Bound

_STEP = 3.0
"""Forward passes that a training step is worth: going back computes and moves twice as much (Kaplan et al., 2020)."""


def bound_of(asked: ResolvedQuery, spec: DeviceSpec) -> Bound | None:
    """Of one batch or one training step; None where a cost, the peak or the bandwidth is not known, and for generation.

    Of int8 the peak is the published one of matrix units, and amp computes and hands on in 16 bits.
    """
    cost = asked.cost
    if asked.mode == "generation" or cost is None:
        return None
    precision = "float16" if asked.precision == "amp" else asked.precision
    if precision == "int8":
        spec = replace(spec, peak_fp32_tflops=spec.peak_int8_tensor_tops)
    work = ItemWork(cost.parameters, cost.flops, cost.written_bytes)
    limits = limits_of(work, precision, asked.batch_size, spec)
    if limits is None or limits.compute_ms is None or limits.memory_ms is None:
        return None
    by = cast("Literal['compute', 'memory']", limits.bound)
    passes = _STEP if asked.mode == "training" else 1.0
    return Bound(by=by, compute_ms=passes * limits.compute_ms, memory_ms=passes * limits.memory_ms)


def bound_of_generation(case: Sample | str) -> Bound | None:
    """Of a whole generation: computing all tokens against reading weights, keys and values once for each that comes
    out; None where that or the device's rates are not known."""
    if isinstance(case, str) or math.isnan(case.peak_flops) or math.isnan(case.bandwidth):
        return None
    compute_ms = 1e3 * case.work.flops / case.peak_flops
    memory_ms = 1e3 * (case.work.weight_bytes + case.work.activation_bytes) / case.bandwidth
    return Bound(by="compute" if compute_ms >= memory_ms else "memory", compute_ms=compute_ms, memory_ms=memory_ms)
