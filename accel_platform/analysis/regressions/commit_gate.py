"""Measured commits, the baseline of each, and the outcome of its check."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from accel_platform.analysis.query.run_refs import MIN_PREFIX_LENGTH, RunSet
from accel_platform.analysis.regressions.changepoint_history import record_regressions, regression_event
from accel_platform.analysis.regressions.check import CANNOT_DECIDE, Check, check
from accel_platform.events import Event, EventLog
from accel_platform.events.types import CommitChecked
from accel_platform.warehouse.reader import Reader

_NEWEST = 20
"""Number of newest commits to check, so that an import of old results does not start checks of old commits."""

# All runs that ended, in order of time, because ids of runs begin with their time.
_RUNS = """
SELECT run_id, "commit", labels->>'$.branch' AS branch, labels->>'$.baseline' AS baseline,
    labels->>'$.committed_at' AS committed_at, started_at,
    labels->>'$.confirms' IS NOT NULL AS confirms
FROM runs
WHERE kind = 'benchmark' AND "commit" IS NOT NULL AND status <> 'running'
ORDER BY run_id
"""
_CHECKED = """
SELECT payload->>'$.commit' AS "commit", payload->'$.candidate_runs' AS runs
FROM other_events
WHERE type = 'CommitChecked'
"""
_REPORTED = """
SELECT DISTINCT unnest(CAST(payload->'$.regressions' AS VARCHAR[])) AS regression_id
FROM other_events
WHERE type = 'CommitChecked'
UNION
SELECT payload->>'$.regression_id'
FROM other_events
WHERE type = 'RegressionFound' AND CAST(payload->>'$.notified' AS BOOLEAN)
"""
_OUTCOMES = {0: "passed", 1: "regressed", 2: "undecided"}


@dataclass(frozen=True)
class MeasuredCommit:
    """One commit and all its runs that ended."""

    name: str
    run_ids: tuple[str, ...]
    again: tuple[str, ...] = ()
    """Ids of the runs that measured suspicious cells once more."""
    branch: str | None = None
    baseline: str | None = None
    """Commit to compare with, by the label `baseline` of its runs."""
    made_at: datetime | None = None
    """Time of the commit, by the label `committed_at` of its runs; else the time when its first run began."""

    @property
    def state(self) -> str:
        """Hash of the runs, which changes when more of them have ended."""
        return hashlib.sha256(" ".join(self.run_ids).encode()).hexdigest()[:16]

    @property
    def side(self) -> RunSet:
        return RunSet(self.name, self.run_ids, self.name)


def measured_commits(reader: Reader) -> list[MeasuredCommit]:
    """Return every measured commit, in the order in which they were committed.

    One whose runs have no label `committed_at` stands where its first run began.
    """
    found: dict[str, list[dict[str, Any]]] = {}
    for row in reader.rows(_RUNS):
        found.setdefault(row["commit"], []).append(row)
    commits = [
        MeasuredCommit(
            name,
            tuple(str(row["run_id"]) for row in rows),
            tuple(str(row["run_id"]) for row in rows if row["confirms"]),
            branch=_last(rows, "branch"),
            baseline=_last(rows, "baseline"),
            made_at=_made_at(rows),
        )
        for name, rows in found.items()
    ]
    undated = datetime.min.replace(tzinfo=UTC)
    return sorted(commits, key=lambda commit: commit.made_at or undated)


def unchecked_commits(reader: Reader) -> list[MeasuredCommit]:
    """Return the newest commits with runs that no check has seen, oldest first.

    The very first commit is left out unless its label names a baseline, because none was measured before it.
    """
    checked: dict[str, set[str]] = {}
    for row in reader.rows(_CHECKED):
        checked.setdefault(row["commit"], set()).update(json.loads(row["runs"]))
    known = measured_commits(reader)
    return [
        commit
        for commit in known[-_NEWEST:]
        if not set(commit.run_ids) <= checked.get(commit.name, set()) and (commit.baseline or commit is not known[0])
    ]


def reported_regressions(reader: Reader) -> set[str]:
    """Return the ids of the regressions that checks of commits, or messages of their own, named so far."""
    return {row["regression_id"] for row in reader.rows(_REPORTED)}


def find_baseline(commit: MeasuredCommit, known: Sequence[MeasuredCommit]) -> MeasuredCommit | str:
    """Return the commit to compare with, or the reason why there is none.

    It is the commit that the label `baseline` names. Without that label, it is the one committed before it, of those
    measured under the same label `branch` (under none, if the commit has none).
    """
    if commit.baseline is not None:
        named = [c for c in known if _same(c.name, commit.baseline)]
        if len(named) == 1:
            return named[0]
        many = "several commits are" if named else "no measured commit is"
        return f"{many} called {commit.baseline}, which the label `baseline` names"
    earlier = itertools.takewhile(lambda c: c.name != commit.name, known)
    before = [c for c in earlier if c.branch == commit.branch]
    if before:
        return before[-1]
    where = f"of branch {commit.branch} " if commit.branch else ""
    return f"no commit {where}that comes before it was measured, and no label `baseline` names one"


def check_commit(reader: Reader, commit: MeasuredCommit) -> tuple[Check | None, CommitChecked]:
    """Compare a commit with its baseline. The check is None if there is no baseline; the event says why."""
    baseline = find_baseline(commit, measured_commits(reader))
    if isinstance(baseline, str):
        return None, CommitChecked(
            commit=commit.name,
            baseline=None,
            outcome="undecided",
            reason=baseline,
            candidate_runs=commit.run_ids,
            snapshot_id=reader.snapshot_id,
        )
    checked = check(reader, baseline.side, commit.side, again=commit.again)
    states = [decision.state for decision in checked.decisions]
    found = [regression_event(d) for d in checked.decisions if d.moved]
    return checked, CommitChecked.model_validate(
        {
            "commit": commit.name,
            "baseline": baseline.name,
            "outcome": _OUTCOMES[checked.exit_code],
            "reason": _undecided_reason(checked) if checked.exit_code == CANNOT_DECIDE else None,
            "candidate_runs": commit.run_ids,
            "baseline_runs": baseline.run_ids,
            "cells": {state: states.count(state) for state in sorted(set(states))},
            "regressions": tuple(regression.regression_id for regression in found),
            "snapshot_id": checked.snapshot_id,
        }
    )


def _undecided_reason(checked: Check) -> str:
    """Return why a check decides nothing: the reason that most cells share, and the number of the others."""
    reasons = Counter(d.reason for d in checked.decisions if d.state == "insufficient_data" and d.reason)
    if not reasons:
        return "no cell was measured on either side"
    [(reason, count)] = reasons.most_common(1)
    others = reasons.total() - count
    return f"{reason}; for other reasons: {others} more" if others else reason


def record_check(log: EventLog, checked: Check | None, payload: CommitChecked, *, source: str) -> Event | None:
    """Append the regressions found, then the outcome. Return its event; None if these runs were checked before."""
    if checked is not None:
        moved = (d for d in checked.decisions if d.moved)
        record_regressions(log, map(regression_event, moved), source=source)
    sides = json.dumps([payload.commit, payload.baseline_runs, payload.candidate_runs])
    key = f"checked-{hashlib.sha256(sides.encode()).hexdigest()[:32]}"
    event = Event.of(payload, source=source)
    return event if log.append([event], key=key).new else None


def _made_at(rows: Sequence[dict[str, Any]]) -> datetime | None:
    stated = _last(rows, "committed_at")
    with suppress(ValueError):  # a label may say anything
        if stated is not None:
            moment = datetime.fromisoformat(stated)
            return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    began: datetime | None = rows[0]["started_at"]
    return began


def _last(rows: Sequence[dict[str, Any]], label: str) -> str | None:
    labels = [str(row[label]) for row in rows if row[label]]
    return labels[-1] if labels else None


def _same(name: str, other: str) -> bool:
    """Return whether two commit names are equal, or one abbreviates the other."""
    short, long = sorted((name, other), key=len)
    return name == other or (len(short) >= MIN_PREFIX_LENGTH and long.startswith(short))
