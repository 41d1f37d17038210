"""Medians of latency samples: confidence intervals, and agreement between processes.

Times are integer nanoseconds. Order statistics are used, because latencies are skewed and a mean follows outliers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import mean, stdev

MIN_PERCENTILE_SAMPLES = {50: 11, 90: 64, 95: 130, 99: 662}
"""The fewest samples that give a percentile, by the early-stopping rule of MLPerf Inference. The tables' SQL
(`result_fields.sql`) has the same numbers."""
MIN_MEDIAN_SAMPLES = MIN_PERCENTILE_SAMPLES[50]
_Z_95 = 1.96
MAX_PROCESSES = 10
DISAGREEMENT_PREFIX = "the medians of the last"
"""Beginning of the reason for disagreement, by which comparisons of processes recognize and ignore it."""
MAX_SPREAD = 0.02
"""Largest coefficient of variation of the medians of processes that measured the same thing."""


def median_ns(samples: Sequence[int]) -> float:
    """Return the middle value, or the mean of the two in the middle. Needs one sample."""
    ordered = sorted(samples)
    half = len(ordered) // 2
    return float(ordered[half]) if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def relative_error(samples: Sequence[int]) -> float:
    """Return half the width of the median's 95 % interval over the median; inf below 6 samples or for a median of 0."""
    if len(samples) < 6:
        return math.inf
    low, middle, high = median_interval_ns(samples)
    return (high - low) / 2 / middle if middle else math.inf


def median_interval_ns(samples: Sequence[int]) -> tuple[int, float, int]:
    """Return low end, median and high end of the median's 95 % confidence interval. Needs six samples.

    The ends are order statistics (the binomial rule, by its normal approximation), so no distribution is assumed.
    """
    ordered, count = sorted(samples), len(samples)
    rank = max(0, math.floor(count / 2 - _Z_95 * math.sqrt(count) / 2) - 1)
    return ordered[rank], median_ns(ordered), ordered[count - 1 - rank]


def disagreement_reason(medians_ns: Sequence[float]) -> str | None:
    """Return why the figures of processes disagree by more than a few per cent; None if they agree.

    `medians_ns` are those of processes that measured the same thing, the newest last. Other guests of a machine, or
    another memory layout, shift all samples of a process alike. Its samples look calm then, and only other processes
    reveal it.
    """
    newest = medians_ns[-MAX_PROCESSES:]
    if len(newest) < 3:
        return None
    spread = stdev(newest) / mean(newest)
    return f"{DISAGREEMENT_PREFIX} {len(newest)} processes vary by {spread:.1%}" if spread > MAX_SPREAD else None
