"""Significance of a difference between two sets of latency samples: a rank test, and an effect larger than noise.

A rank test alone finds almost every pair different, because with hundreds of samples it detects the offset that each
process has from memory layout and neighbors. So the effect must also exceed the usual difference between processes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, median
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit

from accel_platform.analysis.stats.medians import MIN_MEDIAN_SAMPLES, median_interval_ns, median_ns

ALPHA = 0.05
"""Probability that noise alone passes either test."""
MIN_EFFECT = 0.01
"""Relative change of the median too small to act on, however significant."""
_POWER = 0.95
"""Probability with which `processes_needed` processes find a slowdown."""

Verdict = Literal["same", "slower", "faster", "undecided"]


@dataclass(frozen=True)
class SampleComparison:
    """Comparison of two sets of samples.

    `ratio` is the candidate's median over the baseline's. It is None, like `p_value`, if samples are too few or 0 ns
    long.
    """

    verdict: Verdict
    ratio: float | None
    p_value: float | None
    minimal_effect: float
    """Relative change of the median that the difference had to exceed."""

    @property
    def different(self) -> bool:
        return self.verdict in ("slower", "faster")


def compare(baseline: Sequence[int], candidate: Sequence[int], *, noise_level: float) -> SampleComparison:
    """Compare latencies, of one process each or pooled from several measured in turns.

    `noise_level` is the relative change that noise alone seldom passes, as `estimate_noise_level` finds it. Fewer than
    MIN_MEDIAN_SAMPLES samples on either side are `undecided`. Raises ValueError for a negative or NaN noise level.
    """
    if not noise_level >= 0:
        raise ValueError(f"A noise level must be 0 or more, not {noise_level}.")
    effect = max(noise_level, MIN_EFFECT)
    if min(len(baseline), len(candidate)) < MIN_MEDIAN_SAMPLES:
        return SampleComparison("undecided", None, None, effect)
    before, after = median_ns(baseline), median_ns(candidate)
    if min(before, after) <= 0:
        return SampleComparison("undecided", None, None, effect)
    p_value = mann_whitney(baseline, candidate)
    # In logarithms, because a slowdown and the speedup that undoes it are then equally far from 0.
    verdict = "same" if p_value >= ALPHA else _direction(after / before, effect)
    return SampleComparison(verdict, after / before, p_value, effect)


def compare_figures(baseline: Sequence[float], candidate: Sequence[float], *, noise_level: float) -> SampleComparison:
    """Compare the medians of figures that each process has one of, such as its peak memory.

    `noise_level` is that of the figures, as for `compare`. There is no p-value, because a few processes have too few
    ranks for one. Needs a figure a side; a median of 0 is `undecided`.
    """
    effect = max(noise_level, MIN_EFFECT)
    before, after = median(baseline), median(candidate)
    if min(before, after) <= 0:
        return SampleComparison("undecided", None, None, effect)
    return SampleComparison(_direction(after / before, effect), after / before, None, effect)


def _direction(ratio: float, effect: float) -> Verdict:
    shift = math.log(ratio)
    if abs(shift) <= math.log1p(effect):
        return "same"
    return "slower" if shift > 0 else "faster"


def failure_p_value(failed: int, of: int, failed_before: int, of_before: int) -> float:
    """Return the two-sided p-value of Fisher's exact test that processes fail as often as before.

    It is twice the smaller tail.
    """
    total, all_failed = of + of_before, failed + failed_before
    ways = [
        math.comb(all_failed, here) * math.comb(total - all_failed, of - here)
        for here in range(min(of, all_failed) + 1)
    ]
    tails = sum(ways[failed:]), sum(ways[: failed + 1])
    return min(1.0, 2 * min(tails) / math.comb(total, of))


def processes_needed(medians_ns: Sequence[float], *, effect: float, alpha: float = ALPHA) -> int:
    """Return how many processes a side find a slowdown by `effect` (0.03 is 3 %) with probability _POWER.

    `medians_ns` and `alpha` as for `estimate_noise_level`, at whose level the comparison is made. Raises ValueError as
    that does, and for an effect that no number of processes gives.
    """
    if not effect > MIN_EFFECT:
        raise ValueError(f"No number of processes finds {effect:.1%} with probability {_POWER}.")
    # Drift is included, because a machine that drifts does so while the sides take turns, too.
    spread = max(_spread(medians_ns), float(np.std(np.log(np.asarray(medians_ns, dtype=np.float64)), ddof=1)))
    both = NormalDist().inv_cdf(1 - alpha / 2) + NormalDist().inv_cdf(_POWER)
    for_noise = 2 * (both * spread / math.log1p(effect)) ** 2
    # Below this level the comparison asks for MIN_EFFECT instead, which leaves the rest of the effect to _POWER.
    rest = math.log1p(effect) - math.log1p(MIN_EFFECT)
    for_least = 2 * (NormalDist().inv_cdf(_POWER) * spread / rest) ** 2
    return max(1, math.ceil(max(for_noise, for_least)))


def estimate_noise_level(medians_ns: Sequence[float], *, processes: float = 1, alpha: float = ALPHA) -> float:
    """Return the relative change of a median that noise alone exceeds with probability `alpha`.

    The spread comes from successive differences (von Neumann), because slow drift affects both sides of a comparison
    whose processes take turns.

    Parameters
    ----------
    medians_ns
        Medians of single processes that measured the same thing, in order of time.
    processes
        Processes pooled on each side of the planned comparison; their harmonic mean if the sides differ.

    Raises
    ------
    ValueError
        For fewer than five medians, or any that is not positive.
    """
    return math.expm1(NormalDist().inv_cdf(1 - alpha / 2) * _spread(medians_ns) * math.sqrt(2 / processes))


def _spread(medians_ns: Sequence[float]) -> float:
    """Return the standard deviation of one process's median, in logarithms, without drift."""
    if len(medians_ns) < 5 or min(medians_ns) <= 0:
        raise ValueError("A noise level needs the medians, above 0, of five processes or more.")
    medians = np.asarray(medians_ns, dtype=np.float64)
    # log1p, because two neighbouring doubles have the same logarithm
    steps = np.log1p(np.diff(medians) / medians[:-1])
    return math.sqrt(float(np.mean(steps**2)) / 2)


