"""Change-point detection in a series of measurements, offline and online.

Offline (`find_changes`), a scan of rank sums finds lasting shifts, even ones that are small beside the noise. Online
(`watch_changes`), the last three values are compared with the noise of the series, so a large shift is known two values
after it happened. Ranks of few values are never significant, so both also accept values that lie far from all others.
Ranks and medians resist spikes, and a single value never makes a change.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr, stdtr

from accel_platform.analysis.regressions.thresholds import MIN_SERIES_CHANGE_PERCENT
from accel_platform.analysis.stats.significance import rank_with_ties

Values = npt.NDArray[np.float64]

MIN_SEGMENT = 5
"""Fewest values on either side of a change in the scan, because fewer have too few ranks for significance."""
MIN_INTERVAL = 20
"""Fewest values of a part of a finished series that is searched by itself."""
RECENT_VALUES = 3
"""Values that must agree for an online alert, so a change is known two values after it happened."""
MIN_BASELINE = 8
"""Fewest values from which online detection estimates the noise."""
MAX_WINDOW = 120
"""Most values of the current level that online detection uses, because noise changes over the years."""
ALPHA = 0.01
"""Offline: probability that a series without a change shows one anywhere."""
ALPHA_LATE = 1e-4
"""Offline: the same for the last few values, which the scan cannot test."""
ALPHA_SCAN_ONLINE = 1e-5
ALPHA_RECENT = 3e-6
"""Online: the same for each new value. With these, permuted real series alert less than once in 10,000 values."""
_TAIL = 4.0
"""Degrees of freedom of Student's t as the noise model, heavy-tailed because outliers may not have appeared yet."""


@dataclass(frozen=True)
class ChangePoint:
    """A lasting shift."""

    index: int
    """Position of the first value at the new level, from 0."""
    direction: Literal["up", "down"]
    before: float
    """Median of the values since the previous change, in the unit of the series."""
    after: float
    """Median of the values from here to the next change, online to the last value seen."""
    change_percent: float | None
    """Change of the median; None if `before` is 0."""
    p_value: float
    """Probability of a shift this clear at any position of a series that never moved."""
    known_at: int
    """Position of the value after which the change was known."""


def find_changes(
    values: Sequence[float], *, min_change_percent: float = MIN_SERIES_CHANGE_PERCENT
) -> list[ChangePoint]:
    """Find every lasting shift of a finished series, in order: binary segmentation, then a test of its end.

    Shifts below `min_change_percent` are not reported. Raises ValueError for a value that is not finite.
    """
    series = _finite_values(values)
    cuts = _segment(series)
    cuts = _prune_cuts(series, cuts, min_change_percent)
    start = cuts[-1] if cuts else 0
    late = _recent_change(series[start:], min_change_percent, ALPHA_LATE)
    bounds = [0, *cuts, *([start + late[0]] if late else []), len(series)]
    changes = []
    for left, cut, right in zip(bounds, bounds[1:], bounds[2:], strict=False):
        fresh = late is not None and cut == bounds[-2]
        p_value = late[1] if late is not None and fresh else _scan(series[left:right], at=cut - left)[1]
        changes.append(_change(series, left, cut, right, p_value, known_at=len(series) - 1))
    return changes


def watch_changes(
    values: Sequence[float], *, min_change_percent: float = MIN_SERIES_CHANGE_PERCENT
) -> list[ChangePoint]:
    """Return the alerts of online detection, which sees the values one by one and starts anew after each alert.

    Shifts below `min_change_percent` are not reported. Raises ValueError for a value that is not finite.
    """
    series = _finite_values(values)
    changes: list[ChangePoint] = []
    low, high = min(values, default=0.0), max(values, default=0.0)
    # No two medians are farther apart than the extremes. Most series of memory and of failures end here.
    if low == high or (low > 0 and (high - low) * 100 < min_change_percent * low):
        return changes
    start = 0
    for seen in range(MIN_BASELINE + RECENT_VALUES, len(series) + 1):
        first = max(start, seen - MAX_WINDOW)
        level = series[first:seen]
        found = _recent_change(level, min_change_percent, ALPHA_RECENT)
        if found is None and len(level) >= 2 * MIN_BASELINE:
            cut = _clearest_cut(_clarity(level))
            # Before the test, because it takes a fraction of the time and most cuts fail here.
            if _medians_differ(level[:cut], level[cut:], min_change_percent):
                _, p_value = _scan(level, at=cut)
                found = (cut, p_value) if p_value < ALPHA_SCAN_ONLINE else None
        if found is not None:
            cut, p_value = found
            changes.append(_change(series, start, first + cut, seen, p_value, known_at=seen - 1))
            start = first + cut
    return changes


