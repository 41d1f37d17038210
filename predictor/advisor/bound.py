"""Roofline bound of a query on a device: the least times of computing and of memory traffic, and which is longer."""

from __future__ import annotations

import math
from typing import Literal, cast

from accel_platform.analysis.summaries.roofline import ItemWork, roofline_limits
from accel_platform.hardware.catalog import DeviceSpec
from predictor.advisor.resolved_query import ResolvedQuery
from predictor.data.samples import Sample
from predictor.schemas.responses import Bound

_TRAINING_PASSES = 3.0
"""Cost of a training step in forward passes: the backward pass costs two of them (Kaplan et al., 2020)."""


def roofline_bound(query: ResolvedQuery, spec: DeviceSpec) -> Bound | None:
    """Return the bound of one batch or training step; None for generation, and where a cost or rate is unknown.

    amp computes and writes in 16 bits. An int8 rate that nobody published leaves the least time unknown.
    """
    cost = query.cost
    if query.mode == "generation" or cost is None:
        return None
    precision = "float16" if query.precision == "amp" else query.precision
    if precision == "int8" and spec.peak_int8_tensor_tops is None:
        return None
    work = ItemWork(cost.parameters, cost.flops, cost.written_bytes)
    limits = roofline_limits(work, precision, query.batch_size, spec)
    if limits is None or limits.compute_ms is None or limits.memory_ms is None:
        return None
    by = cast("Literal['compute', 'memory']", limits.bound)
    passes = _TRAINING_PASSES if query.mode == "training" else 1.0
    return Bound(by=by, compute_ms=passes * limits.compute_ms, memory_ms=passes * limits.memory_ms)


def generation_bound(sample: Sample | str) -> Bound | None:
    """Return the bound of a whole generation; None where the sample or the device's rates are unknown.

    It compares computing all tokens with reading weights, keys and values once per generated token.
    """
    if isinstance(sample, str) or math.isnan(sample.peak_flops) or math.isnan(sample.bandwidth):
        return None
    compute_ms = 1e3 * sample.work.flops / sample.peak_flops
    memory_ms = 1e3 * (sample.work.weight_bytes + sample.work.activation_bytes) / sample.bandwidth
    return Bound(by="compute" if compute_ms >= memory_ms else "memory", compute_ms=compute_ms, memory_ms=memory_ms)
