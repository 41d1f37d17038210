"""When did a series of measurements move, and by how much? Pure functions of numbers in order.

Two questions, two tests. *Looking back*, a scan of rank sums finds lasting shifts, however small beside the noise.
*Watching*, the last three values are held against the noise that this very series has shown: a large shift is known two
values after it happened. Ranks and medians do not follow spikes, and one lone value never makes a change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr, stdtr

Values = npt.NDArray[np.float64]

MIN_SEGMENT = 5
"""The scan leaves at least so many values on either side of a change: fewer have too few ranks to tell."""
RECENT_VALUES = 3
"""So many values must agree before a watcher says anything: the change is known two values after it happened."""
MIN_BASELINE = 8
"""A watcher needs so many values to know the noise."""
MAX_WINDOW = 120
"""A watcher remembers so many values of the level in force: noise changes over the years."""
ALPHA = 0.01
"""Looking back: the chance that a series without a change shows one somewhere."""
ALPHA_LATE = 1e-4
"""The same for the last few values, which the scan cannot judge."""
ALPHA_SCAN_ONLINE = 1e-5
ALPHA_RECENT = 3e-6
"""Watching: the same for each new value. Permuted real series alert less than once in 10,000 values with these."""
_TAIL = 4.0
"""Degrees of freedom of Student's t as the noise of a series that has shown no outlier yet: heavier than it looks."""


@dataclass(frozen=True)
class ChangePoint:
    """A lasting shift."""

    index: int
    """Position of the first value at the new level, from 0."""
    direction: Literal["up", "down"]
    before: float
    """Median of the values since the change before it, in the unit of the series."""
    after: float
    """Median of the values from here to the next change, or to where a watcher had come."""
    change_percent: float | None
    """None where `before` is 0."""
    p_value: float
    """Chance of a shift so clear in a series that never moved, all positions considered."""
    known_at: int
    """Position of the value after which it was known."""


def find_changes(values: Sequence[float], *, min_change_percent: float = 1.0) -> list[ChangePoint]:
    """Every lasting shift of a finished series, in order: binary segmentation by the scan, then a look at its end.

    Shifts below `min_change_percent` are not reported. Raises ValueError for a value that is not finite.
    """
    series = _checked(values)
    cuts = _segment(series)
    cuts = _pruned(series, cuts, min_change_percent)
    start = cuts[-1] if cuts else 0
    late = _recent_change(series[start:], min_change_percent, ALPHA_LATE)
    bounds = [0, *cuts, *([start + late[0]] if late else []), len(series)]
    changes = []
    for left, cut, right in zip(bounds, bounds[1:], bounds[2:], strict=False):
        fresh = late is not None and cut == bounds[-2]
        p_value = late[1] if late is not None and fresh else _scan(series[left:right], at=cut - left)[1]
        changes.append(_change(series, left, cut, right, p_value, known_at=len(series) - 1))
    return changes


def watch_changes(values: Sequence[float], *, min_change_percent: float = 1.0) -> list[ChangePoint]:
    """The alerts of a watcher who sees the values one by one, and after each alert takes the new level for granted.

    Raises ValueError for a value that is not finite.
    """
    series = _checked(values)
    changes: list[ChangePoint] = []
    start = 0
    for seen in range(MIN_BASELINE + RECENT_VALUES, len(series) + 1):
        first = max(start, seen - MAX_WINDOW)
        level = series[first:seen]
        found = _recent_change(level, min_change_percent, ALPHA_RECENT)
        if found is None and len(level) >= 2 * MIN_BASELINE:
            cut, p_value = _scan(level)
            if p_value < ALPHA_SCAN_ONLINE and _moved(level[:cut], level[cut:], min_change_percent):
                found = cut, p_value
        if found is not None:
            cut, p_value = found
            changes.append(_change(series, start, first + cut, seen, p_value, known_at=seen - 1))
            start = first + cut
    return changes


def _segment(series: Values) -> list[int]:
    """Cuts of the series, in order: the clearest one, and those on either side of it."""
    pending, cuts = [(0, len(series))], []
    while pending:
        left, right = pending.pop()
        if right - left < 2 * MIN_SEGMENT:
            continue
        cut, p_value = _scan(series[left:right])
        if p_value < ALPHA:
            cuts.append(left + cut)
            pending += [(left, left + cut), (left + cut, right)]
    return sorted(cuts)


def _pruned(series: Values, cuts: list[int], min_change_percent: float) -> list[int]:
    """Without the cuts that their neighbours, found later, have explained away, and those too small to matter."""
    cuts = list(cuts)
    while cuts:
        bounds = [0, *cuts, len(series)]
        doubt = []
        for left, cut, right in zip(bounds, bounds[1:], bounds[2:], strict=False):
            _, p_value = _scan(series[left:right], at=cut - left)
            moved = _moved(series[left:cut], series[cut:right], min_change_percent)
            doubt.append(p_value if moved else 1.0)
        worst = int(np.argmax(doubt))
        if doubt[worst] < ALPHA:
            break
        del cuts[worst]
    return cuts


