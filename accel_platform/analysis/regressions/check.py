"""Comparison of candidate runs with baseline runs, cell by cell, and the reasons why cells are not comparable.

Each cell has a decision on its latency, or on its failures where a side has no process that works. Memory, and failures
of some processes, have one where there is something to tell.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

from accel_platform.analysis.query.measured import ProcessResult, attach_samples, read_series_of_runs
from accel_platform.analysis.query.run_refs import (
    ObservedDevices,
    PlannedCell,
    RunSet,
    differing_keys,
    observed_devices,
    planned_cell,
    unavailable_hardware,
    unrecorded_cells,
)
from accel_platform.analysis.regressions.changepoint_history import regression_event
from accel_platform.analysis.regressions.decision import MIN_EARLIER_PROCESSES, Decision, State
from accel_platform.analysis.regressions.regression_test import decide, is_tested
from accel_platform.analysis.regressions.sides import comparable_median_ms
from accel_platform.analysis.regressions.thresholds import MEMORY_MEASURES, MIN_CHANGE_PERCENT, least_change_percent
from accel_platform.analysis.regressions.triage import (
    AcceptedShift,
    ShiftDecisions,
    UnacceptedShift,
    read_decisions,
)
from accel_platform.events.types import Measure, MeasuredSeries
from accel_platform.warehouse.reader import Reader

CANNOT_DECIDE = 2
"""Exit code of a check that decides nothing."""
MIN_CONFIRMING_RUNS, MAX_CONFIRMING_RUNS = 3, 5
"""Bounds on the runs that measure suspicious cells once more."""
MEASURES: tuple[Measure, ...] = get_args(Measure)
_STATES: tuple[State, ...] = get_args(State)


@dataclass(frozen=True)
class Check:
    """Decisions on all cells of both sides."""

    baseline: RunSet
    candidate: RunSet
    decisions: tuple[Decision, ...]
    snapshot_id: str
    confirming_runs: int = 0
    """Runs that measured suspicious cells of the candidate once more."""

    def count(self, state: State) -> int:
        return sum(decision.state == state for decision in self.decisions)

    @property
    def exit_code(self) -> int:
        """0 if no cell regressed, 1 if one did, 2 if none could be decided or one was disturbed or cut short.

        A decision on its memory alone decides no cell.
        """
        if self.count("regressed"):
            return 1
        if any(decision.disturbed or decision.cut_short for decision in self.decisions):
            return CANNOT_DECIDE
        decided = (d.state != "insufficient_data" for d in self.decisions if d.measure not in MEMORY_MEASURES)
        return 0 if any(decided) else CANNOT_DECIDE


def check(
    reader: Reader,
    baseline: RunSet,
    candidate: RunSet,
    *,
    min_change_percent: float = MIN_CHANGE_PERCENT,
    again: Collection[str] = (),
    measures: Collection[Measure] = MEASURES,
) -> Check:
    """Decide every cell that either side measured.

    Where no process of a side works, the decision is on its failures, whichever `measures` are wanted. `again` are runs
    that measured suspicious cells once more. These runs alone decide those cells, because the first measurement may
    have looked suspicious by chance.
    """
    sides = _Sides(frozenset(baseline.run_ids), frozenset((*candidate.run_ids, *again)), frozenset(again))
    snapshot_id = reader.snapshot_id
    decided = read_decisions(reader)
    cells = _cells(reader, sides, decided)
    absence = _Absence.read(reader, sides)
    alike: dict[MeasuredSeries, list[_Cell]] = {}
    for cell in cells["latency"]:
        alike.setdefault(_without_device(cell.series), []).append(cell)
    # Each measure allows for its own tests only, so watching memory too makes the test of latency no less sensitive.
    tests = {
        measure: sum(cell.two_sided and is_tested(measure, cell.before, cell.after) for cell in cells[measure])
        for measure in MEASURES
    }
    decisions: list[Decision | None] = []
    for of_measures in zip(*(cells[measure] for measure in MEASURES), strict=True):
        latency, *_ = of_measures
        if not latency.two_sided:
            decisions.append(_decide_one_sided(latency, alike[_without_device(latency.series)], absence))
            continue
        found = {
            measure: _decide_two_sided(cell, measure, decided, min_change_percent, tests[measure])
            for measure, cell in zip(MEASURES, of_measures, strict=True)
            if measure in (*measures, "failures") and cell.two_sided
        }
        decisions += _decisions_to_report(found, measures)
    ordered = sorted((decision for decision in decisions if decision is not None), key=_order)
    return Check(baseline, candidate, tuple(ordered), snapshot_id, len(again))


def _decisions_to_report(found: Mapping[Measure, Decision], measures: Collection[Measure]) -> list[Decision]:
    """Return the decisions on one cell to report: one on the whole of it, and what moved, or may have, beside it."""
    # A decision on failures in the place of another says that no process of a side works.
    whole = found["latency"] if found["latency"].measure == "latency" else found.get("failures", found["latency"])
    others = [d for measure, d in found.items() if measure in measures and d.measure == measure and d is not whole]
    return [whole, *(d for d in others if d.state not in ("ok", "insufficient_data") or (d.state == "ok" and d.reason))]


def suspicious_cells(checked: Check) -> tuple[Decision, ...]:
    """Return the cells that another measurement would settle."""
    return tuple(decision for decision in checked.decisions if decision.alerts)


@dataclass(frozen=True)
class _Sides:
    """Ids of the compared runs."""

    baseline: frozenset[str]
    candidate: frozenset[str]
    """The candidate's runs, those that measured suspicious cells once more among them."""
    confirming: frozenset[str]
    """Runs that measured suspicious cells once more."""

    @property
    def runs(self) -> frozenset[str]:
        """All runs of both sides."""
        return self.baseline | self.candidate


