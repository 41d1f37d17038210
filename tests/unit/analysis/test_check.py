"""From events to the verdict on a candidate, and what is kept of it. The figures are made up; the tables are real."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from accel_platform.analysis.query.measured import read_measured_series
from accel_platform.analysis.query.run_refs import resolve_runs
from accel_platform.analysis.regressions.changepoint_history import decision_id, find_shifts, regression_event
from accel_platform.analysis.regressions.check import MEASURES, Check, check
from accel_platform.analysis.regressions.decision import Decision
from accel_platform.analysis.regressions.triage import build_acceptance, build_rejection, read_decisions
from accel_platform.bench.plan.run_options import BRANCH_VARIABLES, COMMIT_VARIABLES, add_commit_label, parse_labels
from accel_platform.cli import app
from accel_platform.cli.results.regress_check import record_regressions
from accel_platform.errors import InvalidInput, NotFound
from accel_platform.events import EventLog
from accel_platform.events.types import DeviceObserved, RunStarted
from accel_platform.reports.regressions import junit, markdown
from accel_platform.settings import Settings
from accel_platform.warehouse import publish
from accel_platform.warehouse.reader import Reader
from factories import event, result, verification

OLD, NEW = "a" * 40, "b" * 40
_VERDICT_FIELDS = ("hardware", "backend", "device_id", "precision", "batch_size", "sequence_length")


class Lab:
    """A log that benchmark runs are written to as the runner would."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.log = settings, EventLog.open(settings)
        self._generator, self._runs = random.Random(7), 0
        self._reader = Reader(settings)

    def run(
        self,
        commit: str | None,
        factor: float = 1.0,
        *,
        driver: str = "1.0",
        verify: bool = True,
        branch: str | None = None,
        committed_at: str | None = None,
        **changes: Any,
    ) -> str:
        """One run of one process of the cell; its id."""
        self._runs += 1
        run_id = f"run-{self._runs:04d}"
        offset = factor * (1 + self._generator.gauss(0, 0.005))
        samples = tuple(int(20e6 * offset * self._generator.lognormvariate(0, 0.01)) for _ in range(30))
        measured = result(**{"samples_ns": samples, "fingerprint": f"driver {driver}", "threads": 1, **changes})
        versions = {"torch": driver}
        device = DeviceObserved(hardware="cpu", backend="pytorch", available=True, device_id="cpu-test",
                                driver=driver, runtime_versions=versions)  # fmt: skip
        given = {"commit": commit, "branch": branch, "committed_at": committed_at}
        labels = {name: value for name, value in given.items() if value}
        payloads: list[Any] = [
            RunStarted(kind="benchmark", labels=labels), device, measured,
        ]  # fmt: skip
        if verify and measured.status == "ok":
            payloads.append(verification(**{name: getattr(measured, name) for name in _VERDICT_FIELDS}))
        self.log.append([event(payload, run_id=run_id) for payload in payloads], key=f"bench-{run_id}-0000")
        return run_id

    def plan(self, commit: str, *batch_sizes: int) -> None:
        """Begin a run of these cells, of which nothing is recorded."""
        cell = {"model": 0, "hardware": "cpu", "sequence_length": 128, "precision": "float32", "mode": "inference"}
        work = [{**cell, "batch_size": size, "processes": 1} for size in batch_sizes]
        plan = {"models": [{"model_id": "bert-base", "weights": None}], "work": work}
        begun = RunStarted(kind="benchmark", labels={"commit": commit}, plan=plan)
        self.log.append([event(begun, run_id=f"run-stopped-{commit[0]}")], key=f"bench-run-stopped-{commit[0]}-0000")

    def runs(self, count: int, commit: str | None, factor: float = 1.0, **changes: Any) -> list[str]:
        return [self.run(commit, factor, **changes) for _ in range(count)]

    def reader(self) -> Reader:
        publish.bring_up_to_date(self.settings)
        return self._reader

    def check(self, baseline: str = OLD, candidate: str = NEW, **options: Any) -> Check:
        reader = self.reader()
        return check(reader, resolve_runs(reader, baseline), resolve_runs(reader, candidate), **options)

    def only(self, **options: Any) -> Decision:
        [decision] = self.check(**options).decisions
        return decision

    def rows(self) -> list[dict[str, Any]]:
        return self.reader().rows("SELECT * FROM regressions ORDER BY found_at")

    def accel(self, *arguments: str) -> Result:
        return CliRunner().invoke(app, ["regress", *arguments, "--home", str(self.settings.home)])

    def copy(self, settings: Settings) -> Lab:
        """The same lab in another home."""
        shutil.copytree(self.settings.home, settings.home)
        copied = Lab(settings)
        copied._generator.setstate(self._generator.getstate())
        copied._runs = self._runs
        return copied


SLOWED = pytest.mark.parametrize("lab", ["slowed"], indirect=True)
"""Begins with six runs of OLD, three of NEW that take 1.3 times as long, and their tables."""
RECORDED = pytest.mark.parametrize("lab", ["recorded"], indirect=True)
"""Begins with these and the regression recorded."""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Lab]:
    """Labs to copy, because many tests begin with them, and building one takes a second."""
    slowed = Lab(Settings(home=tmp_path_factory.mktemp("slowed")))
    slowed.runs(6, OLD)
    slowed.runs(3, NEW, 1.3)
    slowed.reader()
    recorded = slowed.copy(Settings(home=tmp_path_factory.mktemp("recorded") / "home"))
    record_regressions(recorded.settings, [regression_event(recorded.only())])
    recorded.reader()
    return {"slowed": slowed, "recorded": recorded}


