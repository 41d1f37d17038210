"""Shifts in the whole history of each series, and the events that record regressions."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from uuid import UUID

from accel_platform.analysis.query.measured import MeasuredProcesses, ProcessResult
from accel_platform.analysis.regressions.changepoint import ChangePoint, watch_changes
from accel_platform.analysis.regressions.regression_test import Decision
from accel_platform.analysis.regressions.triage import ShiftDecisions
from accel_platform.events import Event, EventLog
from accel_platform.events.types import MeasuredSeries, RegressionFound


@dataclass(frozen=True)
class SeriesHistory:
    """One series in order of time, and the shifts that online detection would have reported."""

    series: MeasuredSeries
    results: int
    newest_ms: float
    shifts: tuple[RegressionFound, ...]


def find_shifts(
    measured: MeasuredProcesses, decided: ShiftDecisions, *, min_change_percent: float
) -> list[SeriesHistory]:
    """Find the shifts of every series with verified results.

    An accepted shift begins a new baseline; the results before it are still searched. Rejected results are left out.
    """
    found = []
    for series, processes in measured.items():
        points = [p for p in decided.counted(processes) if p.verified and p.median_ms is not None]
        if not points:
            continue
        firsts = [shift.first_result for shift in decided.accepted.get(series, ())]
        cuts = [sum(point.result_id < first for point in points) for first in firsts]
        bounds = sorted({0, *cuts, len(points)})
        shifts = [
            _found(series, points[left:right], change)
            for left, right in pairwise(bounds)
            for change in watch_changes(
                [_ms(point) for point in points[left:right]], min_change_percent=min_change_percent
            )
        ]
        found.append(SeriesHistory(series, len(points), _ms(points[-1]), tuple(shifts)))
    return found


def regression_event(decision: Decision) -> RegressionFound:
    """Build the event of a decision that is a certain change. Raises ValueError for any other decision."""
    if not decision.moved or decision.first_result is None:
        raise ValueError(f"A decision {decision.state!r} is no finding.")
    return RegressionFound(
        **decision.series.model_dump(),
        regression_id=regression_id(decision.series, decision.first_result),
        found_by="check",
        state=decision.state,
        before_ms=decision.before_ms,
        after_ms=decision.after_ms,
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


def record_regressions(log: EventLog, found: Iterable[RegressionFound], *, source: str) -> int:
    """Append the regressions, each once, and return how many are new."""
    return sum(
        log.append([Event.of(payload, source=source)], key=f"regression-{payload.regression_id}").new
        for payload in found
    )


def regression_id(series: MeasuredSeries, first_result: UUID) -> str:
    """Return the id of a regression, 12 hex digits: a hash of the series and its first result at the new level."""
    return hashlib.sha256(f"{series.model_dump_json()} {first_result}".encode()).hexdigest()[:12]


def decision_id(decision: Decision) -> str | None:
    """Return the id under which a decision is recorded; None for one that is not."""
    first = decision.first_result
    return regression_id(decision.series, first) if decision.moved and first is not None else None


def _found(series: MeasuredSeries, points: Sequence[ProcessResult], change: ChangePoint) -> RegressionFound:
    evidence = points[change.index : change.known_at + 1]
    before, first = points[change.index - 1], points[change.index]
    return RegressionFound(
        **series.model_dump(),
        regression_id=regression_id(series, first.result_id),
        found_by="history",
        state="regressed" if change.direction == "up" else "improved",
        before_ms=change.before,
        after_ms=change.after,
        change_percent=change.change_percent,
        p_value=change.p_value,
        processes_before=change.index,
        processes_after=len(evidence),
        first_result=first.result_id,
        evidence=tuple(point.result_id for point in evidence),
        commits_before=(before.commit,) if before.commit else (),
        commits_after=(first.commit,) if first.commit else (),
    )


def _ms(process: ProcessResult) -> float:
    assert process.median_ms is not None
    return process.median_ms
