"""The whole history of each series: when it moved, which shifts a person accepted, and the events that say so."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any
from uuid import UUID

from accel_platform.analysis.changepoint import Change, watch
from accel_platform.analysis.measured import Measured, Process
from accel_platform.analysis.regression import Decision
from accel_platform.errors import InvalidInput, NotFound
from accel_platform.events import Event, EventLog
from accel_platform.events.types import MeasuredSeries, RegressionFound, ShiftAccepted
from accel_platform.warehouse.query import Reader

_IDENTITY = tuple(MeasuredSeries.model_fields)
_ACCEPTED = f"""
SELECT {", ".join(_IDENTITY)}, first_result FROM regressions WHERE state = 'accepted' ORDER BY first_result
"""


@dataclass(frozen=True)
class History:
    """One series in order of time, and the shifts that a watcher of it would have told."""

    series: MeasuredSeries
    results: int
    newest_ms: float
    shifts: tuple[RegressionFound, ...]


def histories(
    measured: Measured, accepted: Mapping[MeasuredSeries, Sequence[UUID]], *, min_change_percent: float
) -> list[History]:
    """Every series that works. An accepted shift begins a new baseline; what was before it is watched as before."""
    found = []
    for series, processes in measured.items():
        points = [process for process in processes if process.verified and process.median_ms is not None]
        if not points:
            continue
        cuts = [sum(point.result_id < first for point in points) for first in accepted.get(series, ())]
        bounds = sorted({0, *cuts, len(points)})
        shifts = [
            _found(series, points[left:right], change)
            for left, right in pairwise(bounds)
            for change in watch([_ms(point) for point in points[left:right]], min_change_percent=min_change_percent)
        ]
        found.append(History(series, len(points), _ms(points[-1]), tuple(shifts)))
    return found


def accepted_shifts(reader: Reader) -> dict[MeasuredSeries, list[UUID]]:
    """The first results of accepted levels, by series, in order of time."""
    found: dict[MeasuredSeries, list[UUID]] = {}
    for row in reader.rows(_ACCEPTED):
        found.setdefault(_series(row), []).append(row["first_result"])
    return found


def regression_of(decision: Decision) -> RegressionFound:
    """The event of a decision that alerts for sure. Raises ValueError for another."""
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


def acceptance(reader: Reader, beginning: str, *, by: str, reason: str) -> ShiftAccepted:
    """The event by which a person accepts a recorded regression, named by the beginning of its id.

    Raises NotFound, or InvalidInput where the beginning is of several, or nobody or no reason is named.
    """
    if not reason.strip() or not by.strip():
        raise InvalidInput("Accepting a shift needs a reason and the name of who accepts it.")
    rows = reader.rows("SELECT * FROM regressions WHERE starts_with(regression_id, ?)", (beginning.strip(),))
    if not beginning.strip() or not rows:
        raise NotFound(
            f"No regression {beginning!r} is recorded: `accel regress list` shows them; "
            "`accel regress check --record` and `accel regress history --record` record what they find."
        )
    if len(rows) > 1:
        raise InvalidInput(f"{beginning!r} begins {', '.join(row['regression_id'] for row in rows)}. Write more of it.")
    [row] = rows
    return ShiftAccepted(
        **_series(row).model_dump(),
        regression_id=row["regression_id"],
        first_result=row["first_result"],
        by=by.strip(),
        reason=reason.strip(),
    )


def record(log: EventLog, found: Iterable[RegressionFound], *, source: str) -> int:
    """Append what was found, each once: finding it again changes nothing. Returns how many are new."""
    return sum(
        log.append([Event.of(payload, source=source)], key=f"regression-{payload.regression_id}").new
        for payload in found
    )


def regression_id(series: MeasuredSeries, first_result: UUID) -> str:
    """12 hex digits, the same whoever finds it and how often."""
    return hashlib.sha256(f"{series.model_dump_json()} {first_result}".encode()).hexdigest()[:12]


def _found(series: MeasuredSeries, points: Sequence[Process], change: Change) -> RegressionFound:
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


def _series(row: Mapping[str, Any]) -> MeasuredSeries:
    return MeasuredSeries.model_validate({name: row[name] for name in _IDENTITY})


def _ms(process: Process) -> float:
    assert process.median_ms is not None
    return process.median_ms
