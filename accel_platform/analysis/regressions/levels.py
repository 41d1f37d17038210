"""Levels of a series, which lasting shifts divide: within a level, processes differ by noise alone."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from uuid import UUID

import numpy as np

from accel_platform.analysis.query.measured import ProcessResult, by_branch
from accel_platform.analysis.regressions.changepoint import find_changes
from accel_platform.events.types import Measure

MAX_EARLIER_PROCESSES = 50
"""Most earlier processes that give a series' noise, which changes over the years."""
MAX_SPIKE_DEVIATIONS = 5.0
"""Standard deviations at which the spikes of a level are clipped."""


@dataclass(frozen=True)
class Level:
    """A part of a series without a lasting shift."""

    ids: tuple[UUID, ...]
    medians: tuple[float, ...]

    @property
    def even(self) -> list[float]:
        """The medians divided by the level's median, so that levels differ by noise alone.

        Spikes are clipped at `MAX_SPIKE_DEVIATIONS` standard deviations (from the median absolute deviation), because
        one in thirty would double the noise and hide real shifts. That a change must hold without its most extreme
        process guards comparisons against spikes.
        """
        logs = np.log(np.asarray(self.medians) / median(self.medians))
        width = MAX_SPIKE_DEVIATIONS * 1.4826 * float(np.median(np.abs(logs)))
        return [math.exp(value) for value in np.clip(logs, -width, width)]


def even_medians(levels: Sequence[Level]) -> list[float]:
    """Return the even medians of all levels in order of time, which levels of branches measured in turns interrupt."""
    return [value for _, value in sorted(pair for level in levels for pair in zip(level.ids, level.even, strict=True))]


def newest_level(
    earlier: Sequence[ProcessResult], accepted: Collection[UUID], apart: Sequence[Collection[UUID]]
) -> list[ProcessResult]:
    """Return the newest processes since the last accepted level, but for the levels that were left again."""
    stayed = [p for p in earlier if not any(p.result_id in ids for ids in apart)]
    since = max(accepted, default=None)
    return [p for p in stayed if since is None or p.result_id >= since][-MAX_EARLIER_PROCESSES:]


def levels_of(
    earlier: Sequence[ProcessResult],
    measure: Measure,
    accepted: Collection[UUID],
    apart: Sequence[Collection[UUID]],
) -> list[Level]:
    """Divide the newest processes at shifts of the series, and at shifts that a person accepted.

    Between accepted shifts the processes of a branch stand together, so that a branch of another speed is a level and
    no noise. The levels of `apart` are taken out first. One with a single process says nothing of noise. All have the
    figure.
    """
    newest = earlier[-MAX_EARLIER_PROCESSES:]
    left_again = [[p for p in newest if p.result_id in ids] for ids in apart]
    stayed = [p for p in newest if not any(p.result_id in ids for ids in apart)]
    eras = sorted({0, *(sum(p.result_id < first for p in stayed) for first in accepted), len(stayed)})
    stayed = [p for a, b in pairwise(eras) for branch in by_branch(stayed[a:b]) for p in branch]
    cuts = {*eras, *(change.index for change in find_changes(_known_figures(stayed, measure)))}
    bounds = sorted({0, *cuts, len(stayed)})
    parts = [*(part for part in left_again if len(part) > 1), *(stayed[a:b] for a, b in pairwise(bounds))]
    return [Level(tuple(p.result_id for p in part), _known_figures(part, measure)) for part in parts]


def _known_figures(processes: Sequence[ProcessResult], measure: Measure) -> tuple[float, ...]:
    return tuple(figure for process in processes if (figure := process.figure(measure)))
