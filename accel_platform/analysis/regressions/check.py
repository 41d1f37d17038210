"""Comparison of candidate runs with baseline runs, cell by cell, and the reasons why cells are not comparable."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args
from uuid import UUID

from accel_platform.analysis.query.measured import ProcessResult, attach_samples, read_series_of_runs
from accel_platform.analysis.query.run_refs import ObservedDevices, RunSet, differing_keys, observed_devices
from accel_platform.analysis.regressions.regression_test import (
    MIN_CHANGE_PERCENT,
    MIN_EARLIER_PROCESSES,
    Decision,
    State,
    decide,
)
from accel_platform.analysis.regressions.triage import AcceptedShift, ShiftDecisions, read_decisions
from accel_platform.events.types import MeasuredSeries
from accel_platform.warehouse.reader import Reader

_STATES: tuple[State, ...] = get_args(State)


@dataclass(frozen=True)
class Check:
    """Decisions on all cells of both sides."""

    baseline: RunSet
    candidate: RunSet
    decisions: tuple[Decision, ...]
    snapshot_id: str

    def count(self, state: State) -> int:
        return sum(decision.state == state for decision in self.decisions)

    @property
    def exit_code(self) -> int:
        """0 if no cell regressed, 1 if one did, 2 if every cell has insufficient data or one was disturbed."""
        if self.count("regressed"):
            return 1
        if any(decision.disturbed for decision in self.decisions):
            return 2
        return 0 if self.count("insufficient_data") < len(self.decisions) else 2


def check(
    reader: Reader,
    baseline: RunSet,
    candidate: RunSet,
    *,
    min_change_percent: float = MIN_CHANGE_PERCENT,
    again: Collection[str] = (),
) -> Check:
    """Decide every cell that either side measured.

    `again` are runs that measured suspicious cells once more. These runs alone decide those cells, because the first
    measurement may have looked suspicious by chance.
    """
    old, new = set(baseline.run_ids), {*candidate.run_ids, *again}
    snapshot_id = reader.snapshot_id
    decided = read_decisions(reader)
    cells = _cells(reader, old, new, set(again), decided)
    devices = observed_devices(reader, old | new)
    alike: dict[MeasuredSeries, list[_Cell]] = {}
    for cell in cells:
        alike.setdefault(_without_device(cell.series), []).append(cell)
    decisions = [
        _decide_two_sided(cell, decided.accepted.get(cell.series, ()), min_change_percent)
        if (cell.before or cell.accepted) and (cell.after or cell.rejected)
        else _decide_one_sided(cell, alike[_without_device(cell.series)], devices)
        for cell in cells
    ]
    ordered = sorted((decision for decision in decisions if decision is not None), key=_order)
    return Check(baseline, candidate, tuple(ordered), snapshot_id)


def suspicious_cells(checked: Check) -> tuple[Decision, ...]:
    """Return the cells that another measurement would settle."""
    return tuple(decision for decision in checked.decisions if decision.alerts)


@dataclass(frozen=True)
class _Cell:
    """The processes of one series that count, in order of time."""

    series: MeasuredSeries
    before: list[ProcessResult]
    after: list[ProcessResult]
    again: list[ProcessResult]
    """Those of `after` that were measured to confirm."""
    others: list[ProcessResult]
    """All processes but the candidate's."""
    rejected: int
    """Number of the candidate's processes that do not count."""
    accepted: bool
    """True where `before` holds the processes at a level that was accepted since the baseline, if any."""


def _cells(reader: Reader, old: set[str], new: set[str], again: set[str], decided: ShiftDecisions) -> list[_Cell]:
    """Return the series in which either side took part, with the samples of the processes to compare."""
    measured = {
        series: found for series, found in read_series_of_runs(reader, old | new).items() if _of(found, old | new)
    }
    cells = [_cell(series, found, decided, old, new, again) for series, found in measured.items()]
    known = attach_samples(reader, [p for cell in cells for p in (*cell.before, *cell.after, *_newest(cell.others))])

    def sampled(processes: Sequence[ProcessResult]) -> list[ProcessResult]:
        return [known.get(process.result_id, process) for process in processes]

    return [
        replace(
            cell,
            before=sampled(cell.before),
            after=sampled(cell.after),
            again=sampled(cell.again),
            others=sampled(cell.others),
        )
        for cell in cells
    ]