@dataclass(frozen=True)
class _Absence:
    """Recorded plans and devices, which explain why a side lacks a cell."""

    devices: ObservedDevices
    unrecorded_before: frozenset[PlannedCell]
    unrecorded_after: frozenset[PlannedCell]
    unavailable: Mapping[tuple[str, str | None], str | None]
    """Hardware that the candidate's hosts lacked, with the reason."""

    @classmethod
    def read(cls, reader: Reader, sides: _Sides) -> _Absence:
        return cls(
            observed_devices(reader, sides.runs),
            unrecorded_cells(reader, sides.baseline),
            unrecorded_cells(reader, sides.candidate),
            unavailable_hardware(reader, sides.candidate),
        )

    def explain(self, decision: Decision, *, measured_before: bool) -> Decision:
        """Complete a decision on a cell of one side where the other was to measure it, too."""
        series, unrecorded = decision.series, self.unrecorded_after if measured_before else self.unrecorded_before
        why = None
        if planned_cell(series) in unrecorded:
            why = "its run was to, and was stopped or is still under way; `accel bench run --resume` measures the rest"
        elif measured_before and (series.hardware, series.choice) in self.unavailable:
            cause = self.unavailable[series.hardware, series.choice] or "for a reason not recorded"
            why = f"{series.hardware} was not available, {cause}"
        return decision if why is None else replace(decision, cut_short=True, reason=f"{decision.reason}: {why}")


@dataclass(frozen=True)
class _Cell:
    """The processes of one series that count, in order of time."""

    series: MeasuredSeries
    before: list[ProcessResult]
    after: list[ProcessResult]
    again: list[ProcessResult]
    """Processes of `after` that were measured to confirm."""
    others: list[ProcessResult]
    """All processes but the candidate's."""
    rejected: int
    """Number of the candidate's processes that do not count."""
    accepted: tuple[AcceptedShift, ...]
    """Accepted shifts that concern both sides, in order of time."""
    level: AcceptedShift | None
    """The shift accepted since the baseline: `before` holds processes at its level then, where there are others."""
    replaced: list[ProcessResult]
    """The baseline's own processes where `level` takes their place."""

    @property
    def two_sided(self) -> bool:
        return bool((self.before or self.level) and (self.after or self.rejected))


