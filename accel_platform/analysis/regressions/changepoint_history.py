"""Shifts in the whole history of each series, and the events that record regressions."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from statistics import median
from uuid import UUID

from accel_platform.analysis.query.measured import MeasuredProcesses, ProcessResult, by_branch
from accel_platform.analysis.regressions.changepoint import ChangePoint, watch_changes
from accel_platform.analysis.regressions.decision import Decision
from accel_platform.analysis.regressions.thresholds import MEMORY_MEASURES, MIN_MEMORY_CHANGE_MIB, least_change_percent
from accel_platform.analysis.regressions.triage import ShiftDecisions, series_of
from accel_platform.events import Event, EventLog
from accel_platform.events.types import Measure, MeasuredSeries, RegressionFound


@dataclass(frozen=True)
class SeriesHistory:
    """One series in order of time, and the shifts that online detection would have reported."""

    series: MeasuredSeries
    results: int
    newest_ms: float
    shifts: tuple[RegressionFound, ...]


def find_shifts(
    measured: MeasuredProcesses, decided: Mapping[Measure, ShiftDecisions], *, min_change_percent: float
) -> list[SeriesHistory]:
    """Find the shifts of every series with verified latencies, in each measure and on each branch by itself.

    An accepted shift begins a new baseline; the results before it are still searched. Rejected results do not count.
    Nor do those of older commits that were measured late.
    """
    found = []
    for series, processes in measured.items():
        timed = _points(processes, "latency", decided["latency"])
        if timed:
            shifts = [
                shift
                for measure, decisions in decided.items()
                for points in by_branch(_points(processes, measure, decisions))
                for shift in _shifts(series, _without_late(points), measure, decisions, min_change_percent)
            ]
            found.append(SeriesHistory(series, len(timed), _figure(timed[-1], "latency"), tuple(shifts)))
    return found


def _points(processes: Sequence[ProcessResult], measure: Measure, decided: ShiftDecisions) -> list[ProcessResult]:
    """Return the processes that count; of failures also those whose outputs nobody compared, because they ran."""
    counted = decided.without_rejected(processes)
    return [p for p in counted if measure == "failures" or (p.verified and p.figure(measure) is not None)]


def _without_late(points: Sequence[ProcessResult]) -> list[ProcessResult]:
    """Return the processes without those of a commit older than one measured before: no code moved with them."""
    newest: datetime | None = None
    in_order = []
    for point in points:
        if point.committed_at is None or newest is None or point.committed_at >= newest:
            in_order.append(point)
            newest = point.committed_at or newest
    return in_order


def _shifts(
    series: MeasuredSeries,
    points: Sequence[ProcessResult],
    measure: Measure,
    decided: ShiftDecisions,
    min_change_percent: float,
) -> list[RegressionFound]:
    """Return the shifts of one measure of a series."""
    firsts = [shift.first_result for shift in decided.accepted.get(series, ())]
    cuts = [sum(point.result_id < first for point in points) for first in firsts]
    bounds = sorted({0, *cuts, len(points)})
    least = least_change_percent(measure, min_change_percent)
    shifts: list[RegressionFound] = []
    for left, right in pairwise(bounds):
        since_baseline = points[left:right]
        figures = [_figure(point, measure) for point in since_baseline]
        shifts += [
            decided.identify(_shift_event(series, since_baseline, measure, change), points[0].branch)
            for change in watch_changes(figures, min_change_percent=least)
            if measure not in MEMORY_MEASURES or abs(change.after - change.before) >= MIN_MEMORY_CHANGE_MIB
        ]
    return shifts


def regression_event(decision: Decision) -> RegressionFound:
    """Build the event of a decision that is a certain change. Raises ValueError for any other decision."""
    if not decision.moved or decision.first_result is None:
        raise ValueError(f"A decision {decision.state!r} is no finding.")
    return RegressionFound(
        **decision.series.model_dump(),
        regression_id=decision.regression_id or regression_id(decision.series, decision.first_result, decision.measure),
        found_by="check",
        state=decision.state,
        measure=decision.measure,
        before_ms=decision.before_ms,
        after_ms=decision.after_ms,
        before_mib=decision.before_mib,
        after_mib=decision.after_mib,
        change_percent=decision.change_percent,
        p_value=decision.p_value,
        noise_percent=decision.noise_percent,
        processes_before=decision.processes_before,
        processes_after=decision.processes_after,
        first_result=decision.first_result,
        evidence=decision.evidence,
        commits_before=decision.commits_before,
        commits_after=decision.commits_after,
        reason=decision.reason,
    )


def record_regressions(log: EventLog, found: Iterable[RegressionFound], *, source: str) -> list[Event]:
    """Append each finding once. Return the events of new shifts, but not of open shifts that were found again."""
    new = []
    for payload in found:
        event, own = Event.of(payload, source=source), _finding_id(payload)
        if log.append([event], key=f"regression-{own}").new and own == payload.regression_id:
            new.append(event)
    return new


def _finding_id(found: RegressionFound) -> str:
    """Return the id that a finding gives the shift if no open one is the same."""
    return regression_id(series_of(vars(found)), found.first_result, found.measure)


def regression_id(series: MeasuredSeries, first_result: UUID, measure: Measure) -> str:
    """Return the id of a regression that is found for the first time, 12 hex digits.

    It is a hash of the series, its first result at the new level, and the measure, which is left out for latencies.
    """
    words = [series.model_dump_json(), str(first_result), *([measure] if measure != "latency" else [])]
    return hashlib.sha256(" ".join(words).encode()).hexdigest()[:12]


def decision_id(decision: Decision) -> str | None:
    """Return the id under which a decision is recorded; None for one that is not."""
    return regression_event(decision).regression_id if decision.moved and decision.first_result is not None else None


def _shift_event(
    series: MeasuredSeries, points: Sequence[ProcessResult], measure: Measure, change: ChangePoint
) -> RegressionFound:
    evidence = points[change.index : change.known_at + 1]
    before, first = points[change.index - 1], points[change.index]
    sides: tuple[float | None, float | None] = change.before, change.after
    reason = None
    if measure == "failures":
        sides = _median_ms(points[: change.index]), _median_ms(evidence)
        reason = next((p.failure for p in reversed(points[: change.known_at + 1]) if p.failure), None)
    unit = "mib" if measure in MEMORY_MEASURES else "ms"
    return RegressionFound(
        **series.model_dump(),
        **dict(zip((f"before_{unit}", f"after_{unit}"), sides, strict=True)),
        reason=reason,
        regression_id=regression_id(series, first.result_id, measure),
        found_by="history",
        state="regressed" if change.direction == "up" else "improved",
        measure=measure,
        change_percent=None if measure == "failures" else change.change_percent,
        p_value=change.p_value,
        processes_before=change.index,
        processes_after=len(evidence),
        first_result=first.result_id,
        evidence=tuple(point.result_id for point in evidence),
        commits_before=(before.commit,) if before.commit else (),
        commits_after=(first.commit,) if first.commit else (),
    )


def _median_ms(processes: Sequence[ProcessResult]) -> float | None:
    """Return the median latency of the processes that work; None where none does."""
    known = [process.median_ms for process in processes if process.median_ms is not None]
    return median(known) if known else None


def _figure(process: ProcessResult, measure: Measure) -> float:
    figure = process.figure(measure)
    assert figure is not None
    return figure
