"""Which commits are checked, against what, and what is kept of it. The figures are made up; the tables are real."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from commits_world import NEW, OLD, Ci

from accel_platform.analysis.query.filters import Selection
from accel_platform.analysis.regressions.commit_gate import (
    MeasuredCommit,
    check_commit,
    find_baseline,
    measured_commits,
    record_check,
    reported_regressions,
    unchecked_commits,
)
from accel_platform.analysis.regressions.trend import trends
from accel_platform.analysis.regressions.triage import build_rejection
from accel_platform.bench.plan.run_options import BRANCH_VARIABLES, add_commit_label
from accel_platform.events import EventLog
from accel_platform.settings import Settings
from accel_platform.warehouse import publish
from accel_platform.warehouse.reader import Reader
from factories import event


@pytest.fixture
def ci(log: EventLog) -> Ci:
    return Ci(log)


def _reader(settings: Settings) -> Reader:
    publish.bring_up_to_date(settings)
    return Reader(settings)


def test_a_commit_is_due_until_all_its_ended_runs_are_checked(ci: Ci, settings: Settings) -> None:
    ci.runs(6, OLD)
    assert unchecked_commits(_reader(settings)) == []  # the first of all has nothing before it
    ci.run(NEW)
    ci.run(NEW, finished=False)
    reader = _reader(settings)
    [commit] = unchecked_commits(reader)
    assert (commit.name, commit.run_ids) == (NEW, ("run-0007",))
    for _ in range(2):
        record_check(ci.log, *check_commit(reader, commit), source="test")
    reader = _reader(settings)
    assert unchecked_commits(reader) == []
    assert reader.rows("SELECT count(*) AS n FROM events WHERE type = 'CommitChecked'") == [{"n": 1}]
    ci.run(NEW)
    [again] = unchecked_commits(_reader(settings))
    assert again.run_ids == ("run-0007", "run-0009")
    assert again.state != commit.state


def test_a_slowdown_that_stays_open_is_reported_by_its_first_commit_alone(ci: Ci, settings: Settings) -> None:
    """Later commits have a baseline before it, as a pull request or a tag has."""
    ci.runs(6, OLD)
    reported = []
    for commit in (NEW, "c" * 40, "d" * 40):
        ci.runs(3, commit, 1.3, baseline=OLD)
        reader = _reader(settings)
        [due] = unchecked_commits(reader)
        checked, outcome = check_commit(reader, due)
        assert outcome.outcome == "regressed"
        reported.append(set(outcome.regressions) <= reported_regressions(reader))
        record_check(ci.log, checked, outcome, source="test")
    assert reported == [False, True, True]


def test_what_moved_is_kept_and_becomes_a_row(ci: Ci, settings: Settings) -> None:
    ci.runs(6, OLD)
    ci.runs(3, NEW, 1.3)
    reader = _reader(settings)
    checked, told = check_commit(reader, unchecked_commits(reader)[0])
    assert (told.outcome, told.baseline, told.cells) == ("regressed", OLD, {"regressed": 1})
    assert (len(told.baseline_runs), len(told.candidate_runs)) == (6, 3)
    record_check(ci.log, checked, told, source="test")
    [row] = _reader(settings).rows("SELECT regression_id, state, direction, found_by, commits_after FROM regressions")
    assert row == {
        "regression_id": told.regressions[0],
        "state": "open",
        "direction": "regressed",
        "found_by": "check",
        "commits_after": [NEW],
    }
    said = build_rejection(_reader(settings), told.regressions[0], by="ada", reason="it throttled")
    ci.log.append([event(said)])
    reader = _reader(settings)
    assert check_commit(reader, measured_commits(reader)[-1])[1].outcome == "passed"


def test_a_commit_that_takes_more_memory_regressed(ci: Ci, settings: Settings) -> None:
    ci.runs(6, OLD)
    for _ in range(3):
        ci.run(NEW, memory_mib=1401.0)
    reader = _reader(settings)
    checked, told = check_commit(reader, unchecked_commits(reader)[0])
    assert (told.outcome, told.cells) == ("regressed", {"regressed": 1, "ok": 1})
    record_check(ci.log, checked, told, source="test")
    [row] = _reader(settings).rows("SELECT regression_id, measure, before_mib, after_mib FROM regressions")
    assert row == {
        "regression_id": told.regressions[0],
        "measure": "memory",
        "before_mib": 700.5,
        "after_mib": 1401.0,
    }
    [trend] = trends(_reader(settings), Selection(), "memory_peak_mib")
    assert [(shift.state, shift.regression_id, shift.worse) for shift in trend.shifts] == [
        ("open", told.regressions[0], True)
    ]
    assert trends(_reader(settings), Selection(), "latency_ms")[0].shifts == ()


def test_runs_that_confirm_decide(ci: Ci, settings: Settings) -> None:
    ci.runs(6, OLD)
    ci.runs(2, NEW, 1.3)
    reader = _reader(settings)
    assert check_commit(reader, unchecked_commits(reader)[0])[1].outcome == "regressed"
    ci.runs(3, NEW, 1.0, confirms="run-0008")
    reader = _reader(settings)
    assert check_commit(reader, unchecked_commits(reader)[0])[1].outcome == "passed"


def test_without_a_baseline_nothing_is_decided_and_the_reason_says_so(ci: Ci, settings: Settings) -> None:
    ci.runs(6, OLD, branch="main")
    ci.runs(2, NEW, branch="feature")
    reader = _reader(settings)
    checked, told = check_commit(reader, unchecked_commits(reader)[0])
    assert checked is None
    assert (told.outcome, told.baseline) == ("undecided", None)
    assert (
        told.reason
        == "no commit of branch feature that comes before it was measured, and no label `baseline` names one"
    )


def test_a_check_that_decides_nothing_says_why(ci: Ci, settings: Settings) -> None:
    ci.runs(2, OLD)
    ci.run(NEW)
    reader = _reader(settings)
    _, told = check_commit(reader, unchecked_commits(reader)[0])
    assert told.outcome == "undecided"
    assert told.reason == "its noise is unknown: 3 more earlier processes of this series are needed"


def test_the_baseline_is_what_the_label_names_or_what_came_before_on_the_branch() -> None:
    known = [
        MeasuredCommit("a" * 40, ("run-1",), branch="main"),
        MeasuredCommit("b" * 40, ("run-2",), branch="main"),
        MeasuredCommit("c" * 40, ("run-3",), branch="feature"),
        MeasuredCommit("d" * 40, ("run-4",)),
    ]

    def of(place: int, **labels: str) -> str:
        commit = MeasuredCommit("e" * 40, ("run-5",), **labels)
        found = find_baseline(commit, [*known[:place], commit, *known[place:]])
        return found if isinstance(found, str) else found.name[0]

    assert of(4, branch="main") == "b"
    assert of(1, branch="main") == "a"
    assert of(4, branch="feature") == "c"
    assert of(4) == "d"
    assert of(4, branch="feature", baseline="aaaaaaa") == "a"
    assert of(4, baseline="a" * 40) == "a"
    assert of(4, baseline="aaa").startswith("no measured commit is called aaa")
    assert of(0).startswith("no commit that comes before it was measured")


def test_only_the_newest_are_looked_at(ci: Ci, settings: Settings) -> None:
    for number in range(30):
        ci.run(f"{number:040d}")
    reader = _reader(settings)
    assert len(measured_commits(reader)) == 30
    assert [commit.name for commit in unchecked_commits(reader)] == [f"{number:040d}" for number in range(10, 30)]


def test_commits_stand_in_the_order_of_git_whenever_they_were_measured(ci: Ci, settings: Settings) -> None:
    """A commit that is measured late, for a bisection, is compared with what came before it in the history."""
    first, middle, last = (letter * 40 for letter in "abc")
    ci.runs(2, first, committed_at="2026-11-01T10:00:00+00:00")
    ci.runs(2, last, committed_at="2026-11-03T10:00:00+00:00")
    ci.runs(2, middle, committed_at="2026-11-02T12:00:00+02:00")
    known = measured_commits(_reader(settings))
    assert [commit.name for commit in known] == [first, middle, last]
    assert [getattr(find_baseline(commit, known), "name", None) for commit in known] == [None, first, middle]


def test_a_run_says_when_its_commit_was_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*words: str) -> str:
        about = ["-c", "user.name=a", "-c", "user.email=a@b"]
        answer = subprocess.run(["git", *about, *words], cwd=tmp_path, capture_output=True, text=True, check=True)
        return answer.stdout.strip()

    monkeypatch.setenv("GIT_COMMITTER_DATE", "2026-11-05T07:08:09+01:00")
    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "one")
    commit = git("rev-parse", "HEAD")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ACCEL_COMMIT", commit)
    for name in BRANCH_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert add_commit_label({}) == {"commit": commit, "committed_at": "2026-11-05T07:08:09+01:00"}
    assert add_commit_label({"committed_at": "2020-01-01"})["committed_at"] == "2020-01-01", "what is said counts"
    assert add_commit_label({"commit": "f" * 40}) == {"commit": "f" * 40}, "git does not know it here"