def _cells(reader: Reader, sides: _Sides, decided: Mapping[Measure, ShiftDecisions]) -> dict[Measure, list[_Cell]]:
    """Return the series in which either side took part, by measure and in one order, with the samples for latencies."""
    measured = {
        series: found for series, found in read_series_of_runs(reader, sides.runs).items() if _of(found, sides.runs)
    }
    cells = {
        measure: [_cell(series, found, decided[measure], sides) for series, found in measured.items()]
        for measure in MEASURES
    }
    timed = cells["latency"]
    known = attach_samples(
        reader, [p for cell in timed for p in (*cell.before, *cell.replaced, *cell.after, *_newest(cell.others))]
    )

    def add_samples(processes: Sequence[ProcessResult]) -> list[ProcessResult]:
        return [known.get(process.result_id, process) for process in processes]

    with_samples = [
        replace(
            cell,
            before=add_samples(cell.before),
            after=add_samples(cell.after),
            again=add_samples(cell.again),
            others=add_samples(cell.others),
            replaced=add_samples(cell.replaced),
        )
        for cell in timed
    ]
    return {**cells, "latency": with_samples}


def _cell(series: MeasuredSeries, found: Sequence[ProcessResult], decided: ShiftDecisions, sides: _Sides) -> _Cell:
    """Build the cell of a series; if no baseline process counts, use the newest ones measured before it."""
    counted = decided.without_rejected(found)
    before, after = _of(counted, sides.baseline), _of(counted, sides.candidate)
    others = _others(counted, sides.candidate)
    if not before and (rejected := _of(found, sides.baseline)):
        before = _newest([process for process in others if process.result_id < rejected[0].result_id])
    accepted = tuple(s for s in decided.accepted.get(series, ()) if _concerns(s, found, before, after))
    level = _accepted_level(before, after, accepted) if before and after else None
    replaced = before if level else []
    if level is not None:
        # What was measured again at the old level is neither baseline nor noise of the new one.
        others = [p for p in others if p.result_id < level.first_result or p.commit not in level.commits_before]
        branches = {_branch_of(level, found), *(process.branch for process in replaced)}
        standing = [p for p in others if p.branch in branches]
        before = _at_level(level, standing, decided.unaccepted.get(series, ()))
    rejections = len(_of(found, sides.candidate)) - len(after)
    return _Cell(series, before, after, _of(counted, sides.confirming), others, rejections, accepted, level, replaced)


def _at_level(
    level: AcceptedShift, processes: Sequence[ProcessResult], unaccepted: Sequence[UnacceptedShift]
) -> list[ProcessResult]:
    """Return the first processes at an accepted level, as many as the noise estimate needs.

    Processes at the level of a later shift are left out, and all since a shift that is open. Otherwise a regression
    that was found and pushed once more would be its own baseline.
    """
    shifts = [shift for shift in unaccepted if shift.first_result > level.first_result]
    branches = {None, *(process.branch for process in processes)}
    end = next((s.first_result for s in shifts if s.is_open and s.row["branch"] in branches), None)
    since = [
        p
        for p in processes
        if p.result_id >= level.first_result
        and (end is None or p.result_id < end)
        and not any(shift.includes(p) for shift in shifts)
    ]
    return since[:MIN_EARLIER_PROCESSES]


def _concerns(
    shift: AcceptedShift,
    found: Sequence[ProcessResult],
    before: Sequence[ProcessResult],
    after: Sequence[ProcessResult],
) -> bool:
    """Return whether an accepted shift may lie between the sides.

    That of another branch does once the baseline's branch was measured at its level: until then it is not merged.
    """
    branches = {process.branch for process in before}
    of_shift = _branch_of(shift, found)
    if of_shift is None or None in branches or of_shift in branches | {process.branch for process in after}:
        return True
    since = [p for p in found if p.result_id > shift.first_result and p.branch in branches]
    return any(shift.is_reached_by(process) for process in since)


