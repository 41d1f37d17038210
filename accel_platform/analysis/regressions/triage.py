"""Decisions of people about recorded shifts, and the events that hold them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, TypedDict, cast, get_args
from uuid import UUID

from accel_platform.analysis.query.filters import Selection
from accel_platform.analysis.query.measured import ProcessResult, read_measured_series
from accel_platform.analysis.regressions.thresholds import MIN_CHANGE_PERCENT, least_change_percent
from accel_platform.errors import Conflict, InvalidInput, NotFound
from accel_platform.events import Event, EventLog, Snapshot
from accel_platform.events.types import (
    DecidedShift,
    Measure,
    MeasuredSeries,
    Mode,
    RegressionFound,
    ShiftAccepted,
    ShiftRejected,
    ShiftReopened,
)
from accel_platform.warehouse.reader import Reader

Rows = Sequence[Mapping[str, Any]]
_IDENTITY = tuple(MeasuredSeries.model_fields)
_ACCEPTED = f"""
SELECT {", ".join(_IDENTITY)}, measure, direction, before_ms, after_ms, before_mib, after_mib, first_result,
    commits_before, accepted_by
FROM regressions WHERE state = 'accepted' ORDER BY first_result
"""
# A shift passes the filters that its first result passes.
_RECORDED = """
SELECT s.* FROM regressions AS s LEFT JOIN results AS r ON r.result_id = s.first_result
WHERE ($state IS NULL OR s.state = $state) AND ($branch IS NULL OR s.branch = $branch) AND {condition}
ORDER BY s.found_at DESC, s.regression_id
"""
_UNACCEPTED = f"""
SELECT {", ".join(_IDENTITY)}, regression_id, measure, state, direction, before_ms, after_ms, before_mib, after_mib,
    noise_percent, first_result, evidence, commits_after, branch
FROM regressions WHERE state IN ('open', 'gone') ORDER BY first_result
"""
_DECISIONS = """
SELECT recorded_at, event_id, payload->>'$.by' AS by,
    CASE type WHEN 'ShiftAccepted' THEN 'accepted' WHEN 'ShiftRejected' THEN 'rejected' ELSE 'open' END AS state