def estimate_comparison_noise(
    baseline_ns: Sequence[float], candidate_ns: Sequence[float], *, in_turns: bool = False
) -> float:
    """Return the relative change that noise alone exceeds with probability ALPHA, from the compared processes.

    It catches a machine that is noisier now than when its history was measured. The spread is that of each side's
    medians around their own mean; Student's t allows for their small number.

    Parameters
    ----------
    in_turns
        The k-th processes of both sides were measured one after the other. Then only their differences count, which
        drift does not affect.

    Raises
    ------
    ValueError
        For fewer than two processes on a side, unequal sides in turns, or a median that is not positive.
    """
    n, m = len(baseline_ns), len(candidate_ns)
    if min(n, m) < 2 or min(*baseline_ns, *candidate_ns) <= 0 or (in_turns and n != m):
        raise ValueError("The noise of a comparison needs the medians, above 0, of two processes a side or more.")
    first, second = (np.log(np.asarray(side, dtype=np.float64)) for side in (baseline_ns, candidate_ns))
    if in_turns:
        error, freedom = float((first - second).std(ddof=1)) / math.sqrt(n), n - 1
    else:
        freedom = n + m - 2
        variance = sum(float(((side - side.mean()) ** 2).sum()) for side in (first, second)) / freedom
        error = math.sqrt(variance * (1 / n + 1 / m))
    return math.expm1(float(stdtrit(freedom, 1 - ALPHA / 2)) * error)


@dataclass(frozen=True)
class RatioInterval:
    """95 % confidence interval of a ratio of medians, and the variation that it covers."""

    low: float
    high: float
    covers: Literal["processes", "samples"]
    """`processes` if it covers other processes; `samples` if only other samples of the same processes."""


def ratio_interval(
    ratio: float, first: Sequence[Sequence[int]], second: Sequence[Sequence[int]]
) -> RatioInterval | None:
    """Return the interval around the second median over the first, from the samples (ns) of each side's processes.

    With two processes or more a side, it is Welch's t on the logarithms of their medians. Otherwise each side's
    interval of the median, from order statistics, is combined by the square-and-add rule (Zou & Donner, Statistics in
    Medicine 27, 2008). This covers no difference between processes. None below `MIN_MEDIAN_SAMPLES` samples.
    """
    if any(len(samples) < MIN_MEDIAN_SAMPLES or min(samples) <= 0 for samples in (*first, *second)) or not (
        first and second
    ):
        return None
    if min(len(first), len(second)) >= 2:
        logs = [np.log([median_ns(samples) for samples in side]) for side in (first, second)]
        # The variance of a median of many normal values is pi / 2 times that of their mean; two have median = mean.
        parts = [float(side.var(ddof=1)) / len(side) * (math.pi / 2 if len(side) > 2 else 1) for side in logs]
        weights = sum(part**2 / (len(side) - 1) for part, side in zip(parts, logs, strict=True))
        if not weights:
            return RatioInterval(ratio, ratio, "processes")
        width = float(stdtrit(sum(parts) ** 2 / weights, 1 - ALPHA / 2)) * math.sqrt(sum(parts))
        return RatioInterval(ratio * math.exp(-width), ratio * math.exp(width), "processes")
    ends = [median_interval_ns([sample for samples in side for sample in samples]) for side in (first, second)]
    (low_1, middle_1, high_1), (low_2, middle_2, high_2) = ends
    down = math.hypot(math.log(middle_2 / low_2), math.log(high_1 / middle_1))
    up = math.hypot(math.log(high_2 / middle_2), math.log(middle_1 / low_1))
    return RatioInterval(ratio * math.exp(-down), ratio * math.exp(up), "samples")


def mann_whitney(first: Sequence[int], second: Sequence[int]) -> float:
    """Return the two-sided p-value of the Mann-Whitney U test.

    It uses the normal approximation corrected for ties and continuity, which is good from about eight samples a side.
    Samples that are all equal give 1.
    """
    n, m = len(first), len(second)
    values = np.concatenate([np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)])
    ranks, counts = rank_with_ties(values)
    u = float(ranks[:n].sum()) - n * (n + 1) / 2
    total = n + m
    ties = float(((counts.astype(np.float64) ** 3) - counts).sum())
    variance = n * m / 12 * (total + 1 - ties / (total * (total - 1)))
    if variance <= 0:
        return 1.0
    z = max(0.0, abs(u - n * m / 2) - 0.5) / math.sqrt(variance)
    return min(1.0, math.erfc(z / math.sqrt(2)))


# Written here, because scipy.stats takes a second to import, for which every process that reads a series would wait.
def rank_with_ties(values: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Return the rank of each value from 1, equal ones sharing their mean, and the count of each distinct value."""
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(counts) - (counts - 1) / 2)[which]), counts
