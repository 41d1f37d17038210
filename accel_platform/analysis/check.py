"""A candidate against its baseline, cell by cell: which results belong together, and what keeps the others apart.

What the figures say is decided in `regression.py`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

from accel_platform.analysis.measured import Measured, Process, read_around, with_samples
from accel_platform.analysis.refs import Side
from accel_platform.analysis.regression import (
    EARLIER_LEAST,
    MIN_CHANGE_PERCENT,
    Decision,
    State,
    decide,
)
from accel_platform.analysis.shifts import accepted_shifts
from accel_platform.events.types import MeasuredSeries
from accel_platform.warehouse.query import Reader

_DEVICES = """
SELECT run_id, host_id, payload->>'$.hardware' AS hardware, payload->>'$.choice' AS choice,
    payload->>'$.device_id' AS device, payload->>'$.driver' AS driver, payload->'$.runtime_versions' AS versions
FROM events
WHERE type = 'DeviceObserved' AND list_contains($runs, run_id)
"""
_STATES: tuple[State, ...] = get_args(State)
_Devices = dict[tuple[str, str, str | None], dict[str, Any]]
"""By run, hardware name and choice: the driver and the versions of the runtime's packages."""


@dataclass(frozen=True)
class Check:
    """All cells of both sides."""

    baseline: Side
    candidate: Side
    decisions: tuple[Decision, ...]
    snapshot_id: str

    def count(self, state: State) -> int:
        return sum(decision.state == state for decision in self.decisions)

    @property
    def exit_code(self) -> int:
        """0 where nothing regressed, 1 where something did, 2 where of no cell anything can be said."""
        if self.count("regressed"):
            return 1
        return 0 if self.count("insufficient_data") < len(self.decisions) else 2


def check(
    reader: Reader,
    baseline: Side,
    candidate: Side,
    *,
    min_change_percent: float = MIN_CHANGE_PERCENT,
    again: Collection[str] = (),
) -> Check:
    """Decide every cell that either side measured.

    `again` are runs that measured suspect cells once more: those cells are decided by these runs alone, for what made
    a cell suspect may have been chance.
    """
    old, new = set(baseline.run_ids), {*candidate.run_ids, *again}
    snapshot_id = reader.snapshot_id
    measured = read_around(reader, old | new)
    accepted = accepted_shifts(reader)
    known = with_samples(
        reader, [p for ps in measured.values() for p in (*_of(ps, old | new), *_newest(_others(ps, new)))]
    )
    whole = {series: [known.get(p.result_id, p) for p in processes] for series, processes in measured.items()}
    devices = _devices(reader, old | new)
    decisions = []
    for series, processes in whole.items():
        before, after, others = _of(processes, old), _of(processes, new), _others(processes, new)
        if not before and not after:
            continue
        if not before or not after:
            if (decided := _one_sided(series, whole, old, new, devices)) is not None:
                decisions.append(decided)
            continue
        cuts = accepted.get(series, ())
        # Of shifts accepted since the baseline, the last is the level to hold the candidate against.
        since = max((cut for cut in cuts if before[-1].result_id < cut <= after[-1].result_id), default=None)
        if since is not None:
            before = _newest([p for p in others if p.result_id >= since])
        if not before:
            decisions.append(Decision(series, "ok", "its new level was accepted", processes_after=len(after)))
            continue
        decided = decide(
            series,
            before,
            _of(processes, again) or after,
            others,
            min_change_percent=min_change_percent,
            accepted=cuts,
        )
        decisions.append(replace(decided, first_result=after[0].result_id))
    decisions.sort(key=_order)
    return Check(baseline, candidate, tuple(decisions), snapshot_id)


def suspects(checked: Check) -> tuple[Decision, ...]:
    """The cells that measuring again would settle."""
    return tuple(decision for decision in checked.decisions if decision.alerts)


def _one_sided(
    series: MeasuredSeries, whole: Measured, old: Collection[str], new: Collection[str], devices: _Devices
) -> Decision | None:
    """A cell of one side only; None where the other side's unlike cell tells it already."""
    before, after = _of(whole[series], old), _of(whole[series], new)
    alike = [
        (other, _of(processes, old), _of(processes, new))
        for other, processes in whole.items()
        if other != series and _subject(other) == _subject(series)
    ]
    if before:
        unlike = next(((other, theirs) for other, mine, theirs in alike if theirs and not mine), None)
        told = decide(series, before, (), ())
        if unlike is not None:
            other, theirs = unlike
            what = _differences(before[-1], theirs[-1], series, other, devices)
            told = replace(told, processes_after=len(theirs), reason=f"not comparable: {what}")
        return told
    return None if any(mine and not theirs for _, mine, theirs in alike) else decide(series, (), after, ())


def _differences(
    before: Process, after: Process, series: MeasuredSeries, other: MeasuredSeries, devices: _Devices
) -> str:
    """What makes two fingerprints unlike, from what the runs saw of their devices."""
    was, now = (
        {**devices.get((p.run_id, s.hardware, s.choice), {}), "device": s.device_id, "threads": p.threads}
        for p, s in ((before, series), (after, other))
    )
    names = [name for name in sorted({*was, *now}) if was.get(name) != now.get(name)]
    told = [f"{name} {was.get(name, 'unknown')} before, {now.get(name, 'unknown')} now" for name in names]
    return "; ".join(told) or f"fingerprint {series.fingerprint} before, {other.fingerprint} now"


def _devices(reader: Reader, run_ids: Collection[str]) -> _Devices:
    found: _Devices = {}
    for row in reader.rows(_DEVICES, {"runs": list(run_ids)}):
        versions = json.loads(row["versions"] or "{}")
        found[row["run_id"], row["hardware"], row["choice"]] = {"driver": row["driver"], **versions}
    return found


def _subject(series: MeasuredSeries) -> MeasuredSeries:
    """The series, whatever measured it."""
    return series.model_copy(update={"device_id": "", "fingerprint": ""})


def _of(processes: Sequence[Process], run_ids: Collection[str]) -> list[Process]:
    return [process for process in processes if process.run_id in run_ids]


def _others(processes: Sequence[Process], run_ids: Collection[str]) -> list[Process]:
    return [process for process in processes if process.run_id not in run_ids]


def _newest(processes: Sequence[Process]) -> list[Process]:
    """The last few: as many as tell the noise, so that they outweigh a candidate."""
    return list(processes[-EARLIER_LEAST:])


def _order(decision: Decision) -> tuple[Any, ...]:
    """The worst first."""
    change = decision.change_percent
    return (_STATES.index(decision.state), -(change or 0.0), decision.series.model_dump_json())
