"""Statistics of one result, computed as in the table `results`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from accel_platform.analysis.stats.medians import MIN_PERCENTILE_SAMPLES
from accel_platform.events.types import ResultRecorded


@dataclass(frozen=True)
class ResultStatistics:
    """Milliseconds per batch, and items per second; None if unknown."""

    mean_ms: float | None
    p50_ms: float | None
    p90_ms: float | None
    p95_ms: float | None
    p99_ms: float | None
    min_ms: float | None
    max_ms: float | None
    std_ms: float | None
    items_per_s: float | None
    """By the mean time; with several training processes, of all of them."""


def result_statistics(result: ResultRecorded) -> ResultStatistics:
    """Return the statistics of a result's samples, or the stated ones without samples.

    Percentiles use linear interpolation (Hyndman & Fan type 7), as in the table `results`. They are None with too few
    samples.
    """
    if not result.samples_ns:
        return ResultStatistics(
            result.latency_mean_ms,
            result.latency_p50_ms,
            result.latency_p90_ms,
            result.latency_p95_ms,
            result.latency_p99_ms,
            result.latency_min_ms,
            result.latency_max_ms,
            result.latency_std_ms,
            result.throughput_items_per_s,
        )
    samples_ms = np.array(result.samples_ns) / 1e6
    mean_ms = float(samples_ms.mean())
    count = len(samples_ms)
    percentiles = {
        q: float(np.percentile(samples_ms, q)) if count >= needed else None
        for q, needed in MIN_PERCENTILE_SAMPLES.items()
    }
    return ResultStatistics(
        mean_ms,
        percentiles[50],
        percentiles[90],
        percentiles[95],
        percentiles[99],
        float(samples_ms.min()),
        float(samples_ms.max()),
        float(samples_ms.std(ddof=1)) if count > 1 else None,
        result.batch_size * (result.processes or 1) * 1e3 / mean_ms if result.batch_size and mean_ms else None,
    )