@pytest.fixture
def lab(request: pytest.FixtureRequest, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Lab:
    monkeypatch.setenv("ACCEL_HOME", str(settings.home))  # --home sets it, and nobody else would set it back
    for name in (*BRANCH_VARIABLES, *COMMIT_VARIABLES):
        monkeypatch.delenv(name, raising=False)
    if hasattr(request, "param"):
        built: dict[str, Lab] = request.getfixturevalue("built")
        return built[request.param].copy(settings)
    return Lab(settings)


class TestVerdict:
    @pytest.mark.parametrize(("factor", "state", "code"), [(1.0, "ok", 0), (1.2, "regressed", 1), (0.8, "improved", 0)])
    def test_a_candidate_is_held_against_its_baseline(self, lab: Lab, factor: float, state: str, code: int) -> None:
        lab.runs(6, OLD)
        lab.runs(3, NEW, factor)
        checked = lab.check()
        [found] = checked.decisions
        assert (found.state, checked.exit_code) == (state, code)
        assert (found.processes_before, found.processes_after) == (6, 3)
        assert (found.commits_before, found.commits_after) == ((OLD,), (NEW,))
        assert found.change_percent == pytest.approx(100 * (factor - 1), abs=2)
        assert found.p_value is not None

    def test_without_anything_to_decide_the_exit_code_says_so(self, lab: Lab) -> None:
        lab.runs(2, OLD)
        lab.run(NEW, 2.0)
        checked = lab.check()
        assert (checked.decisions[0].state, checked.exit_code) == ("insufficient_data", 2)
        assert checked.decisions[0].reason == "its noise is unknown: 3 more earlier processes of this series are needed"

    def test_earlier_runs_of_other_commits_tell_the_noise(self, lab: Lab) -> None:
        lab.runs(8, None)
        lab.runs(2, OLD)
        lab.runs(2, NEW, 1.3)
        assert lab.only().state == "regressed"

    def test_the_noise_allowed_for_grows_with_the_cells_of_the_check(self, lab: Lab) -> None:
        sizes = range(1, 23)
        for commit in (*[OLD] * 6, NEW, NEW):
            lab.run(commit)
        [alone] = lab.check().decisions
        for size in sizes[1:]:
            for commit in (OLD, NEW):
                lab.run(commit, batch_size=size)
        beside = next(d for d in lab.check().decisions if d.series == alone.series)
        assert beside.noise_percent is not None
        assert alone.noise_percent is not None
        assert beside.noise_percent > alone.noise_percent

    def test_runs_made_to_confirm_decide_alone(self, lab: Lab) -> None:
        lab.runs(6, OLD)
        first = lab.run(NEW, 1.4)
        again = lab.runs(3, NEW, 1.0)
        found = lab.only(again=again)
        assert (found.state, found.processes_after) == ("ok", 3)
        reader = lab.reader()
        [newest] = reader.rows("SELECT result_id FROM results WHERE run_id = ?", (first,))
        assert found.first_result == newest["result_id"]

    def test_a_cell_that_fails_now_regressed(self, lab: Lab) -> None:
        lab.runs(2, OLD)
        lab.run(NEW, status="failed", reason="out of memory", samples_ns=())
        found = lab.only()
        assert (found.state, found.reason) == ("regressed", "it fails now: out of memory")

    def test_a_cell_whose_outputs_are_wrong_now_regressed(self, lab: Lab) -> None:
        lab.runs(2, OLD)
        run = lab.run(NEW, verify=False)
        lab.log.append([event(verification(passed=False), run_id=run)])
        assert lab.only().reason == "it fails now: its outputs were found wrong"

    def test_cells_of_one_side_are_named(self, lab: Lab) -> None:
        lab.runs(2, OLD, batch_size=2)
        lab.runs(2, NEW, batch_size=4)
        told = {d.series.batch_size: (d.state, d.reason) for d in lab.check().decisions}
        assert told == {
            2: ("insufficient_data", "the candidate did not measure it"),
            4: ("insufficient_data", "the baseline did not measure it"),
        }

    def test_a_run_that_was_stopped_passes_no_gate_and_a_cell_that_nobody_wants_any_more_does(self, lab: Lab) -> None:
        for size in (1, 2, 4):
            lab.runs(6, OLD, batch_size=size)
        lab.run(NEW, batch_size=1)
        lab.plan(NEW, 1, 2)
        checked = lab.check()
        stopped = "its run was to, and was stopped or is still under way; `accel bench run --resume` measures the rest"
        told = {d.series.batch_size: (d.state, d.cut_short, d.reason) for d in checked.decisions}
        assert told[2] == (
            "insufficient_data",
            True,
            f"the candidate did not measure it: {stopped}",
        )
        assert told[4] == ("insufficient_data", False, "the candidate did not measure it")
        assert (told[1][0], checked.exit_code) == ("ok", 2)
        lab.run(NEW, batch_size=2)
        assert lab.check().exit_code == 0

    def test_a_baseline_that_was_stopped_passes_no_gate(self, lab: Lab) -> None:
        lab.runs(6, OLD)
        lab.plan(OLD, 1, 2)
        for size in (1, 2):
            lab.run(NEW, batch_size=size)
        assert {d.series.batch_size: d.cut_short for d in lab.check().decisions} == {1: False, 2: True}
        assert lab.check().exit_code == 2

    def test_hardware_that_went_away_passes_no_gate(self, lab: Lab) -> None:
        lab.runs(6, OLD)
        lab.runs(6, OLD, hardware="openvino", backend="openvino")
        gone = DeviceObserved(hardware="openvino", backend="openvino", available=False, reason="no plug-in")
        lab.log.append([event(gone, run_id=lab.run(NEW))])
        checked = lab.check()
        told = {d.series.hardware: d.reason for d in checked.decisions}
        assert told["openvino"] == "the candidate did not measure it: openvino was not available, no plug-in"
        assert checked.exit_code == 2

    @pytest.mark.parametrize("changes", [{"provenance": "emulated"}, {"provenance": "imported"}])
    def test_only_what_was_measured_counts(self, lab: Lab, changes: dict[str, Any]) -> None:
        lab.runs(6, OLD, **changes)
        lab.runs(3, NEW, 2.0, **changes)
        checked = lab.check()
        assert (checked.decisions, checked.exit_code) == ((), 2)

    def test_unverified_measurements_answer_for_nothing(self, lab: Lab) -> None:
        lab.runs(6, OLD)
        lab.runs(3, NEW, 2.0, verify=False)
        assert "outputs were not verified" in (lab.only().reason or "")


class TestBranches:
    """Branches that are measured in turns, as pull requests of several people are."""

    def test_a_faster_branch_hides_no_regression_of_another(self, lab: Lab) -> None:
        lab.runs(5, OLD, branch="main")
        for number in range(10):
            lab.run(f"c{number:039}", branch="main")
            lab.run(f"d{number:039}", 0.8, branch="feature")
        lab.runs(3, NEW, 1.05, branch="slower")
        assert lab.only().state == "regressed"

    def test_failures_of_a_branch_excuse_no_other(self, lab: Lab) -> None:
        lab.runs(5, OLD, branch="main")
        for number in range(5):
            lab.run(f"c{number:039}", branch="main")
            lab.run(f"d{number:039}", branch="broken", status="failed", reason="out of memory", samples_ns=())
        lab.run(NEW, branch="feature", status="failed", reason="out of memory", samples_ns=())
        assert lab.only().state == "regressed"

    def test_the_history_watches_each_branch_by_itself(self, lab: Lab) -> None:
        for number in range(12):
            lab.run(f"c{number:039}", 1.0 if number < 9 else 1.2, branch="main")
            lab.run(f"d{number:039}", 0.8, branch="feature")
        reader = lab.reader()
        [found] = find_shifts(read_measured_series(reader), read_decisions(reader), min_change_percent=3.0)
        [shift] = found.shifts
        assert (shift.state, shift.commits_after[0]) == ("regressed", f"c{9:039}")

    def test_a_shift_is_not_gone_because_another_branch_is_as_before(self, lab: Lab) -> None:
        lab.runs(6, OLD, branch="main")
        lab.runs(3, NEW, 1.3, branch="main")
        record_regressions(lab.settings, [regression_event(lab.only())])

        def state() -> str:
            [row] = lab.reader().rows("SELECT state FROM regressions")
            return str(row["state"])

        lab.runs(3, "c" * 40, branch="begun-before")
        assert state() == "open"
        lab.runs(3, "d" * 40, branch="main")
        assert state() == "gone"

    def test_a_shift_of_a_branch_is_gone_once_that_branch_is_as_before(self, lab: Lab) -> None:
        lab.runs(6, OLD, branch="main")
        lab.runs(3, NEW, 1.3, branch="feature")
        record_regressions(lab.settings, [regression_event(lab.only())])
        lab.runs(4, "c" * 40, branch="main")
        lab.reader()
        assert lab.rows()[0]["state"] == "open"
        lab.runs(3, "d" * 40, branch="feature")
        lab.reader()
        assert lab.rows()[0]["state"] == "gone"

    def test_a_shift_that_stays_open_is_one_however_often_it_is_found(self, lab: Lab) -> None:
        lab.runs(6, OLD, branch="main")
        pushed = [f"c{number:039}" for number in range(4)]
        for commit in pushed:
            lab.runs(2, commit, 1.3, branch="main")
            record_regressions(lab.settings, [regression_event(lab.only(candidate=commit))])
        reader = lab.reader()
        [row] = lab.rows()
        found = min(lab.log.read(types={"RegressionFound"}), key=lambda event: event.recorded_at)
        assert (row["state"], row["branch"], row["runs"], row["commits_after"]) == ("open", "main", 8, pushed)
        assert (row["first_result"], row["found_at"]) == (found.payload.first_result, found.occurred_at)  # type: ignore[union-attr]
        [[newest]] = [list(r.values()) for r in reader.rows("SELECT max(occurred_at) AS at FROM results")]
        assert row["last_seen"] == newest
        assert len(row["evidence"]) == 8
        # Accepting it accepts all of it.
        accepted = build_acceptance(reader, row["regression_id"], by="ada", reason="meant")
        lab.log.append([event(accepted)])
        assert [lab.only(candidate=commit).state for commit in pushed] == ["ok"] * 4

    def test_what_goes_further_or_is_of_another_branch_is_another_shift(self, lab: Lab) -> None:
        lab.runs(6, OLD, branch="main")
        for commit, factor, branch in ((NEW, 1.3, "main"), ("c" * 40, 1.3, "feature"), ("d" * 40, 1.7, "main")):
            lab.runs(3, commit, factor, branch=branch)
            record_regressions(lab.settings, [regression_event(lab.only(candidate=commit))])
        lab.reader()
        states = {row["commits_after"][0]: row["state"] for row in lab.rows()}
        assert states == {NEW: "gone", "c" * 40: "open", "d" * 40: "open"}, (
            "the further shift takes the first one's place"
        )

    def test_of_shifts_that_earlier_versions_recorded_each_by_itself_one_is_open(self, lab: Lab) -> None:
        lab.runs(6, OLD)
        pushed = [f"c{number:039}" for number in range(3)]
        for commit in pushed:
            lab.runs(2, commit, 1.3)
        found = [regression_event(lab.only(candidate=commit)) for commit in pushed]
        record_regressions(lab.settings, found)
        lab.reader()
        assert [row["state"] for row in sorted(lab.rows(), key=lambda row: row["first_result"])] == [
            "gone",
            "gone",
            "open",
        ]

    def test_what_comes_back_after_it_was_gone_is_a_new_shift(self, lab: Lab) -> None:
        lab.runs(6, OLD)
        lab.runs(3, NEW, 1.3)
        record_regressions(lab.settings, [regression_event(lab.only())])
        lab.runs(3, "c" * 40)
        lab.reader()
        lab.runs(3, "d" * 40, 1.3)
        record_regressions(lab.settings, [regression_event(lab.only(candidate="d" * 40))])
        lab.reader()
        assert sorted((row["commits_after"][0], row["state"]) for row in lab.rows()) == [
            (NEW, "gone"),
            ("d" * 40, "open"),
        ]

    def test_a_level_that_a_branch_had_accepted_is_no_baseline_of_another_before_it_is_merged(self, lab: Lab) -> None:
        lab.runs(6, OLD, branch="main")
        lab.runs(3, "c" * 40, 1.3, branch="feature")
        [shift] = map(regression_event, lab.check(OLD, "c" * 40).decisions)
        record_regressions(lab.settings, [shift])
        accepted = build_acceptance(lab.reader(), shift.regression_id, by="ada", reason="wanted")
        lab.log.append([event(accepted)])
        lab.runs(3, NEW, 1.2, branch="other")
        assert lab.only().state == "regressed", "and not faster than a level that is not merged"
        assert lab.check(OLD, "c" * 40).exit_code == 0
        lab.run("d" * 40, 1.3, branch="main")
        assert [d.state for d in lab.check(OLD, "d" * 40).decisions] == ["ok"]
        lab.runs(3, "e" * 40, 1.3, branch="third")
        [found] = lab.check(OLD, "e" * 40).decisions
        assert (found.state, found.reason) == ("ok", "before: the level that ada accepted")


class TestUnlike:
    def test_unlike_fingerprints_are_never_compared_but_say_what_differs(self, lab: Lab) -> None:
        lab.runs(6, OLD)
        lab.runs(3, NEW, 2.0, driver="2.0", threads=4)
        found = lab.only()
        assert found.state == "insufficient_data"
        assert found.reason == (
            "not comparable: driver 1.0 before, 2.0 now; threads 1 before, 4 now; torch 1.0 before, 2.0 now"
        )
        assert found.change_percent is None
        assert (found.before_ms, found.after_ms) == (pytest.approx(20, rel=0.02), pytest.approx(40, rel=0.02))

    def test_another_device_is_named(self, lab: Lab) -> None:
        lab.runs(6, OLD)
        lab.runs(3, NEW, 2.0, device_id="cpu-other", fingerprint="of another")
        found = lab.only()
        assert found.reason == "not comparable: device cpu-test before, cpu-other now"
        assert (found.before_ms, found.after_ms) == (None, None)

    def test_of_several_fingerprints_like_is_held_against_like(self, lab: Lab) -> None:
        """The faster driver hides nothing, and the slower one accuses nobody."""
        for driver, factor in (("1.0", 1.0), ("2.0", 3.0)):
            lab.runs(6, OLD, factor, driver=driver)
            lab.runs(3, NEW, factor * (1.3 if driver == "1.0" else 1.0), driver=driver)
        told = {d.series.fingerprint: d.state for d in lab.check().decisions}
        assert told == {"driver 1.0": "regressed", "driver 2.0": "ok"}

    def test_a_cell_compared_under_a_new_fingerprint_is_not_missed_under_the_old_one(self, lab: Lab) -> None:
        lab.runs(6, OLD)
        lab.runs(6, OLD, driver="2.0")
        lab.run(NEW, driver="2.0")
        assert [(d.series.fingerprint, d.state) for d in lab.check().decisions] == [("driver 2.0", "ok")]

    def test_whatever_is_measured_where_no_decision_mixes_fingerprints(self, lab: Lab) -> None:
        generator = random.Random(3)
        for _ in range(40):
            driver = generator.choice("123")
            device, size = generator.choice(["cpu-test", "cpu-other"]), generator.choice([1, 2])
            commit, factor = generator.choice([OLD, NEW, "c" * 40]), generator.uniform(1, 3)
            lab.run(commit, factor, driver=driver, batch_size=size, device_id=device)
        made_by = {
            row["result_id"]: (row["fingerprint"], row["device_id"], row["batch_size"], row["commit"])
            for row in lab.reader().rows('SELECT r.*, u."commit" FROM results AS r JOIN runs AS u USING (run_id)')
        }
        decisions = lab.check().decisions
        assert sum(len(d.evidence) for d in decisions) > 5
        for decision in decisions:
            series = decision.series
            for result_id in decision.evidence:
                assert made_by[result_id] == (series.fingerprint, series.device_id, series.batch_size, NEW)


class TestRefs:
    def test_a_run_a_commit_and_their_prefixes(self, lab: Lab) -> None:
        first, second = lab.runs(2, OLD)
        reader = lab.reader()
        assert resolve_runs(reader, first).run_ids == (first,)
        assert resolve_runs(reader, OLD).run_ids == (first, second)
        assert resolve_runs(reader, OLD[:7]).run_ids == (first, second)
        assert resolve_runs(reader, first).commit == OLD

    def test_what_git_calls_a_commit(self, lab: Lab, tmp_path: Path) -> None:
        repository = tmp_path / "repository"
        git = ["git", "-C", str(repository), "-c", "user.name=t", "-c", "user.email=t@example.org"]
        subprocess.run(["git", "init", "-q", "-b", "main", str(repository)], check=True)
        subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "first"], check=True)
        commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
        with pytest.raises(NotFound, match=f"is commit {commit[:12]}, which no run here measured"):
            resolve_runs(lab.reader(), "main", folder=repository)
        run = lab.run(commit)
        assert resolve_runs(lab.reader(), "main", folder=repository).run_ids == (run,)
        subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "second"], check=True)
        assert resolve_runs(lab.reader(), "HEAD~1", folder=repository).run_ids == (run,)

    def test_what_git_lacks_is_named(self, lab: Lab, tmp_path: Path) -> None:
        """A push of two commits measures the last, and the runner of a job clones as little as it can."""
        repository, shallow, nothing = tmp_path / "repository", tmp_path / "shallow", tmp_path / "nothing"
        git = ["git", "-C", str(repository), "-c", "user.name=t", "-c", "user.email=t@example.org"]
        subprocess.run(["git", "init", "-q", "-b", "main", str(repository)], check=True)
        for word in ("first", "second", "third"):
            subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", word], check=True)
        log = subprocess.run([*git, "rev-list", "HEAD"], check=True, capture_output=True, text=True).stdout.split()
        lab.run(log[2])
        reader = lab.reader()
        last = f"The last measured commit before it is {log[2][:12]}."
        with pytest.raises(NotFound, match=f"^'HEAD' is commit {log[0][:12]}, which no run .* {last}$"):
            resolve_runs(reader, "HEAD", folder=repository)
        with pytest.raises(NotFound, match=f"^commit {log[1][:12]}, which no run here measured"):
            resolve_runs(reader, log[1], folder=repository)
        subprocess.run(["git", "clone", "-q", "--depth", "1", f"file://{repository}", str(shallow)], check=True)
        with pytest.raises(NotFound, match="This clone is shallow: `git fetch --unshallow --tags` brings its history"):
            resolve_runs(reader, "HEAD~1", folder=shallow)
        nothing.mkdir()
        with pytest.raises(NotFound, match="There is no git repository here: name a run, or a commit"):
            resolve_runs(reader, "HEAD~1", folder=nothing)

    def test_what_means_no_run_is_refused(self, lab: Lab, tmp_path: Path) -> None:
        lab.run(OLD)
        reader = lab.reader()
        for ref in ("", "aaaaaa", "nothing", "--all", "no such thing"):
            with pytest.raises(NotFound, match="is no run"):
                resolve_runs(reader, ref, folder=tmp_path)

    def test_the_beginning_of_two_commits_is_refused(self, lab: Lab) -> None:
        lab.run("abcdef0123")
        lab.run("abcdef0999")
        with pytest.raises(InvalidInput, match="begins several names"):
            resolve_runs(lab.reader(), "abcdef0")