def _branch_of(shift: AcceptedShift, found: Sequence[ProcessResult]) -> str | None:
    """Return the branch on which a level was accepted; None where its run names none."""
    return next((process.branch for process in found if process.result_id == shift.first_result), None)


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


def _decide_two_sided(
    cell: _Cell,
    measure: Measure,
    decided: Mapping[Measure, ShiftDecisions],
    min_change_percent: float,
    tests: int,
) -> Decision:
    """Decide a measure of a cell of both sides."""
    if not cell.after:
        why = "its shift was rejected"
        return Decision(
            cell.series, "ok", why, measure, processes_before=len(cell.before), processes_after=cell.rejected
        )
    if cell.level is not None and not cell.before:
        return _decide_accepted(cell, measure, cell.level)
    decision = decide(
        cell.series,
        cell.before,
        cell.again or cell.after,
        cell.others,
        measure=measure,
        min_change_percent=least_change_percent(measure, min_change_percent),
        accepted=[shift.first_result for shift in cell.accepted],
        apart=[
            {process.result_id for process in cell.others if shift.includes(process)}
            for shift in decided[measure].unaccepted.get(cell.series, ())
        ],
        tests=tests,
    )
    if cell.level is not None:
        reasons = (f"before: the level that {cell.level.by} accepted", decision.reason)
        decision = replace(decision, reason="; ".join(filter(None, reasons)), accepted_baseline=True)
    decision = replace(decision, first_result=cell.after[0].result_id)
    if not decision.moved:
        return decision
    found = decided[decision.measure].identify(regression_event(decision), cell.after[0].branch)
    return replace(decision, regression_id=found.regression_id)


def _decide_accepted(cell: _Cell, measure: Measure, level: AcceptedShift) -> Decision:
    """Decide a cell whose own level a person accepted: it passes, with the medians that showed the shift."""
    found = decide(cell.series, cell.replaced, cell.after, cell.others, measure=measure)
    return Decision(
        cell.series,
        "ok",
        f"{level.by} accepted its new level",
        measure,
        before_ms=found.before_ms,
        after_ms=found.after_ms,
        before_mib=found.before_mib,
        after_mib=found.after_mib,
        change_percent=found.change_percent,
        processes_before=found.processes_before,
        processes_after=found.processes_after,
        accepted=True,
    )


def _decide_one_sided(cell: _Cell, alike: Sequence[_Cell], absence: _Absence) -> Decision | None:
    """Decide a cell of one side only; return None if a cell of another fingerprint already reports it."""
    decision = decide(cell.series, cell.before, cell.after, ())
    if not cell.before:
        if any(other.before and not other.after for other in alike):
            return None
        return absence.explain(decision, measured_before=False)
    if any(other.two_sided and other.series.device_id == cell.series.device_id for other in alike):
        return None
    unlike = next((other for other in alike if other.after and not other.before), None)
    if unlike is None:
        return absence.explain(decision, measured_before=True)
    what = _differences(cell.before[-1], unlike.after[-1], cell.series, unlike.series, absence.devices)
    decision = replace(decision, processes_after=len(unlike.after), reason=f"not comparable: {what}")
    if unlike.series.device_id != cell.series.device_id:
        return decision
    # An upgrade that makes the device slower is to be seen, though no commit is to blame.
    before_ms, after_ms = comparable_median_ms(cell.before), comparable_median_ms(unlike.after)
    return replace(decision, before_ms=before_ms, after_ms=after_ms)


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
    return (_STATES.index(decision.state), -(change or 0.0), decision.series.model_dump_json(), decision.measure)