FROM other_events
WHERE type IN ('ShiftAccepted', 'ShiftRejected', 'ShiftReopened') AND payload->>'$.regression_id' = ?
"""
_STATES: dict[type[DecidedShift], str] = {ShiftAccepted: "accepted", ShiftRejected: "rejected", ShiftReopened: "open"}
_WORDS = {"accepted": "accepted", "rejected": "rejected", "open": "reopened"}
_MOST_AT_ONCE = 10
"""Decisions about one shift that may be stored while one more is."""
_REJECTED = "SELECT measure, unnest(rejected_results) AS result_id FROM regressions WHERE state = 'rejected'"


@dataclass(frozen=True)
class AcceptedShift:
    """A shift to a level that a person accepted."""

    first_result: UUID
    """The first result at the new level."""
    commits_before: frozenset[str] = frozenset()
    """Commits at the old level, whenever they are measured."""
    by: str = ""
    """Who accepted it."""
    row: Mapping[str, Any] = field(default_factory=dict)
    """Its measure, direction and figures, as in the table `regressions`."""

    def is_reached_by(self, process: ProcessResult) -> bool:
        """Return whether a process is nearer to this level than to the one before it."""
        return process.figure(self.row["measure"]) is not None and not _is_nearer_before(process, self.row)


@dataclass(frozen=True)
class UnacceptedShift:
    """A recorded shift that is open, or gone because its commit was reverted."""

    first_result: UUID
    evidence: frozenset[UUID]
    """Results that showed it, the first at its level among them."""
    commits: frozenset[str]
    """Commits at its level."""
    is_open: bool
    row: Mapping[str, Any] = field(default_factory=dict)
    """Its id, branch, direction and figures, as in the table `regressions`."""

    def includes(self, process: ProcessResult) -> bool:
        """Return whether a process measured the level of this shift."""
        return process.commit in self.commits or process.result_id in self.evidence

    def is_found_again(self, found: RegressionFound, branch: str | None) -> bool:
        """Return whether a finding on a branch is this shift: from the same level, and no further than noise explains.

        One that goes further is another shift, about which people decide by itself.
        """
        row = self.row
        if not self.is_open or (row["direction"], row["branch"]) != (found.state, branch):
            return False
        if row["measure"] == "failures":
            return True
        unit = "ms" if row["measure"] == "latency" else "mib"
        before, after = row[f"before_{unit}"], row[f"after_{unit}"]
        now_before, now_after = getattr(found, f"before_{unit}"), getattr(found, f"after_{unit}")
        least = least_change_percent(row["measure"], MIN_CHANGE_PERCENT)
        noise = max(row["noise_percent"] or 0.0, found.noise_percent or 0.0, least)
        further = now_after / after if found.state == "regressed" else after / now_after
        return bool(abs(now_before - before) < abs(now_before - after) and further <= 1 + noise / 100)


class RecordedShift(TypedDict):
    """Row of the table `regressions`; the fields of its series are those of `MeasuredSeries`."""

    regression_id: str
    state: Literal["open", "accepted", "rejected", "gone"]
    direction: Literal["regressed", "improved"]
    found_by: Literal["check", "history"]
    model_id: str
    hardware: str
    choice: str | None
    device_id: str
    fingerprint: str
    mode: Mode
    precision: str
    batch_size: int
    sequence_length: int | None
    processes: int | None
    weights_sha256: str | None
    measure: Measure
    before_ms: float | None
    after_ms: float | None
    """Both are None where the cell failed, and of memory."""
    before_mib: float | None
    after_mib: float | None
    """Both are None for other measures than memory."""
    change_percent: float | None
    p_value: float | None
    noise_percent: float | None
    processes_before: int
    processes_after: int
    first_result: UUID
    evidence: list[UUID]
    commits_before: list[str] | None
    commits_after: list[str] | None
    branch: str | None
    reason: str | None
    found_at: datetime
    runs: int
    last_seen: datetime | None
    accepted_at: datetime | None
    accepted_by: str | None
    accepted_reason: str | None
    rejected_at: datetime | None
    rejected_by: str | None
    rejected_reason: str | None
    rejected_results: list[UUID] | None


def recorded_shifts(
    reader: Reader, selection: Selection, *, state: str | None = None, branch: str | None = None
) -> list[RecordedShift]:
    """Return the recorded regressions and improvements of a selection, of one state and branch or all, newest first."""
    condition, values = selection.where()
    rows = reader.rows(_RECORDED.format(condition=condition), {**values, "state": state, "branch": branch})
    return cast("list[RecordedShift]", rows)


@dataclass(frozen=True)
class ShiftDecisions:
    """The last decision on each recorded shift of one measure that a person decided about."""

    accepted: Mapping[MeasuredSeries, Sequence[AcceptedShift]] = field(default_factory=dict)
    """Accepted shifts in order of time: each begins a new baseline of its series."""
    rejected: frozenset[UUID] = frozenset()
    """Results at rejected levels: neither candidate nor baseline, and no measure of the noise of their series."""
    unaccepted: Mapping[MeasuredSeries, Sequence[UnacceptedShift]] = field(default_factory=dict)
    """Recorded shifts that nobody decided about, in order of time."""

    def identify(self, found: RegressionFound, branch: str | None) -> RegressionFound:
        """Return a finding on a branch with the id of the open shift that it finds again, if it does."""
        shifts = self.unaccepted.get(series_of(vars(found)), ())
        again = (shift.row["regression_id"] for shift in reversed(shifts) if shift.is_found_again(found, branch))
        return found.model_copy(update={"regression_id": next(again, found.regression_id)})

    def without_rejected(self, processes: Iterable[ProcessResult]) -> list[ProcessResult]:
        """Return the processes that were not rejected."""
        return [process for process in processes if process.result_id not in self.rejected]


def read_decisions(reader: Reader) -> dict[Measure, ShiftDecisions]:
    """Return the decisions in the tables, of every measure. Raises WarehouseEmpty before the first publish."""
    tables = [reader.rows(sql) for sql in (_ACCEPTED, _REJECTED, _UNACCEPTED)]
    return {
        measure: _of_measure(*([row for row in rows if row["measure"] == measure] for rows in tables))
        for measure in get_args(Measure)
    }


def _of_measure(accepted: Rows, rejected: Rows, unaccepted: Rows) -> ShiftDecisions:
    levels: dict[MeasuredSeries, list[AcceptedShift]] = {}
    for row in accepted:
        shift = AcceptedShift(row["first_result"], frozenset(row["commits_before"] or ()), row["accepted_by"], row)
        levels.setdefault(series_of(row), []).append(shift)
    shifts: dict[MeasuredSeries, list[UnacceptedShift]] = {}
    for row in unaccepted:
        evidence, commits = frozenset((row["first_result"], *row["evidence"])), frozenset(row["commits_after"] or ())
        shifts.setdefault(series_of(row), []).append(
            UnacceptedShift(row["first_result"], evidence, commits, is_open=row["state"] == "open", row=row)
        )
    return ShiftDecisions(levels, frozenset(row["result_id"] for row in rejected), shifts)


def build_acceptance(reader: Reader, beginning: str, *, by: str, reason: str) -> ShiftAccepted:
    """Build the event by which a person accepts the new level of a recorded regression.

    `beginning` is the beginning of its id. Raises NotFound, or InvalidInput if several ids begin so, or `by` or
    `reason` is blank.
    """
    row = find_regression(reader, beginning)
    return ShiftAccepted(**_shared_fields(row, by, reason))


def build_rejection(reader: Reader, beginning: str, *, by: str, reason: str) -> ShiftRejected:
    """Build the event by which a person rejects a recorded regression.

    The event names the results that no longer count: the evidence, and the results of its series and branch so far from
    the first of these on. Results nearer to the level before, or of a shift recorded later, are left out. Parameters
    and errors are those of `build_acceptance`.
    """
    row = find_regression(reader, beginning)
    series, evidence = series_of(row), {row["first_result"], *row["evidence"]}
    recorded = reader.rows("SELECT * FROM regressions WHERE model_id = ?", (series.model_id,))
    of_series = [r for r in recorded if series_of(r) == series and r["measure"] == row["measure"]]
    of_series = [r for r in of_series if _is_same_branch(r["branch"], row["branch"])]
    later = [r["first_result"] for r in of_series if r["first_result"] > max(evidence)]
    measured = read_measured_series(reader, model=series.model_id, hardware=series.hardware).get(series, [])
    since = [p for p in measured if row["first_result"] <= p.result_id and all(p.result_id < first for first in later)]
    since = [process for process in since if _is_same_branch(process.branch, row["branch"])]
    results = evidence | {process.result_id for process in since if not _is_nearer_before(process, row)}
    return ShiftRejected(**_shared_fields(row, by, reason), results=tuple(sorted(results)))


def _is_same_branch(one: str | None, other: str | None) -> bool:
    """Return whether two branches may be one: None is of unknown branch."""
    return one is None or other is None or one == other


def build_reopening(reader: Reader, beginning: str, *, by: str, reason: str) -> ShiftReopened:
    """Build the event by which a person withdraws the last decision about a recorded regression.

    Parameters and errors are those of `build_acceptance`.
    """
    row = find_regression(reader, beginning)
    return ShiftReopened(**_shared_fields(row, by, reason))


class AlreadyDecided(Conflict):
    """A decision that equals the last one about the regression, which `by` made."""

    def __init__(self, regression_id: str, state: str, by: str) -> None:
        super().__init__(f"The regression {regression_id} was {_WORDS[state]} already, by {by}.")
        self.by = by


def decision_key(reader: Reader, log: EventLog, decided: DecidedShift) -> str:
    """Return the name of the segment for a decision: of two decisions on one state only the first can take it.

    Raises AlreadyDecided where the last decision in the log says the same, and Conflict where there is none to
    withdraw. Tables alone would not do, because they follow the log after seconds.
    """
    state = _state(decided)
    last = _last_decision(reader, log, decided.regression_id)
    if last is None and state == "open":
        raise Conflict(f"Nobody decided about the regression {decided.regression_id}: there is nothing to withdraw.")
    if last is not None and last.state == state:
        raise AlreadyDecided(decided.regression_id, state, last.by)
    # So the names sort by time, in which the log is read.
    return f"decided-{decided.regression_id}-{0 if last is None else last.event_id}"


def append_decision(reader: Reader, log: EventLog, event: Event, *, prefix: str = "") -> str:
    """Append a decision and return its segment, whose name begins with `prefix`.

    Raises AlreadyDecided where the last decision says the same, also one that is stored at the same moment.
    """
    assert isinstance(event.payload, DecidedShift)
    for _ in range(_MOST_AT_ONCE):
        segment = prefix + decision_key(reader, log, event.payload)
        if log.append([event], key=segment).new:
            return segment
    raise Conflict(f"Others decide about the regression {event.payload.regression_id} at this moment: look again.")


@dataclass(frozen=True, order=True)
class _Decision:
    """A decision about a shift, in the order in which they count."""

    recorded_at: datetime
    event_id: UUID
    state: str
    by: str


def _last_decision(reader: Reader, log: EventLog, regression_id: str) -> _Decision | None:
    """Return the last decision about a regression, of the tables or of what the log holds beyond them."""
    rows, tables = reader.rows_with_snapshot(_DECISIONS, (regression_id,))
    found = [_Decision(row["recorded_at"], row["event_id"], row["state"], row["by"]) for row in rows]
    try:
        published = log.load_snapshot(tables).segments
    except NotFound:  # because the tables are of another log
        published = frozenset()
    newer = Snapshot(log.snapshot().segments - published)
    for event in log.read(newer, types={kind.__name__ for kind in _STATES}):
        decided = event.payload
        if isinstance(decided, DecidedShift) and decided.regression_id == regression_id:
            found.append(_Decision(event.recorded_at, event.event_id, _state(decided), decided.by))
    return max(found, default=None)


def _state(decided: DecidedShift) -> str:
    return _STATES[type(decided)]


def _is_nearer_before(process: ProcessResult, row: Mapping[str, Any]) -> bool:
    """Return whether a result is nearer to the level before the shift, the condition that also makes a shift `gone`."""
    measure: Measure = row["measure"]
    if measure == "failures":
        return (process.failure is None) is bool(row["direction"] == "regressed")
    figure, unit = process.figure(measure), "ms" if measure == "latency" else "mib"
    if figure is None:
        return False
    return bool(abs(figure - row[f"before_{unit}"]) < abs(figure - row[f"after_{unit}"]))


def find_regression(reader: Reader, beginning: str) -> RecordedShift:
    """Return the recorded regression whose id begins so. Raises NotFound, or InvalidInput for several."""
    rows = reader.rows("SELECT * FROM regressions WHERE starts_with(regression_id, ?)", (beginning.strip(),))
    if not beginning.strip() or not rows:
        raise NotFound(
            f"No regression {beginning!r} is recorded: `accel regress list` shows them; "
            "`accel regress check --record` and `accel regress history --record` record what they find."
        )
    if len(rows) > 1:
        raise InvalidInput(f"{beginning!r} begins {', '.join(row['regression_id'] for row in rows)}. Write more of it.")
    return cast("RecordedShift", rows[0])


def _shared_fields(row: Mapping[str, Any], by: str, reason: str) -> dict[str, Any]:
    """Return the fields that acceptance and rejection share. Raises InvalidInput for a blank name or reason."""
    if not reason.strip() or not by.strip():
        raise InvalidInput("Deciding about a shift needs a reason and the name of who decides.")
    return {
        **series_of(row).model_dump(),
        "regression_id": row["regression_id"],
        "first_result": row["first_result"],
        "by": by.strip(),
        "reason": reason.strip(),
    }


def series_of(row: Mapping[str, Any]) -> MeasuredSeries:
    """Return the series of a row or of fields that name one."""
    return MeasuredSeries.model_validate({name: row[name] for name in _IDENTITY})
