"""Medians of latency samples: confidence intervals, and agreement between processes.

Times are integer nanoseconds. Latencies are skewed and a mean follows its outliers, so only order statistics decide.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import mean, stdev

MIN_MEDIAN_SAMPLES = 11
"""The fewest samples that give a median, by the early-stopping rule of MLPerf."""
_Z_95 = 1.96
MAX_PROCESSES = 10
DISAGREEMENT_PREFIX = "the medians of the last"
"""How the reason begins where processes disagree: what compares processes knows that without being told."""
MAX_SPREAD = 0.02
"""How far the medians of processes that measured one thing may vary, as their coefficient of variation."""


def median_ns(samples: Sequence[int]) -> float:
    """The middle value, or the mean of the two in the middle. Needs one sample."""
    ordered = sorted(samples)
    half = len(ordered) // 2
    return float(ordered[half]) if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def relative_error(samples: Sequence[int]) -> float:
    """Half the width of the median's 95 % interval over the median; infinite below 6 samples, where there is none."""
    if len(samples) < 6:
        return math.inf
    low, middle, high = median_interval_ns(samples)
    return (high - low) / 2 / middle if middle else math.inf


def median_interval_ns(samples: Sequence[int]) -> tuple[int, float, int]:
    """The median between the ends of its 95 % confidence interval. Needs six samples.

    The ends are order statistics (the binomial rule, by its normal approximation), so nothing is assumed of the
    distribution.
    """
    ordered, count = sorted(samples), len(samples)
    rank = max(0, math.floor(count / 2 - _Z_95 * math.sqrt(count) / 2) - 1)
    return ordered[rank], median_ns(ordered), ordered[count - 1 - rank]


def disagreement_reason(medians_ns: Sequence[float]) -> str | None:
    """Why one process's figure should not be trusted to a few per cent, by what others found; None where it can.

    `medians_ns` are those of processes that measured the same thing, the newest last. A machine that other guests use
    too, or memory laid out anew, moves all samples of a process alike: they look calm, and only others show it.
    """
    newest = medians_ns[-MAX_PROCESSES:]
    if len(newest) < 3:
        return None
    spread = stdev(newest) / mean(newest)
    return f"{DISAGREEMENT_PREFIX} {len(newest)} processes vary by {spread:.1%}" if spread > MAX_SPREAD else None