def _scan(values: Values, at: int | None = None) -> tuple[int, float]:
    """The cut with the clearest difference in rank, and the chance of one so clear anywhere if nothing moved.

    With `at` that cut is judged, by the same standard. The statistic is the Wilcoxon rank sum of the values before each
    cut over its standard deviation under exchangeability, ties included.
    """
    count = len(values)
    ranks = _ranks(values)
    centred = ranks - ranks.mean()
    spread = float(centred @ centred)
    if count < 2 * MIN_SEGMENT or spread == 0.0:
        return count // 2, 1.0
    before = np.arange(1, count)
    sums = np.abs(np.cumsum(centred)[:-1])
    clarity = sums / np.sqrt(spread * before * (count - before) / (count * (count - 1)))
    clarity[: MIN_SEGMENT - 1] = clarity[count - MIN_SEGMENT :] = 0.0
    cut = int(np.argmax(clarity)) + 1 if at is None else at
    strength = float(sums[cut - 1] / np.sqrt(spread * cut * (count - cut) / (count * (count - 1))))
    return cut, _scan_p_value(strength / _memory(values[:cut], values[cut:]), count)


def _scan_p_value(strength: float, count: int) -> float:
    """Chance that the largest of the standardised sums exceeds `strength`.

    The tail approximation of James, James & Siegmund, "Tests for a change-point", Biometrika 74 (1987), with
    Siegmund's correction for sums that are looked at only at whole positions.
    """
    if strength <= 1.0:
        return 1.0
    share = np.arange(MIN_SEGMENT, count - MIN_SEGMENT + 1) / count
    step = strength / np.sqrt(count * share * (1 - share))
    half = step / 2
    overshoot = (2 / step) * (ndtr(half) - 0.5) / (half * ndtr(half) + _density(half))
    integral = float(np.trapezoid(overshoot / (share * (1 - share)), share))
    # At two positions or fewer there is nothing to integrate over; one position's own chance is the least there is.
    single = 2 * float(ndtr(-strength))
    return min(1.0, max(single, strength * float(_density(strength)) * integral))


# As scipy.stats has them, which takes a second to import: every process that reads a series would wait for it.
def _ranks(values: Values) -> Values:
    """1 for the smallest, and so on; equal ones share the mean of theirs."""
    _, which, count = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(count) - (count - 1) / 2)[which])


def _density(z: Values | float) -> Values:
    """Of the standard normal distribution."""
    return np.asarray(np.exp(-np.square(z) / 2) / np.sqrt(2 * np.pi))


def _memory(before: Values, after: Values) -> float:
    """By how much a sum over values that follow one another spreads more than one over independent values, at least 1.

    From the correlation of neighbours around the level of their own side, where it is too large to be chance:
    sqrt((1 + r) / (1 - r)), as for a first-order autoregressive series.
    """
    around = np.concatenate([_ranks(part) - (len(part) + 1) / 2 for part in (before, after)])
    total = float(around @ around)
    correlation = float(around[:-1] @ around[1:]) / total if total else 0.0
    if correlation * np.sqrt(len(around)) < 2.0:
        return 1.0
    correlation = min(correlation, 0.95)
    return float(np.sqrt((1 + correlation) / (1 - correlation)))


def _recent_change(level: Values, min_change_percent: float, alpha: float) -> tuple[int, float] | None:
    """Where the last few values left the level of those before them, and the chance of it; None where they did not.

    Each of the last `RECENT_VALUES` values has a chance of lying so far on that side, and the nearest of them decides:
    two spikes beside an ordinary value are no level. The chance is that of a heavy-tailed noise of the series' own
    width, or the share of earlier values as far out where that is larger: in a series that jumps now and then, a jump
    is no news.
    """
    baseline, recent = level[:-RECENT_VALUES], level[-RECENT_VALUES:]
    if len(baseline) < MIN_BASELINE:
        return None
    middle = float(np.median(baseline))
    width = _width(baseline, middle)
    for side in (1.0, -1.0):
        away = side * (recent - middle)
        if away.min() <= 0 or not _moved(baseline, recent, min_change_percent):
            continue
        seen = (side * (baseline - middle))[:, None] >= away
        chances = np.maximum(stdtr(_TAIL, -away / width), seen.sum(axis=0) / (len(baseline) + 1))
        p_value = min(1.0, 2 * float(chances.max()) ** RECENT_VALUES)
        if p_value < alpha:
            return _first_of(level, middle, float(np.median(recent))), p_value
    return None


def _width(baseline: Values, middle: float) -> float:
    """Standard deviation of the noise and of the level's own estimate together, by medians; never 0.

    The larger of the spread around the median and of that between neighbours, since a series may do either.
    """
    around = 1.4826 * float(np.median(np.abs(baseline - middle)))
    between = 1.4826 * float(np.median(np.abs(np.diff(baseline)))) / np.sqrt(2)
    # The variance of a median of n normal values is pi / 2 / n of theirs. A series without noise has its resolution.
    floor = 1e-3 * abs(middle) or float(np.finfo(float).tiny)
    return float(max(around, between, floor) * np.sqrt(1 + np.pi / 2 / len(baseline)))


def _first_of(level: Values, old: float, new: float) -> int:
    """The first of the last values that is nearer to the new level than to the old, without a gap behind it."""
    first = len(level) - RECENT_VALUES
    while first > MIN_BASELINE and abs(level[first - 1] - new) < abs(level[first - 1] - old):
        first -= 1
    while abs(level[first] - new) > abs(level[first] - old):
        first += 1
    return first


def _moved(before: Values, after: Values, min_change_percent: float) -> bool:
    """Whether the medians differ by enough to matter."""
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


def _checked(values: Sequence[float]) -> Values:
    series: Any = np.asarray(values, dtype=np.float64)
    if not np.isfinite(series).all():
        raise ValueError(f"value {int(np.argmin(np.isfinite(series)))} is not a finite number")
    return series  # type: ignore[no-any-return]