def _segment(series: Values) -> list[int]:
    """Cut the series recursively at the clearest position; return the cuts in order.

    Parts are searched, too, because a shift that is undone shows at no cut of the whole.
    """
    pending, cuts = [(0, len(series))], []
    while pending:
        left, right = pending.pop()
        if right - left < 2 * MIN_SEGMENT:
            continue
        cut, p_value = _scan(series[left:right])
        found = [(p_value, left + cut)]
        for first, last in _parts(left, right):
            cut = first + _clearest_cut(_clarity(series[first:last]))
            p_value = _apart_p_value(series[first:cut], series[cut:last])
            found.append((p_value * (right - left) / (last - first), cut))
        p_value, cut = min(found)
        if p_value < ALPHA:
            cuts.append(cut)
            pending += [(left, cut), (cut, right)]
    return sorted(cuts)


def _parts(left: int, right: int) -> Iterator[tuple[int, int]]:
    """Yield ever shorter parts of a range, of each length so many that neighbors overlap by half or more.

    They are seeded intervals (Kovács et al., "Seeded binary segmentation", Biometrika 110, 2023).
    """
    length = int((right - left) / 2**0.5)
    while length >= MIN_INTERVAL:
        count = 2 * -(-(right - left) // length) - 1
        for first in np.linspace(left, right - length, count).astype(int).tolist():
            yield first, first + length
        length = int(length / 2**0.5)


def _prune_cuts(series: Values, cuts: list[int], min_change_percent: float) -> list[int]:
    """Remove cuts that are not significant between their neighbors, found later, and cuts that are too small."""
    cuts = list(cuts)
    while cuts:
        bounds = [0, *cuts, len(series)]
        doubt = []
        for left, cut, right in zip(bounds, bounds[1:], bounds[2:], strict=False):
            _, p_value = _scan(series[left:right], at=cut - left)
            moved = _medians_differ(series[left:cut], series[cut:right], min_change_percent)
            doubt.append(p_value if moved else 1.0)
        worst = int(np.argmax(doubt))
        if doubt[worst] < ALPHA:
            break
        del cuts[worst]
    return cuts


def _scan(values: Values, at: int | None = None) -> tuple[int, float]:
    """Return the cut with the clearest difference in rank, and its p-value over all positions.

    With `at`, that cut is tested in the same way. The p-value is that of the ranks or that of the distance.
    """
    count, clarity = len(values), _clarity(values)
    if count < 2 * MIN_SEGMENT or not clarity.any():
        return count // 2, 1.0
    cut = _clearest_cut(clarity) if at is None else at
    before, after = values[:cut], values[cut:]
    by_rank = _scan_p_value(float(clarity[cut - 1]) / _autocorrelation_factor(before, after), count)
    return cut, min(by_rank, _apart_p_value(before, after))


def _clarity(values: Values) -> Values:
    """Return the Wilcoxon rank sum before each cut, over its standard deviation under exchangeability, ties included.

    All are 0 if the values are equal.
    """
    count = len(values)
    ranks, _ = rank_with_ties(values)
    centered = ranks - ranks.mean()
    before = np.arange(1, count)
    spread = np.sqrt(float(centered @ centered) * before * (count - before) / (count * (count - 1)))
    sums = np.abs(np.cumsum(centered)[:-1])
    return np.asarray(np.divide(sums, spread, out=np.zeros_like(sums), where=spread > 0))


def _clearest_cut(clarity: Values) -> int:
    """Return the clearest cut that leaves `MIN_SEGMENT` values on either side."""
    return int(np.argmax(clarity[MIN_SEGMENT - 1 : len(clarity) - MIN_SEGMENT + 1])) + MIN_SEGMENT


def _apart_p_value(before: Values, after: Values) -> float:
    """Return the probability that noise alone puts the sides of a cut so far apart at any position.

    Three quarters of the shorter side lie beyond a distance from the median of the longer one. Its probability is that
    of heavy-tailed noise of the longer side's width, or the share of the longer side as far out. It counts twice,
    because neighbors are seldom independent, and less where they are found not to be.
    """
    few, many = sorted((before, after), key=len)
    middle = float(np.median(many))
    side = 1.0 if float(np.median(few)) > middle else -1.0
    distance = float(np.quantile(side * (few - middle), 0.25))
    if distance <= 0:
        return 1.0
    seen = np.count_nonzero(side * (many - middle) >= distance) / (len(many) + 1)
    chance = max(float(stdtr(_TAIL, -distance / _width(many, middle))), seen)
    positions = len(before) + len(after) - 2 * MIN_SEGMENT + 1
    return min(1.0, positions * 2 * float(chance ** (2 / _autocorrelation_factor(before, after))))


def _scan_p_value(strength: float, count: int) -> float:
    """Return the probability that the largest of the standardized sums exceeds `strength`.

    It is the tail approximation of James, James & Siegmund, "Tests for a change-point", Biometrika 74 (1987), with
    Siegmund's correction for sums at integer positions only.
    """
    if strength <= 1.0:
        return 1.0
    share = np.arange(MIN_SEGMENT, count - MIN_SEGMENT + 1) / count
    step = strength / np.sqrt(count * share * (1 - share))
    half = step / 2
    overshoot = (2 / step) * (ndtr(half) - 0.5) / (half * ndtr(half) + _density(half))
    integral = float(np.trapezoid(overshoot / (share * (1 - share)), share))
    # One position's p-value is the lower bound, because two positions or fewer give nothing to integrate over.
    single = 2 * float(ndtr(-strength))
    return min(1.0, max(single, strength * float(_density(strength)) * integral))


def _density(z: Values | float) -> Values:
    """Return the density of the standard normal distribution."""
    return np.asarray(np.exp(-np.square(z) / 2) / np.sqrt(2 * np.pi))


def _autocorrelation_factor(before: Values, after: Values) -> float:
    """Return the factor, at least 1, by which autocorrelation widens the spread of a sum of values.

    It comes from the correlation r of neighbors around the level of their own side, if r is significant.
    The factor is sqrt((1 + r) / (1 - r)), as for a first-order autoregressive series.
    """
    around = np.concatenate([rank_with_ties(part)[0] - (len(part) + 1) / 2 for part in (before, after)])
    total = float(around @ around)
    correlation = float(around[:-1] @ around[1:]) / total if total else 0.0
    if correlation * np.sqrt(len(around)) < 2.0:
        return 1.0
    correlation = min(correlation, 0.95)
    return float(np.sqrt((1 + correlation) / (1 - correlation)))


def _recent_change(level: Values, min_change_percent: float, alpha: float) -> tuple[int, float] | None:
    """Return where the last few values left the level before them, and its p-value; None if they did not.

    Each of the last `RECENT_VALUES` values has a probability of lying so far on that side. The value nearest to the
    level decides, so that two spikes beside an ordinary value are no shift.

    The probability is that of heavy-tailed noise of the series' own width. It is at least the share of earlier values
    as far out, because in a series that jumps now and then a jump is not significant.
    """
    baseline, recent = level[:-RECENT_VALUES], level[-RECENT_VALUES:]
    if len(baseline) < MIN_BASELINE:
        return None
    middle = float(np.median(baseline))
    for side in (1.0, -1.0):
        away = side * (recent - middle)
        if away.min() <= 0 or not _medians_differ(baseline, recent, min_change_percent):
            continue
        width = _width(baseline, middle)
        seen = (side * (baseline - middle))[:, None] >= away
        with np.errstate(over="ignore"):  # because a series of zeros has next to no width
            distances = away / width
        chances = np.maximum(stdtr(_TAIL, -distances), seen.sum(axis=0) / (len(baseline) + 1))
        p_value = min(1.0, 2 * float(chances.max()) ** RECENT_VALUES)
        if p_value < alpha:
            return _first_of(level, middle, float(np.median(recent))), p_value
    return None


def _width(baseline: Values, middle: float) -> float:
    """Return the standard deviation of the noise and of the level's estimate together, by medians; never 0.

    It is the larger of the spread around the median and the spread between neighbors.
    """
    around = 1.4826 * float(np.median(np.abs(baseline - middle)))
    between = 1.4826 * float(np.median(np.abs(np.diff(baseline)))) / np.sqrt(2)
    # The variance of a median of n normal values is pi / 2 / n of theirs. A series without noise has its resolution.
    floor = 1e-3 * abs(middle) or float(np.finfo(float).tiny)
    return float(max(around, between, floor) * np.sqrt(1 + np.pi / 2 / len(baseline)))


def _first_of(level: Values, old: float, new: float) -> int:
    """Return the position from which the last values are nearer to the new level than to the old, without a gap."""
    first = len(level) - RECENT_VALUES
    while first > MIN_BASELINE and abs(level[first - 1] - new) < abs(level[first - 1] - old):
        first -= 1
    while abs(level[first] - new) > abs(level[first] - old):
        first += 1
    return first


def _medians_differ(before: Values, after: Values, min_change_percent: float) -> bool:
    """Return whether the medians differ by at least `min_change_percent`."""
    old, new = float(np.median(before)), float(np.median(after))
    return abs(new - old) * 100 >= min_change_percent * abs(old) and new != old


def _change(series: Values, left: int, cut: int, right: int, p_value: float, *, known_at: int) -> ChangePoint:
    before, after = float(np.median(series[left:cut])), float(np.median(series[cut:right]))
    return ChangePoint(
        index=cut,
        direction="up" if after > before else "down",
        before=before,
        after=after,
        change_percent=100 * (after - before) / abs(before) if before else None,
        p_value=p_value,
        known_at=known_at,
    )


def _finite_values(values: Sequence[float]) -> Values:
    series: Any = np.asarray(values, dtype=np.float64)
    if not np.isfinite(series).all():
        raise ValueError(f"value {int(np.argmin(np.isfinite(series)))} is not a finite number")
    return series  # type: ignore[no-any-return]