def _cell(
    series: MeasuredSeries,
    found: Sequence[ProcessResult],
    decided: ShiftDecisions,
    old: Collection[str],
    new: Collection[str],
    again: Collection[str],
) -> _Cell:
    """Build the cell of a series; if no baseline process counts, use the newest ones measured before it."""
    counted = decided.counted(found)
    before, after, others = _of(counted, old), _of(counted, new), _others(counted, new)
    if not before and (rejected := _of(found, old)):
        before = _newest([process for process in others if process.result_id < rejected[0].result_id])
    level = _accepted_level(before, after, decided.accepted.get(series, ())) if before and after else None
    if level is not None:
        # What was measured again at the old level is neither baseline nor noise of the new one.
        others = [p for p in others if p.result_id < level.first_result or p.commit not in level.commits_before]
        before = _at_level(level, others, decided.undecided.get(series, ()))
    rejections = len(_of(found, new)) - len(after)
    return _Cell(series, before, after, _of(counted, again), others, rejections, level is not None)


def _at_level(
    level: AcceptedShift, processes: Sequence[ProcessResult], undecided: Sequence[UUID]
) -> list[ProcessResult]:
    """Return the first processes at an accepted level, as many as the noise estimate needs.

    The first, and none since a shift that nobody accepted: else a regression that was found and pushed once more would
    be its own baseline.
    """
    end = next((first for first in undecided if first > level.first_result), None)
    since = [p for p in processes if p.result_id >= level.first_result and (end is None or p.result_id < end)]
    return since[:MIN_EARLIER_PROCESSES]


def _accepted_level(
    before: Sequence[ProcessResult], after: Sequence[ProcessResult], accepted: Sequence[AcceptedShift]
) -> AcceptedShift | None:
    """Return the last shift accepted between baseline and candidate, whose level is the one to compare with.

    The baseline stands before a shift if it was measured before, or if the shift was found against its commit: measured
    again later, that commit is no newer.
    """
    commits = {process.commit for process in before}
    since = [
        shift
        for shift in accepted
        if (before[0].result_id < shift.first_result or commits & shift.commits_before)
        and shift.first_result <= after[-1].result_id
    ]
    return since[-1] if since else None


def _decide_two_sided(cell: _Cell, accepted: Sequence[AcceptedShift], min_change_percent: float) -> Decision:
    """Decide a cell of both sides."""
    if not cell.after:
        why = "its shift was rejected"
        return Decision(cell.series, "ok", why, processes_before=len(cell.before), processes_after=cell.rejected)
    if not cell.before:
        return Decision(cell.series, "ok", "its new level was accepted", processes_after=len(cell.after))
    decided = decide(
        cell.series,
        cell.before,
        cell.again or cell.after,
        cell.others,
        min_change_percent=min_change_percent,
        accepted=[shift.first_result for shift in accepted],
    )
    return replace(decided, first_result=cell.after[0].result_id)


def _decide_one_sided(cell: _Cell, alike: Sequence[_Cell], devices: ObservedDevices) -> Decision | None:
    """Decide a cell of one side only; return None if an incomparable cell of the other side already reports it."""
    decision = decide(cell.series, cell.before, cell.after, ())
    if not cell.before:
        return None if any(other.before and not other.after for other in alike) else decision
    unlike = next((other for other in alike if other.after and not other.before), None)
    if unlike is None:
        return decision
    what = _differences(cell.before[-1], unlike.after[-1], cell.series, unlike.series, devices)
    return replace(decision, processes_after=len(unlike.after), reason=f"not comparable: {what}")


def _differences(
    before: ProcessResult, after: ProcessResult, series: MeasuredSeries, other: MeasuredSeries, devices: ObservedDevices
) -> str:
    """Return the differences of two fingerprints, from what the runs observed of their devices."""
    was, now = (
        {**devices.get((p.run_id, s.hardware, s.choice), {}), "device": s.device_id, "threads": p.threads}
        for p, s in ((before, series), (after, other))
    )
    lines = [
        f"{name} {was.get(name, 'unknown')} before, {now.get(name, 'unknown')} now" for name in differing_keys(was, now)
    ]
    return "; ".join(lines) or f"fingerprint {series.fingerprint} before, {other.fingerprint} now"


def _without_device(series: MeasuredSeries) -> MeasuredSeries:
    """Return the series without its device and fingerprint."""
    return series.model_copy(update={"device_id": "", "fingerprint": ""})


def _of(processes: Sequence[ProcessResult], run_ids: Collection[str]) -> list[ProcessResult]:
    return [process for process in processes if process.run_id in run_ids]


def _others(processes: Sequence[ProcessResult], run_ids: Collection[str]) -> list[ProcessResult]:
    return [process for process in processes if process.run_id not in run_ids]


def _newest(processes: Sequence[ProcessResult]) -> list[ProcessResult]:
    """Return the newest processes, as many as the noise estimate needs, so that they outweigh a candidate."""
    return list(processes[-MIN_EARLIER_PROCESSES:])


def _order(decision: Decision) -> tuple[Any, ...]:
    """Return the sort key that puts the worst decision first."""
    change = decision.change_percent
    return (_STATES.index(decision.state), -(change or 0.0), decision.series.model_dump_json())