class TestRecorded:
    @SLOWED
    def test_finding_it_again_changes_nothing(self, lab: Lab) -> None:
        for _ in range(2):
            record_regressions(lab.settings, [regression_event(lab.only())])
        [row] = lab.rows()
        assert (row["state"], row["direction"], row["found_by"]) == ("open", "regressed", "check")
        assert (row["commits_before"], row["commits_after"]) == ([OLD], [NEW])
        assert row["change_percent"] == pytest.approx(30, abs=2)
        assert len(row["evidence"]) == 3

    @RECORDED
    def test_an_accepted_level_is_the_new_baseline_and_the_history_stays(self, lab: Lab) -> None:
        [row] = lab.rows()
        accepted = build_acceptance(lab.reader(), row["regression_id"][:6], by="ada", reason="more layers")
        lab.log.append([event(accepted)])
        [row] = lab.rows()
        assert (row["state"], row["accepted_by"], row["accepted_reason"]) == ("accepted", "ada", "more layers")
        assert (lab.only().state, lab.only().reason) == ("ok", "ada accepted its new level")
        later = "c" * 40
        lab.runs(3, later, 1.3)
        assert lab.only(candidate=later).state == "ok"
        worse = "d" * 40
        lab.runs(3, worse, 1.7)
        found = lab.only(candidate=worse)
        assert (found.state, found.change_percent) == ("regressed", pytest.approx(30, abs=3))
        assert len(lab.reader().rows("SELECT * FROM results")) == 15

    @RECORDED
    @pytest.mark.parametrize("recorded", [True, False])
    def test_a_regression_that_nobody_accepted_is_no_baseline_when_pushed_again(self, lab: Lab, recorded: bool) -> None:
        """Whoever keeps the commit before an accepted level as the baseline is held against that level alone."""
        [row] = lab.rows()
        lab.log.append([event(build_acceptance(lab.reader(), row["regression_id"], by="ada", reason="more layers"))])
        lab.runs(3, "c" * 40, 1.3)
        slow, again = "d" * 40, "e" * 40
        lab.runs(8, slow, 1.7)
        found = lab.only(candidate=slow)
        if recorded:
            record_regressions(lab.settings, [regression_event(found)])
        lab.runs(3, again, 1.7)
        pushed = lab.only(candidate=again)
        assert (found.state, pushed.state) == ("regressed", "regressed")
        assert pushed.before_ms == pytest.approx(found.before_ms, rel=0.02)
        # Nor are newer results the baseline of an older candidate.
        assert lab.only(candidate="c" * 40).state == "ok"

    @pytest.mark.parametrize("first", ["baseline", "candidate"])
    def test_a_baseline_that_is_measured_after_the_accepted_commit_is_no_newer(self, lab: Lab, first: str) -> None:
        if first == "baseline":
            lab.runs(6, OLD)
        lab.runs(6, NEW, 1.3)
        if first == "candidate":
            lab.runs(6, OLD)
        record_regressions(lab.settings, [regression_event(lab.only())])
        [row] = lab.rows()
        accepted = build_acceptance(lab.reader(), row["regression_id"][:6], by="ada", reason="more layers")
        lab.log.append([event(accepted)])
        lab.runs(3, OLD)
        assert (lab.only().state, lab.only().reason) == ("ok", "ada accepted its new level")
        later, worse = "c" * 40, "d" * 40
        lab.runs(3, later, 1.3)
        assert lab.only(candidate=later).state == "ok"
        lab.runs(3, worse, 1.7)
        assert lab.only(candidate=worse).state == "regressed"

    def test_a_decision_without_a_name_says_how_to_give_one(self, lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("USER", "ACCEL_USER"):
            monkeypatch.delenv(name, raising=False)
        lab.runs(2, OLD)
        lab.reader()
        for decide in ("accept", "reject"):
            assert "--by NAME" in str(lab.accel(decide, "abc", "--reason", "more layers").exception)

    def test_a_commit_that_reverts_a_regression_passes(self, lab: Lab) -> None:
        """The level that was left again is no noise, recorded open or gone; without the record it is."""
        reverted = "c" * 40
        for factor in (0.9, 1.1, 1.0, 0.95, 1.05, 1.0):
            lab.run(OLD, factor)
        lab.runs(4, NEW, 3.0)
        found = lab.only()
        lab.run(reverted)
        assert lab.only(candidate=reverted).state == "insufficient_data"
        record_regressions(lab.settings, [regression_event(found)])
        for state in ("open", "gone"):
            decided = lab.only(candidate=reverted)
            assert (decided.state, lab.rows()[0]["state"]) == ("ok", state)
            assert decided.noise_percent is not None
            assert decided.noise_percent < 25
            lab.runs(2, reverted)

    def test_disturbed_processes_are_no_noise_to_calm_ones(self, lab: Lab) -> None:
        lab.runs(6, OLD)
        waited = {"others_share": 0.4, "waiting_share": 0.5}
        lab.runs(3, "d" * 40, 30.0, environment={"contention": waited})
        lab.run(NEW)
        assert lab.only().state == "ok"

    def test_a_host_that_got_busier_is_no_regression(self, lab: Lab) -> None:
        lab.runs(6, OLD, environment={"contention": {"others_share": 0.2, "waiting_share": 0.1}})
        lab.runs(3, NEW, 1.4, environment={"contention": {"others_share": 0.6, "waiting_share": 0.1}})
        found = lab.only()
        assert (found.state, found.disturbed) == ("insufficient_data", True)
        assert "used 20% of the processor before and 60% now" in str(found.reason)

    @RECORDED
    def test_a_shift_that_went_back_is_gone_after_three_results(self, lab: Lab) -> None:
        states = []
        for factor in (1.0, 1.3, 1.0, 1.0, 1.0):
            lab.run("c" * 40, factor)
            states.append(lab.rows()[0]["state"])
        assert states == ["open", "open", "open", "open", "gone"]

    @RECORDED
    def test_a_baseline_that_is_measured_again_does_not_end_a_shift(self, lab: Lab) -> None:
        lab.runs(5, OLD)
        assert lab.rows()[0]["state"] == "open"

    def test_a_failure_is_gone_once_it_works(self, lab: Lab) -> None:
        lab.runs(2, OLD)
        lab.run(NEW, status="failed", reason="out of memory", samples_ns=())
        record_regressions(lab.settings, [regression_event(lab.only())])
        assert lab.rows()[0]["state"] == "open"
        lab.run("c" * 40, 7.0)
        assert lab.rows()[0]["state"] == "gone"

    @RECORDED
    @pytest.mark.parametrize(("by", "reason", "which"), [("", "r", 0), ("b", " ", 0), ("b", "r", 1)])
    def test_a_word_needs_a_name_a_reason_and_a_regression(self, lab: Lab, by: str, reason: str, which: int) -> None:
        known = lab.rows()[0]["regression_id"]
        for word in (build_acceptance, build_rejection):
            with pytest.raises((InvalidInput, NotFound)):
                word(lab.reader(), [known, "nothing"][which], by=by, reason=reason)

    def test_what_is_no_finding_is_not_recorded(self, lab: Lab) -> None:
        lab.runs(6, OLD)
        lab.runs(3, NEW)
        with pytest.raises(ValueError, match="no finding"):
            regression_event(lab.only())


class TestRejected:
    """What a person calls no real shift counts neither against a candidate nor for the level others are held to."""

    def _reject(self, lab: Lab, regression_id: str) -> None:
        lab.log.append([event(build_rejection(lab.reader(), regression_id, by="bob", reason="it throttled"))])

    def _found(self, lab: Lab, **options: Any) -> str:
        worst, *_ = lab.check(**options).decisions
        found = regression_event(worst)
        record_regressions(lab.settings, [found])
        return found.regression_id

    @SLOWED
    def test_it_fails_no_gate_and_is_not_open(self, lab: Lab) -> None:
        lab.run(NEW, status="failed", reason="timeout", samples_ns=())
        self._reject(lab, self._found(lab))
        [row] = lab.rows()
        assert (row["state"], row["rejected_by"], row["rejected_reason"]) == ("rejected", "bob", "it throttled")
        assert (len(row["rejected_results"]), row["accepted_by"]) == (4, None)
        checked = lab.check()
        failing, told = checked.decisions
        assert (failing.state, failing.reason) == ("suspicious", "1 of 4 processes failed, 0 of 6 before: timeout")
        assert (told.state, told.reason, checked.exit_code) == ("ok", "its shift was rejected", 0)
        assert (told.processes_before, told.processes_after) == (6, 4)
        assert len(lab.reader().rows("SELECT * FROM results")) == 10, "the results stay"

    @SLOWED
    def test_its_level_is_no_baseline_and_the_same_or_more_is_raised_again(self, lab: Lab) -> None:
        first = self._found(lab)
        self._reject(lab, first)
        mended, worse = "c" * 40, "d" * 40
        lab.runs(3, mended)
        lab.runs(3, worse, 1.7)
        assert lab.only(baseline=NEW, candidate=mended).state == "ok", "not improved: it is where it was"
        larger = lab.only(baseline=NEW, candidate=worse)
        assert (larger.state, larger.commits_before) == ("regressed", (OLD,))
        assert larger.change_percent == pytest.approx(70, abs=3), "against the level before, not the rejected one"
        lab.runs(3, NEW, 1.3)
        again = lab.only()
        assert (again.state, again.change_percent) == ("regressed", pytest.approx(30, abs=3))
        assert regression_event(again).regression_id != first
        record_regressions(lab.settings, [regression_event(again)])
        assert sorted(row["state"] for row in lab.rows()) == ["open", "rejected"]

    @SLOWED
    def test_what_is_as_before_and_what_another_shift_began_still_count(self, lab: Lab) -> None:
        first = self._found(lab)
        lab.run("c" * 40, 1.31)
        lab.run("c" * 40, 1.0)
        worse = "d" * 40
        lab.runs(3, worse, 1.7)
        second = self._found(lab, candidate=worse)
        self._reject(lab, first)
        rows = {row["regression_id"]: row for row in lab.rows()}
        assert len(rows[first]["rejected_results"]) == 4
        assert (rows[second]["state"], lab.only(candidate=worse).state) == ("open", "regressed")

    @pytest.mark.parametrize("is_recorded", [False, True])
    def test_a_shift_of_an_abandoned_branch_is_rejected_alone(self, lab: Lab, is_recorded: bool) -> None:
        on_main, again = "c" * 40, "d" * 40
        lab.runs(6, OLD, branch="main")
        lab.runs(3, NEW, 1.3, branch="abandoned")
        shift = self._found(lab)
        lab.runs(3, on_main, 1.3, branch="main")
        if is_recorded:
            self._found(lab, candidate=on_main)
        lab.runs(2, again, 1.3, branch="abandoned")
        self._reject(lab, shift)
        assert lab.only(candidate=again).reason == "its shift was rejected"
        found = lab.only(candidate=on_main)
        assert (found.state, found.processes_after) == ("regressed", 3)
        assert {row["branch"]: row["state"] for row in lab.rows()} == {
            "abandoned": "rejected",
            **({"main": "open"} if is_recorded else {}),
        }

    def test_a_failure_is_rejected_until_it_fails_again(self, lab: Lab) -> None:
        lab.runs(2, OLD)
        lab.run(NEW, status="failed", reason="out of memory", samples_ns=())
        self._reject(lab, self._found(lab))
        assert (lab.only().state, lab.check().exit_code) == ("ok", 0)
        lab.run(NEW, status="failed", reason="out of memory", samples_ns=())
        assert lab.only().state == "regressed"

    def test_the_history_does_not_tell_it_again_until_it_is_measured_again(self, lab: Lab) -> None:
        lab.runs(12, OLD)
        lab.runs(14, NEW, 1.2)
        [shift] = _shifts(lab)
        record_regressions(lab.settings, [shift])
        self._reject(lab, shift.regression_id)
        assert _shifts(lab) == []
        lab.runs(5, NEW, 1.2)
        [again] = _shifts(lab)
        assert again.regression_id != shift.regression_id
        assert again.before_ms == pytest.approx(shift.before_ms, rel=0.01)

    @SLOWED
    def test_the_last_word_counts_and_every_word_is_kept(self, lab: Lab) -> None:
        found = self._found(lab)
        for word, state in (
            (build_acceptance, "accepted"),
            (build_rejection, "rejected"),
            (build_acceptance, "accepted"),
        ):
            lab.log.append([event(word(lab.reader(), found, by="ada", reason=state))])
            [row] = lab.rows()
            assert row["state"] == state
            assert [row[f"{one}_reason"] for one in ("accepted", "rejected")].count(None) == 1
            assert lab.only().reason == (
                "ada accepted its new level" if state == "accepted" else "its shift was rejected"
            )
        told = lab.reader().rows("SELECT count(*) AS n FROM events WHERE starts_with(type, 'Shift')")
        assert told == [{"n": 3}]
        assert lab.check().exit_code == 0
        # Whoever was mistaken withdraws it, and the gate fails as if nobody had decided.
        words = ("reopen", found, "--by", "eve", "--reason", "the wrong one")
        assert lab.accel(*words).stdout.endswith("undecided again; the baseline is as it was.\n")
        assert lab.rows()[0]["state"] == "open"
        assert (lab.only().state, lab.check().exit_code) == ("regressed", 1)
        assert str(lab.accel(*words).exception) == _already(found, "reopened", "eve")


def _shifts(lab: Lab) -> list[Any]:
    reader = lab.reader()
    [one] = find_shifts(read_measured_series(reader), read_decisions(reader), min_change_percent=3.0)
    return list(one.shifts)


def _already(regression_id: str, state: str, by: str) -> str:
    return f"The regression {regression_id} was {state} already, by {by}."


class TestHistory:
    def test_a_shift_names_the_commit_it_began_with(self, lab: Lab) -> None:
        lab.runs(12, OLD)
        lab.runs(5, NEW, 1.2)
        [shift] = _shifts(lab)
        assert (shift.state, shift.commits_before, shift.commits_after) == ("regressed", (OLD,), (NEW,))
        assert shift.processes_after == 3
        record_regressions(lab.settings, [shift])
        assert lab.rows()[0]["regression_id"] == shift.regression_id

    def test_older_commits_measured_late_are_none(self, lab: Lab) -> None:
        for day in range(10, 22):
            lab.run(f"c{day:039}", committed_at=f"2026-10-{day}T00:00:00+00:00")
        for day in range(1, 5):
            lab.run(f"c{day:039}", 1.5, committed_at=f"2026-10-0{day}T00:00:00+00:00")
        assert _shifts(lab) == []
        for day in range(22, 26):
            lab.run(f"c{day:039}", 1.5, committed_at=f"2026-10-{day}T00:00:00+00:00")
        [shift] = _shifts(lab)
        assert shift.commits_after[0] == f"c{22:039}"

    def test_a_spike_is_none(self, lab: Lab) -> None:
        lab.runs(12, OLD)
        lab.run(NEW, 3.0)
        lab.runs(5, OLD)
        assert _shifts(lab) == []

    def test_an_accepted_shift_is_not_told_again_and_a_later_one_is(self, lab: Lab) -> None:
        lab.runs(12, OLD)
        lab.runs(14, NEW, 1.2)
        [shift] = _shifts(lab)
        record_regressions(lab.settings, [shift])
        lab.log.append([event(build_acceptance(lab.reader(), shift.regression_id, by="ada", reason="meant"))])
        assert _shifts(lab) == []
        lab.runs(4, "c" * 40, 1.5)
        [later] = _shifts(lab)
        assert (later.commits_before, later.commits_after) == ((NEW,), ("c" * 40,))


class TestMeasures:
    """Memory and failures are judged beside the latency, by one's own levels and decisions."""

    def _find(self, lab: Lab, measure: str, **options: Any) -> Decision:
        [found] = [decision for decision in lab.check(**options).decisions if decision.measure == measure]
        return found

    def _decide(self, lab: Lab, build: Any, decision: Decision) -> None:
        record_regressions(lab.settings, [regression_event(decision)])
        lab.log.append([event(build(lab.reader(), decision_id(decision), by="ada", reason="a cache"))])

    @pytest.mark.parametrize(
        ("field", "measure"), [("memory_peak_mib", "memory"), ("memory_device_peak_mib", "device_memory")]
    )
    def test_memory_that_grew_fails_the_gate_and_the_latency_is_as_it_was(
        self, lab: Lab, field: str, measure: str
    ) -> None:
        lab.runs(6, OLD, **{field: 500.0})
        lab.runs(3, NEW, **{field: 750.0})
        checked = lab.check()
        grown, latency = checked.decisions
        assert (grown.state, grown.measure, latency.state, latency.measure) == ("regressed", measure, "ok", "latency")
        assert (grown.before_mib, grown.after_mib, grown.before_ms, checked.exit_code) == (500, 750, None, 1)
        record_regressions(lab.settings, [regression_event(grown)])
        [row] = lab.rows()
        assert (row["measure"], row["before_mib"], row["after_mib"], row["before_ms"]) == (measure, 500, 750, None)
        assert (row["state"], row["regression_id"]) == ("open", decision_id(grown))
        assert row["regression_id"] != decision_id(replace(latency, state="regressed"))

    def test_memory_that_went_back_is_gone_after_three_results(self, lab: Lab) -> None:
        lab.runs(6, OLD, memory_peak_mib=500.0)
        lab.runs(3, NEW, memory_peak_mib=750.0)
        record_regressions(lab.settings, [regression_event(self._find(lab, "memory"))])
        states = []
        for size in (750.0, 500.0, None, 500.0, 500.0):
            lab.run("c" * 40, memory_peak_mib=size)
            states.append(lab.rows()[0]["state"])
        assert states == ["open", "open", "open", "open", "gone"], "a result without the figure says nothing"

    def test_runs_made_to_confirm_decide_alone_on_memory_and_failures(self, lab: Lab) -> None:
        lab.runs(12, OLD, memory_peak_mib=500.0)
        lab.run(NEW, memory_peak_mib=750.0)
        lab.run(NEW, status="failed", reason="timeout", samples_ns=())
        assert {d.measure: d.state for d in lab.check().decisions} == {
            "memory": "suspicious",
            "failures": "suspicious",
            "latency": "ok",
        }
        assert {d.measure for d in lab.check().decisions if d.alerts} == {"memory", "failures"}
        again = lab.runs(3, NEW, memory_peak_mib=500.0)
        assert [(d.measure, d.state) for d in lab.check(again=again).decisions] == [("latency", "ok")]

    def test_memory_that_hardly_grew_or_is_unknown_is_not_told(self, lab: Lab) -> None:
        lab.runs(6, OLD, memory_peak_mib=500.0)
        lab.runs(3, NEW, memory_peak_mib=540.0)
        assert lab.only().measure == "latency"
        lab.runs(3, "c" * 40, memory_peak_mib=None)
        assert lab.only(candidate="c" * 40).measure == "latency"

    def test_memory_alone_decides_no_cell(self, lab: Lab) -> None:
        lab.runs(6, OLD, samples_ns=(1,) * 5, memory_peak_mib=500.0)
        lab.runs(3, NEW, samples_ns=(1,) * 5, memory_peak_mib=300.0)
        checked = lab.check()
        assert {d.measure: d.state for d in checked.decisions} == {"memory": "improved", "latency": "insufficient_data"}
        assert checked.exit_code == 2

    def test_watching_memory_makes_latency_no_stricter(self, lab: Lab) -> None:
        for size in range(1, 16):
            for commit in (*[OLD] * 5, NEW, NEW):
                lab.run(commit, batch_size=size, memory_peak_mib=500.0)
        noises = [
            {d.series: d.noise_percent for d in lab.check(measures=measures).decisions if d.measure == "latency"}
            for measures in (MEASURES, ["latency"])
        ]
        assert noises[0] == noises[1]
        assert len(noises[0]) == 15, "with memory 30 tests, which would count for more than 20"

    def test_accepted_memory_is_the_new_baseline_of_memory_alone(self, lab: Lab) -> None:
        lab.runs(6, OLD, memory_peak_mib=500.0)
        lab.runs(6, NEW, memory_peak_mib=750.0)
        self._decide(lab, build_acceptance, self._find(lab, "memory"))
        accepted = self._find(lab, "memory")
        assert (accepted.state, accepted.reason, accepted.after_mib) == ("ok", "ada accepted its new level", 750)
        assert self._find(lab, "latency").processes_before == 6
        lab.runs(3, "c" * 40, memory_peak_mib=1000.0)
        worse = self._find(lab, "memory", candidate="c" * 40)
        assert (worse.state, worse.before_mib, worse.accepted_baseline) == ("regressed", 750, True)
        assert self._find(lab, "latency", candidate="c" * 40).commits_before == (OLD,)

    def test_rejected_memory_still_counts_for_the_latency(self, lab: Lab) -> None:
        lab.runs(6, OLD, memory_peak_mib=500.0)
        lab.runs(3, NEW, memory_peak_mib=750.0)
        self._decide(lab, build_rejection, self._find(lab, "memory"))
        rejected, latency = self._find(lab, "memory"), self._find(lab, "latency")
        assert (rejected.state, rejected.reason, rejected.processes_after) == ("ok", "its shift was rejected", 3)
        assert (latency.state, latency.reason, latency.processes_after) == ("ok", None, 3)

    def test_a_cell_that_fails_more_often_regressed_until_three_work(self, lab: Lab) -> None:
        lab.runs(12, OLD)
        lab.runs(2, NEW)
        lab.runs(4, NEW, status="failed", reason="out of memory", samples_ns=())
        checked = lab.check()
        failing, latency = checked.decisions
        assert (failing.state, failing.measure, latency.state) == ("regressed", "failures", "ok")
        assert failing.reason == "4 of 6 processes failed, 0 of 12 before: out of memory"
        assert checked.exit_code == 1
        record_regressions(lab.settings, [regression_event(failing)])
        states = []
        for _ in range(3):
            lab.run("c" * 40)
            states.append(lab.rows()[0]["state"])
        assert states == ["open", "open", "gone"]
        assert lab.rows()[0]["reason"] == failing.reason

    def test_the_history_watches_memory_and_failures_too(self, lab: Lab) -> None:
        lab.runs(12, OLD, memory_peak_mib=500.0)
        lab.runs(4, NEW, memory_peak_mib=750.0)
        [grown] = _shifts(lab)
        assert (grown.measure, grown.before_mib, grown.after_mib, grown.before_ms) == ("memory", 500, 750, None)
        assert grown.regression_id == decision_id(self._find(lab, "memory"))
        lab.runs(4, "c" * 40, memory_peak_mib=None, status="failed", reason="out of memory", samples_ns=())
        _, failing = _shifts(lab)
        assert (failing.measure, failing.state, failing.reason) == ("failures", "regressed", "out of memory")
        assert (failing.before_ms, failing.after_ms, failing.change_percent) == (
            pytest.approx(20, rel=0.05),
            None,
            None,
        )
        assert failing.regression_id == decision_id(self._find(lab, "failures", candidate="c" * 40))

    def test_a_small_step_of_a_small_peak_is_no_shift(self, lab: Lab) -> None:
        lab.runs(12, OLD, memory_peak_mib=20.0)
        lab.runs(4, NEW, memory_peak_mib=25.0)
        assert _shifts(lab) == []

    @SLOWED
    def test_events_of_before_the_measures_are_of_latencies_and_failures(self, lab: Lab) -> None:
        slower = regression_event(lab.only())
        record_regressions(lab.settings, [slower])
        lab.log.append([event(slower.model_copy(update={"regression_id": "b", "after_ms": None}))])
        lab.reader()
        assert {row["regression_id"]: row["measure"] for row in lab.rows()} == {
            slower.regression_id: "latency",
            "b": "failures",
        }

    def test_reports_name_the_measure(self, lab: Lab) -> None:
        lab.runs(6, OLD, memory_peak_mib=500.0)
        lab.runs(3, NEW, memory_peak_mib=750.0)
        done = lab.accel("check", "--baseline", OLD, "--candidate", NEW, "--record")
        assert done.exit_code == 1
        assert "memory   500 MiB   750 MiB" in done.stdout
        checked = lab.check()
        assert "| memory | 500 MiB | 750 MiB | +50.0 % |" in markdown(checked, recorded=True)
        failing, passing = ET.fromstring(junit(checked, recorded=True)).iter("testcase")
        assert failing.get("name") == f"{passing.get('name')}, memory"
        [failure] = failing.iter("failure")
        assert "500 MiB -> 750 MiB, +50.0 %" in (failure.get("message") or "")
        for command in (["list"], ["history"]):
            assert lab.accel(*command).exit_code == 0
        assert "500 MiB" in lab.accel("list").stdout
        [row] = lab.rows()
        said = lab.accel("accept", row["regression_id"], "--by", "ada", "--reason", "a cache").stdout
        assert "float32, memory 500 MiB -> 750 MiB: the new level" in said


class TestCommand:
    @pytest.mark.slow
    def test_a_regression_in_every_form(self, lab: Lab, tmp_path: Path) -> None:
        lab.runs(6, OLD)
        lab.runs(3, NEW, 1.3)
        page, report = tmp_path / "page.md", tmp_path / "report.xml"
        asked = ["check", "--baseline", OLD, "--candidate", NEW]
        done = lab.accel(*asked, "--json", "--markdown", str(page), "--junit", str(report), "--record")
        assert done.exit_code == 1, done.output
        told = json.loads(done.stdout)
        [cell] = told["cells"]
        assert (told["exit_code"], cell["state"], cell["model_id"]) == (1, "regressed", "bert-base")
        [case] = ET.parse(report).getroot().iter("testcase")
        assert case.find("failure") is not None
        assert "Regression: 1 regressed" in page.read_text()
        assert "| bert-base | cpu, batch 1, length 128, float32 |" in page.read_text()
        listed = json.loads(lab.accel("list", "--json").stdout)
        assert [row["regression_id"] for row in listed] == [cell["regression_id"]]
        rejected = lab.accel("reject", cell["regression_id"][:7], "--by", "ada", "--reason", "it throttled")
        assert (rejected.exit_code, "left out from now on: 3 results" in rejected.stdout) == (0, True), rejected.output
        assert json.loads(lab.accel("list", "--state", "rejected", "--json").stdout)[0]["rejected_by"] == "ada"
        before = lab.log.snapshot()
        again = lab.accel("reject", cell["regression_id"], "--by", "bob", "--reason", "it throttled")
        assert (again.exit_code != 0, str(again.exception)) == (
            True,
            _already(cell["regression_id"], "rejected", "ada"),
        )
        assert lab.log.snapshot() == before
        passed = lab.accel(*asked, "--junit", str(report))
        assert (passed.exit_code, "its shift was rejected" in report.read_text()) == (0, True)
        accepted = lab.accel("accept", cell["regression_id"], "--by", "ada", "--reason", "more layers")
        assert accepted.exit_code == 0, accepted.output
        assert json.loads(lab.accel("list", "--state", "open", "--json").stdout) == []
        assert lab.accel(*asked).exit_code == 0
        assert "more layers" in lab.accel("list", "--json").stdout
        assert json.loads(lab.accel("history", "--model", "bert", "--json").stdout)[0]["results"] == 9

    def test_a_decision_that_is_none_stores_nothing_of_the_others(self, lab: Lab) -> None:
        for size in (1, 4):
            lab.runs(6, OLD, batch_size=size)
            lab.runs(3, NEW, 1.5, batch_size=size)
        lab.accel("check", "--baseline", OLD, "--candidate", NEW, "--record")
        one, two = (row["regression_id"] for row in lab.rows())
        said = ("--by", "ada", "--reason", "more layers")
        assert lab.accel("accept", one, one[:8], *said).stdout.count("the new level") == 1
        assert str(lab.accel("accept", two, one, *said).exception) == _already(one, "accepted", "ada")
        states = {row["regression_id"]: row["state"] for row in lab.rows()}
        assert states == {one: "accepted", two: "open"}

    def test_several_shifts_are_accepted_at_once_and_stand_apart(self, lab: Lab, tmp_path: Path) -> None:
        for size in (1, 4):
            lab.runs(6, OLD, batch_size=size)
            lab.runs(3, NEW, 1.5, batch_size=size)
        asked = ["check", "--baseline", OLD, "--candidate", NEW]
        red = lab.accel(*asked, "--record")
        ids = [row["regression_id"] for row in lab.rows()]
        assert len(ids) == 2
        assert all(one in red.stderr for one in (*ids, "accel regress accept")), red.stderr
        accepted = lab.accel("accept", *ids, "--by", "ada", "--reason", "more layers")
        assert accepted.stdout.count("the new level is the baseline from now on") == 2, accepted.output
        green = lab.accel(*asked, "--junit", str(tmp_path / "report.xml"))
        assert "No regression: 2 accepted." in green.output
        [case, _] = ET.parse(tmp_path / "report.xml").getroot().iter("testcase")
        assert "ada accepted its new level" in ET.tostring(case, encoding="unicode")

    def test_one_cell_on_two_devices_names_them(self, lab: Lab, tmp_path: Path) -> None:
        for device in ("cpu-one", "cpu-two"):
            lab.runs(6, OLD, device_id=device)
            lab.runs(3, NEW, 1.5, device_id=device)
        report = tmp_path / "report.xml"
        asked = ["check", "--baseline", OLD, "--candidate", NEW, "--record", "--junit", str(report)]
        wanted = {f"cpu, batch 1, length 128, float32, cpu-{number}" for number in ("one", "two")}
        printed = [lab.accel(*words).stdout for words in (asked, [*asked[:5], "--format", "markdown"], ["list"])]
        assert all(cell in text for text in printed for cell in wanted), printed
        assert {case.get("name") for case in ET.parse(report).getroot().iter("testcase")} == wanted

    @pytest.mark.parametrize(("factors", "is_common"), [((1.12, 1.15, 1.1), True), ((1.12, 1.15, 1.0), False)])
    def test_cells_that_slow_down_alike_may_tell_of_the_host(
        self, lab: Lab, factors: tuple[float, ...], is_common: bool
    ) -> None:
        for size, factor in enumerate(factors, start=1):
            lab.runs(6, OLD, batch_size=size)
            lab.runs(3, NEW, factor, batch_size=size)
        asked = ["check", "--baseline", OLD, "--candidate", NEW]
        hint = "All 3 latencies grew alike, by 1"
        said = (lab.accel(*asked).stderr, lab.accel(*asked, "--format", "markdown").stdout)
        assert [hint in text for text in said] == [is_common] * 2, said

    def test_a_report_of_nothing_decided_is_no_success(self, lab: Lab, tmp_path: Path) -> None:
        lab.run(OLD)
        lab.run(NEW)
        done = lab.accel("check", "--baseline", OLD, "--candidate", NEW, "--junit", str(tmp_path / "report.xml"))
        assert done.exit_code == 2
        root = ET.parse(tmp_path / "report.xml").getroot()
        assert (root.get("errors"), root.get("skipped"), len([*root.iter("error")])) == ("1", "0", 1)

    def test_a_change_that_one_process_saw_names_the_way_to_decide_it(self, lab: Lab) -> None:
        lab.runs(6, OLD)
        lab.run(NEW, 2.6)
        done = lab.accel("check", "--baseline", OLD, "--candidate", NEW)
        assert (done.exit_code, "suspicious" in done.output) == (0, True), done.output
        assert "1 cell looks changed, which is not decided: add --confirm" in done.output

    def test_what_cannot_be_decided_exits_with_2(self, lab: Lab) -> None:
        lab.run(OLD)
        lab.run(NEW)
        for baseline, candidate, said in (
            ("nothing", NEW, "is no run"),
            (OLD, OLD[:9], "both mean run"),
            ("run-0001", NEW, "insufficient_data"),
        ):
            done = lab.accel("check", "--baseline", baseline, "--candidate", candidate)
            assert (done.exit_code, said in done.output) == (2, True), done.output
            assert "Traceback" not in done.output

    def test_a_log_that_cannot_be_read_is_no_regression(self, lab: Lab) -> None:
        lab.run(OLD)
        lab.run(NEW)
        path = lab.settings.home / "log" / "segments" / "bench-run-0001-0000.parquet"
        path.write_bytes(path.read_bytes()[:100])
        assert lab.accel("check", "--baseline", OLD, "--candidate", NEW).exit_code == 2

    def test_confirming_measures_only_the_commit_that_is_here(self, lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
        lab.runs(6, OLD)
        lab.run(NEW, 2.0)
        monkeypatch.setenv("ACCEL_COMMIT", "c" * 40)
        done = lab.accel("check", "--baseline", OLD, "--candidate", NEW, "--confirm")
        assert done.exit_code == 2
        assert "--confirm would measure commit cccccccccccc" in done.output


@SLOWED
def test_reports_say_what_to_do_about_a_regression(lab: Lab) -> None:
    checked = lab.check()
    [decision] = checked.decisions
    command = f"accel regress accept {decision_id(decision)} --reason WHY --by NAME"
    for recorded, says in ((True, command), (False, "Check again with `--record`")):
        [failure] = ET.fromstring(junit(checked, recorded=recorded)).iter("failure")
        assert says in (failure.text or "")
        assert says in markdown(checked, recorded=recorded)
    unchanged = replace(checked, decisions=(replace(decision, state="ok"),))
    assert "accel regress" not in markdown(unchanged, recorded=True)


def test_names_that_mean_something_elsewhere_stay_names(lab: Lab) -> None:
    """Markdown and XML are written of whatever a model or a reason is called."""
    name = 'a|b "<&>\x01'
    lab.runs(6, OLD, model_id=name)
    lab.run(NEW, model_id=name, status="failed", reason="<b>&]]>\n|", samples_ns=())
    checked = lab.check()
    [case] = ET.fromstring(junit(checked, recorded=False)).iter("testcase")
    assert case.get("classname") == 'a|b "<&>.cpu'
    rows = [line for line in markdown(checked, recorded=False).splitlines() if line.startswith("| a")]
    assert [row.replace("\\|", "").count("|") for row in rows] == [10]


class TestLabels:
    def test_words_and_the_environment_make_them(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in (*BRANCH_VARIABLES, *COMMIT_VARIABLES):
            monkeypatch.delenv(name, raising=False)
        assert add_commit_label(parse_labels(["branch=main", "note=a=b"])) == {"branch": "main", "note": "a=b"}
        monkeypatch.setenv("CI_COMMIT_SHA", "gitlab")
        assert add_commit_label({}) == {"commit": "gitlab"}
        monkeypatch.setenv("GITHUB_SHA", "github")
        monkeypatch.setenv("ACCEL_COMMIT", "ours")
        assert add_commit_label({}) == {"commit": "ours"}
        assert add_commit_label({"commit": "said"}) == {"commit": "said"}

    @pytest.mark.parametrize(
        ("environment", "branch"),
        [
            ({"GITHUB_REF": "refs/heads/main", "GITHUB_HEAD_REF": ""}, "main"),
            ({"GITHUB_REF": "refs/pull/7/merge", "GITHUB_HEAD_REF": "feature"}, "feature"),
            ({"GITHUB_REF": "refs/tags/v1"}, None),
            ({"CI_COMMIT_BRANCH": "main"}, "main"),
            ({"CI_MERGE_REQUEST_SOURCE_BRANCH_NAME": "feature"}, "feature"),
        ],
    )
    def test_ci_says_the_branch(
        self, environment: dict[str, str], branch: str | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in BRANCH_VARIABLES:
            monkeypatch.delenv(name, raising=False)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        assert add_commit_label({"commit": "f" * 40}).get("branch") == branch
        assert add_commit_label({"commit": "f" * 40, "branch": "said"})["branch"] == "said"

    @pytest.mark.parametrize("word", ["", "main", "=main", "branch=", " = "])
    def test_what_is_no_label_is_refused(self, word: str) -> None:
        with pytest.raises(InvalidInput, match="KEY=VALUE"):
            parse_labels([word])


def test_history_list_and_trend_are_of_a_branch(lab: Lab) -> None:
    lab.runs(12, OLD, branch="main")
    lab.runs(6, NEW, 1.3, branch="main")
    lab.runs(6, OLD, branch="feature")
    lab.reader()

    def rows(*arguments: str) -> Any:
        answer = CliRunner().invoke(app, [*arguments, "--json", "--home", str(lab.settings.home)])
        assert answer.exit_code == 0, answer.output
        return json.loads(answer.stdout)

    assert [one["results"] for one in rows("regress", "history", "--record", "--branch", "feature")] == [6]
    assert rows("regress", "list") == []
    [series] = rows("regress", "history", "--record", "--branch", "main")
    assert (series["results"], len(series["shifts"])) == (18, 1)
    assert [row["branch"] for row in rows("regress", "list", "--branch", "main")] == ["main"]
    assert rows("regress", "list", "--branch", "feature") == []
    [trend] = rows("trend", "--model", "bert-base", "--branch", "feature")
    assert (trend["series"]["branch"], len(trend["points"])) == ("feature", 6)


@pytest.mark.parametrize("command", ["regress history", "regress list", "trend --model bert-base"])
@pytest.mark.parametrize(("option", "name"), [("--branch", "mian"), ("--device", "gpu-nope")])
def test_a_misspelt_name_is_an_error(lab: Lab, command: str, option: str, name: str) -> None:
    lab.run(OLD, branch="main")
    lab.reader()
    words = [*command.split(), option, name, "--home", str(lab.settings.home)]
    with pytest.raises(NotFound, match=f"Nothing is known of a {option[2:]} '{name}'"):
        CliRunner().invoke(app, words, catch_exceptions=False)


def test_a_narrow_terminal_shows_cells_and_reasons_whole(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.runs(6, OLD)
    lab.runs(2, NEW)
    lab.run(NEW, batch_size=16)
    lab.reader()
    monkeypatch.setenv("COLUMNS", "100")
    answer = lab.accel("check", "--baseline", OLD, "--candidate", NEW)
    assert answer.exit_code == 0
    for batch in (1, 16):
        assert f"  cpu, batch {batch}, length 128, float32 " in answer.stdout
    assert (
        "\nbert-base, cpu, batch 16, length 128, float32, latency: the baseline did not measure it\n" in answer.stdout
    )


def test_two_formats_are_refused(lab: Lab) -> None:
    answer = lab.accel("check", "--baseline", OLD, "--candidate", NEW, "--json", "--format", "junit")
    assert (answer.exit_code, answer.stdout) == (2, "")
    assert "--json and --format junit are two formats: choose one." in answer.stderr
