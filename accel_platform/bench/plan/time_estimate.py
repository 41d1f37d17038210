"""Estimated duration of cells, from earlier results or else from the effort's limits."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from accel_platform.analysis.stats.medians import median_ns
from accel_platform.bench.measure.sampling import Sampling
from accel_platform.bench.plan.plan import Cell, CellKey, cell_key, group_by_process
from accel_platform.events.types import ResultRecorded

MIN_WARMUP_RUNS = 3
"""Runs that `sampling.is_warm` needs."""


@dataclass(frozen=True)
class TimeEstimate:
    """Seconds for one cell, loading included, and their basis. An estimate from limits alone is an upper bound."""

    seconds: float
    basis: Literal["earlier result", "effort limits"]


def estimate_times(
    cells: Sequence[Cell],
    earlier: Mapping[CellKey, ResultRecorded],
    fingerprints: Mapping[str, str],
    sampling: Sampling,
) -> dict[Cell, TimeEstimate]:
    """Estimate each cell's duration; the first cell of a process bears its start and loading.

    Parameters
    ----------
    earlier
        Valid results by cell, of any effort. They give the time of one pass; `sampling` gives the number of passes.
    fingerprints
        This host's fingerprints by hardware name.

    Notes
    -----
    For an unmeasured cell, start and loading take the median of the hardware's other cells.
    """
    starts: dict[str, list[float]] = {}
    for result in earlier.values():
        starts.setdefault(result.hardware, []).append(_startup_s(result))
    found = {}
    for group in group_by_process(cells):
        for number, cell in enumerate(group):
            known = earlier.get(cell_key(cell, fingerprints.get(cell.hardware, "")))
            if known is not None:
                seconds = (
                    sampling_time_s(known, sampling)
                    + (known.compile_ms or 0) / 1e3
                    + (0 if number else _startup_s(known))
                )
                found[cell] = TimeEstimate(seconds, "earlier result")
                continue
            others = starts.get(cell.hardware)
            start = median(others) if others and not number else 0.0
            found[cell] = TimeEstimate(start + sampling.warmup_max_s + sampling.max_time_s, "effort limits")
    return found


class RemainingTime:
    """Time that a run still needs: the estimates of its unfinished cells, scaled by how long finished ones took.

    The first group of cells only sets the clock, because models are prepared before it. Until the second is done, the
    estimates are taken as they are.
    """

    def __init__(self, estimates: Mapping[Cell, TimeEstimate]) -> None:
        self._estimates = estimates
        self._first: tuple[float, Collection[Cell]] | None = None

    def after(self, finished: Collection[Cell], at_s: float) -> float:
        """Return the seconds left once `finished` are done; `at_s` is a monotonic clock's reading."""
        if self._first is None and finished:
            self._first = (at_s, frozenset(finished))
        scale = 1.0
        if self._first is not None:
            began_s, prepared = self._first
            expected_s = self._total(cell for cell in finished if cell not in prepared)
            if expected_s > 0:
                scale = (at_s - began_s) / expected_s
        return scale * self._total(cell for cell in self._estimates if cell not in finished)

    def _total(self, cells: Iterable[Cell]) -> float:
        return sum(self._estimates[cell].seconds for cell in cells if cell in self._estimates)


def sampling_time_s(known: ResultRecorded, sampling: Sampling) -> float:
    """Return the seconds of warmup and sampling for work with earlier samples."""
    one = median_ns(known.samples_ns) / 1e9
    warmup = min(sampling.warmup_max_s, max(known.warmup_iterations or 0, MIN_WARMUP_RUNS) * one) + one
    # A cell that met its target earlier does so again in the same time; others run to a limit.
    wanted = max(sampling.min_time_s, sampling.min_count * one, min(sum(known.samples_ns) / 1e9, sampling.max_time_s))
    return warmup + min(wanted, sampling.limit_s)


def _startup_s(result: ResultRecorded) -> float:
    return ((result.load_ms or 0) + float(result.environment.get("import_ms", 0)) + (result.first_ms or 0)) / 1e3
