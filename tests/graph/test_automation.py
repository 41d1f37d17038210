"""The graph that follows the log: what the daemon would ask for, done in this process, until there is rest."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import duckdb
import pytest
from commits_world import NEW, OLD, Ci
from dagster._core.storage.tags import GRPC_INFO_TAG

from accel_platform.bench.plan.run_locks import hold_run_lock
from accel_platform.events import EventLog
from accel_platform.events.types import CommitChecked, RegressionFound, RunFailed, RunFinished, RunStarted
from accel_platform.settings import Settings
from accel_platform.warehouse import publish
from accel_platform.warehouse.dictionary import table_columns
from accel_platform.warehouse.reader import Reader
from accel_platform.warehouse.rules import RULES
from assets import tables
from assets.definitions import build_defs
from assets.events import raw_events
from assets.executors.heartbeat import stop_runs
from assets.resources import Installation
from assets.run_in_process import dagster_home
from assets.tables import results_rules
from assets.triggers import sensors
from assets.triggers.schedules import nightly_suite, nightly_training, suite_times
from assets.triggers.sensors import failed_runs, log_moved, new_commits, unsent_messages
from factories import event, result, verification
from webhook_receiver import Receiver

TABLES = {"raw_events", "results", "compat_matrix"}


class Home:
    """An installation, the Dagster instance in it, and what its daemon would do."""

    def __init__(self, directory: Path) -> None:
        self.settings = Settings(home=directory)
        self.log = EventLog.open(self.settings)
        self.ci = Ci(self.log)
        self.resources = {"accel": Installation(home=str(directory))}
        self.defs = build_defs(resources=self.resources)
        self.instance = dg.DagsterInstance.from_config(str(dagster_home(self.settings)))
        self.cursors: dict[str, str | None] = {}
        self._automation: Any = None

    def tick(self, sensor: dg.SensorDefinition) -> dg.SensorResult:
        """Evaluate the sensor as its daemon does."""
        # One left to the garbage collector puts another test's instance out of service whenever it is collected.
        with dg.build_sensor_context(
            instance=self.instance,
            cursor=self.cursors.get(sensor.name),
            resources=self.resources,
            definitions=self.defs,
        ) as context:
            found = sensor(context)
        assert isinstance(found, dg.SensorResult)
        assert found.run_requests or found.skip_reason
        self.cursors[sensor.name] = found.cursor
        return found

    def look(self) -> bool:
        """One tick of `log_moved`; whether it said that the log moved."""
        found = self.tick(log_moved)
        for told in found.asset_events:
            assert isinstance(told, dg.AssetMaterialization)
            self.instance.report_runless_asset_event(told)
        return bool(found.asset_events)

    def asked(self) -> set[str]:
        """What the automation sensor would make now."""
        found = dg.evaluate_automation_conditions(
            self.defs, self.instance, asset_selection=dg.AssetSelection.all(), cursor=self._automation
        )
        self._automation = found.cursor
        return {key.to_user_string() for key in self.instance_keys() if found.get_num_requested(key)}

    def instance_keys(self) -> list[dg.AssetKey]:
        return sorted(self.defs.resolve_asset_graph().get_all_asset_keys())

    def make(self, names: set[str]) -> dg.ExecuteInProcessResult:
        """A run of these assets with their checks, as the sensor asks for it."""
        job = self.defs.resolve_implicit_global_asset_job_def()
        return job.execute_in_process(
            instance=self.instance,
            asset_selection=[dg.AssetKey(name) for name in names],
            raise_on_error=False,
        )

    def rest(self, *, rounds: int) -> int:
        """Follow the log until nothing is asked for; the rounds that made something. Fails where there are more."""
        for made in range(rounds + 1):
            wanted = self.asked()
            if not wanted and (self.look() or self.look()):
                wanted = self.asked()
                assert wanted
            if not wanted:
                return made
            assert self.make(wanted).success
        raise AssertionError(f"still something to do after {rounds} rounds: {wanted}")

    def events(self, kind: str) -> list[Any]:
        return [event.payload for event in self.log.read(types={kind})]


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path / "home")
    with made.instance:
        made.asked()  # the first evaluation only sees what there is
        yield made


def _tell(home: Home, result: dg.ExecuteInProcessResult) -> None:
    """What the sensor of failed runs does with this one."""
    run = home.instance.get_run_by_id(result.run_id)
    [event] = [event for event in result.all_events if event.is_job_failure]
    assert run is not None
    with dg.build_run_status_sensor_context(
        sensor_name="failed_runs",
        dagster_instance=home.instance,
        dagster_run=run,
        dagster_event=event,
        resources=home.resources,
    ).for_run_failure() as context:
        failed_runs(context)


def test_the_log_is_told_once_it_stands_still_and_not_beside_a_measurement(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not home.look()  # empty
    home.ci.run(OLD)
    assert "The log holds 1 new segment," in str(home.tick(log_moved).skip_reason)
    home.ci.run(OLD)
    assert not home.look()
    assert home.look()
    assert not home.look()
    assert not home.look()  # told already
    home.ci.run(OLD)
    home.look()
    with hold_run_lock(home.settings, "run-9"):
        assert not home.look()
    assert home.look()
    # What does not follow is told again, ever more seldom.
    now = time.time()
    for wait_s in (60, 120, 240):
        monkeypatch.setattr(time, "time", lambda now=now, wait_s=wait_s: now + wait_s - 5)
        assert not home.look()
        now += wait_s + 1
        monkeypatch.setattr(time, "time", lambda now=now: now)
        assert home.look()
    # One that never stands still is told from time to time.
    monkeypatch.setattr(sensors, "_MAX_WAIT_S", 0)
    home.ci.run(OLD)
    [told] = home.tick(log_moved).asset_events
    assert isinstance(told, dg.AssetMaterialization)
    assert told.metadata["new_events"].value == 16  # of four runs, as `raw_events` took none yet
    assert "dagster/row_count" not in told.metadata  # Dagster would show it as the size of the log


def test_assets_that_a_stop_leaves_unmade_are_asked_for_after_it(home: Home) -> None:
    home.ci.run(OLD)
    assert not home.look()
    assert home.look()
    wanted = home.asked()
    assert wanted == {"raw_events", "results"}
    assert home.asked() == set()
    run = home.instance.create_run_for_job(
        home.defs.resolve_implicit_global_asset_job_def(),
        asset_selection={dg.AssetKey(name) for name in wanted},
        tags={GRPC_INFO_TAG: '{"host": "localhost", "socket": "/nowhere"}'},
        status=dg.DagsterRunStatus.STARTED,
    )
    stop_runs(home.instance, wait_s=60)
    stopped = home.instance.get_run_by_id(run.run_id)
    assert stopped is not None
    assert stopped.status is dg.DagsterRunStatus.CANCELED
    assert home.asked() == wanted
    stop_runs(home.instance, wait_s=60)
    assert home.asked() == set()


@pytest.mark.slow
def test_from_the_log_to_matrix_and_regressions_and_to_rest(home: Home) -> None:
    home.ci.runs(12, OLD)
    home.ci.runs(8, OLD, 1.4)
    assert not home.look()
    assert home.look()
    wanted = home.asked()
    assert wanted == {"raw_events", "results"}
    made = home.log.snapshot().id
    done = home.make(wanted)
    assert done.success
    assert len(done.get_asset_check_evaluations()) == len(RULES)
    # What is made of them is asked for once their checks have passed, not before.
    wanted = home.asked()
    assert wanted == {"compat_matrix", "regressions", "predictor"}
    done = home.make(wanted)
    assert done.success
    begun = [str(event.step_key) for event in done.all_events if event.is_step_start]
    assert begun == ["compat_matrix", "regressions", "regressions_commit_gate", "predictor"]
    reader = Reader(home.settings)
    assert reader.snapshot_id == made
    assert reader.rows("SELECT model_id FROM compat_matrix") == [{"model_id": "bert-base"}]
    assert reader.rows("SELECT * FROM regressions") == []
    # That a series moved and a commit was checked moves the log once more, and nothing is decided then.
    assert home.rest(rounds=2) == 1
    [shift] = Reader(home.settings).rows("SELECT state, direction, found_by FROM regressions")
    assert shift == {"state": "open", "direction": "regressed", "found_by": "history"}
    for table in ("results", "compat_matrix", "regressions"):
        event = home.instance.get_latest_materialization_event(dg.AssetKey(table))
        assert event is not None
        assert event.asset_materialization is not None
        schema = event.asset_materialization.metadata["dagster/column_schema"]
        assert isinstance(schema, dg.TableSchemaMetadataValue)
        shown = [(column.name, column.type, column.description) for column in schema.value.columns]
        assert shown == [(c.name, c.type, c.meaning) for c in table_columns(Reader(home.settings), table)]


@pytest.mark.parametrize("killed", [False, True])
def test_results_of_a_run_that_was_still_measuring_are_looked_at(home: Home, killed: bool) -> None:
    def made() -> int:
        publish.publish(home.settings, publish.stage(home.settings))
        assert home.make({"regressions"}).success
        return sum(one.found_by == "history" for one in home.events(RegressionFound.__name__))

    home.ci.runs(12, OLD)
    began = RunStarted(kind="benchmark", labels={"commit": NEW})
    home.log.append([event(began, run_id="run-long")])
    assert made() == 0
    slower = [result(samples_ns=(30_000_000 + n,) * 30) for n in range(3)]
    ended = [] if killed else [RunFinished(status="succeeded", duration_s=9.0)]
    home.log.append([event(payload, run_id="run-long") for payload in (*slower, verification(), *ended)])
    assert made() == 1


@pytest.mark.slow
def test_a_series_that_moved_without_a_commit_is_told_once_and_the_past_is_not(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made() -> list[dict[str, Any]]:
        publish.publish(home.settings, publish.stage(home.settings))
        with Receiver() as receiver:
            monkeypatch.setenv("ACCEL_WEBHOOK_URL", receiver.url)
            assert home.make({"regressions"}).success
            return [json.loads(body) for _, body in receiver.received]

    home.ci.runs(12, None)
    home.ci.runs(12, None, 1.4)
    assert made() == [], "what was there before anybody looked"
    home.ci.runs(12, None)
    assert made() == [], "for the better"
    home.ci.runs(12, None, 1.4)
    [told] = made()
    assert told["type"] == "RegressionFound"
    assert told["text"].startswith(
        "a series of results moved for the worse: bert-base, cpu, batch 1, length 128, float32, latency: "
    )
    assert told["text"].endswith(" %")
    assert made() == []
    home.ci.runs(5, NEW, 2.0, baseline=OLD)
    assert made() == [], "its check tells that"
    assert (NEW,) in [shift.commits_after for shift in home.events(RegressionFound.__name__)]


@pytest.mark.slow
def test_a_shift_that_the_history_told_is_not_told_by_the_check_of_a_later_commit(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One process alone is no regression of a commit, and three commits in a row are a shift."""
    publish.publish(home.settings, publish.stage(home.settings))
    texts: list[str] = []

    def look_at(commit: str | None) -> None:
        publish.publish(home.settings, publish.stage(home.settings))
        with Receiver() as receiver:
            monkeypatch.setenv("ACCEL_WEBHOOK_URL", receiver.url)
            if commit is not None:
                config = {"ops": {"regressions_commit_gate": {"config": {"commit": commit}}}}
                job = home.defs.resolve_job_def("commit_line")
                assert job.execute_in_process(instance=home.instance, run_config=config).success
            assert home.make({"regressions"}).success
            texts.extend(json.loads(body)["type"] for _, body in receiver.received)

    home.ci.runs(20, OLD)
    look_at(None)
    for letter in "cde":
        home.ci.run(letter * 40, 1.3, baseline=OLD)
        look_at(letter * 40)
    assert texts == ["RegressionFound"]
    home.ci.runs(3, NEW, 1.3, baseline=OLD)
    look_at(NEW)
    assert "regressed" in [event.outcome for event in home.events(CommitChecked.__name__)]
    assert texts == ["RegressionFound"]


@pytest.mark.slow
def test_nothing_follows_a_failed_check_and_the_failure_moves_nothing(home: Home) -> None:
    home.ci.runs(2, OLD)
    assert home.make(TABLES).success
    home.asked()
    served = Reader(home.settings).snapshot_id
    home.ci.run(OLD)
    staged = publish.stage(home.settings)
    with duckdb.connect(staged.projection.directory / staged.projection.layers[-1].file) as con:
        con.execute("INSERT INTO result_rows SELECT * FROM result_rows LIMIT 1")
    assert home.look() or home.look()
    broken = home.make(home.asked())
    assert not broken.success
    assert [c.check_name for c in broken.get_asset_check_evaluations() if not c.passed] == ["result_id_unique"]
    _tell(home, broken)
    [failure] = home.events(RunFailed.__name__)
    assert failure.dagster_run_id == broken.run_id
    assert failure.failures
    for _ in range(3):
        assert not home.look()
        assert not home.asked() & {"compat_matrix", "regressions", "predictor"}
    assert Reader(home.settings).snapshot_id == served


@pytest.mark.slow
def test_one_rule_is_checked_alone(home: Home) -> None:
    home.ci.runs(2, OLD)
    assert home.make({"raw_events"}).success
    check = dg.AssetCheckKey(dg.AssetKey("results"), "result_id_unique")
    made = dg.materialize(
        [raw_events, tables.results, results_rules],
        selection=dg.AssetSelection.assets(tables.results).without_checks() | dg.AssetSelection.checks(check),
        instance=home.instance,
        resources=home.resources,
    )
    [evaluation] = made.get_asset_check_evaluations()
    assert (evaluation.check_name, evaluation.passed) == (check.name, True)
    assert evaluation.metadata["rows_checked"].value == 2


@pytest.mark.slow
def test_a_commit_is_checked_when_its_results_are_in_and_a_slower_one_is_told_once(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.ci.runs(6, OLD)
    publish.publish(home.settings, publish.stage(home.settings))

    def ticked() -> list[dg.RunRequest]:
        return list(home.tick(new_commits).run_requests or ())

    assert ticked() == []
    home.ci.runs(3, NEW, 1.3)
    publish.publish(home.settings, publish.stage(home.settings))
    [request] = ticked()
    assert request.tags["accel/commit"] == NEW
    assert ticked() == []
    with Receiver() as receiver:
        monkeypatch.setenv("ACCEL_WEBHOOK_URL", receiver.url)
        for _ in range(2):
            done = home.defs.resolve_job_def("commit_line").execute_in_process(
                instance=home.instance, run_config=request.run_config
            )
        [(_, body)] = receiver.received
    told = json.loads(body)
    assert (told["type"], told["payload"]["commit"]) == ("CommitChecked", NEW)
    assert told["text"].startswith(f"commit {NEW[:12]} regressed against {OLD[:12]}: bert-base, cpu, batch 1")
    [gate] = done.get_asset_check_evaluations()
    assert (gate.passed, gate.severity) == (False, dg.AssetCheckSeverity.ERROR)
    assert gate.description is not None
    assert gate.description in told["text"]
    assert "regressed" in str(gate.metadata["report"].value)
    [outcome] = home.events(CommitChecked.__name__)
    assert (outcome.commit, outcome.baseline, outcome.outcome) == (NEW, OLD, "regressed")
    publish.publish(home.settings, publish.stage(home.settings))
    found = Reader(home.settings).rows("SELECT direction, found_by FROM regressions WHERE found_by = 'check'")
    assert found == [{"direction": "regressed", "found_by": "check"}]
    assert ticked() == []
    # Further runs of it are checked, and tell nobody again that it is slower.
    home.ci.run(NEW, 1.3)
    publish.publish(home.settings, publish.stage(home.settings))
    [request] = ticked()
    with Receiver() as receiver:
        monkeypatch.setenv("ACCEL_WEBHOOK_URL", receiver.url)
        job = home.defs.resolve_job_def("commit_line")
        assert job.execute_in_process(instance=home.instance, run_config=request.run_config).success
        assert receiver.received == []
    assert [event.outcome for event in home.events(CommitChecked.__name__)] == ["regressed"] * 2
    # That it takes more memory, too, is something else.
    for _ in range(7):
        home.ci.run(NEW, 1.3, memory_mib=900)
    publish.publish(home.settings, publish.stage(home.settings))
    [request] = ticked()
    with Receiver() as receiver:
        monkeypatch.setenv("ACCEL_WEBHOOK_URL", receiver.url)
        assert job.execute_in_process(instance=home.instance, run_config=request.run_config).success
        assert "memory: 700.5 MiB -> " in json.loads(receiver.received[0][1])["text"]


@pytest.mark.slow
def test_a_failed_run_is_an_event_and_is_told_to_the_webhook_once(
    home: Home, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    failed = home.make({"raw_events"})  # of an empty log
    assert not failed.success
    with Receiver() as receiver:
        monkeypatch.setenv("ACCEL_WEBHOOK_URL", f"{receiver.url}/T0KEN")
        for _ in range(2):
            _tell(home, failed)
        [(path, body)] = receiver.received
        assert path == "/T0KEN"
    told = json.loads(body)
    assert told["type"] == "RunFailed"
    assert "raw_events: The event log is empty" in told["text"]
    assert told["payload"]["failures"].keys() == {"raw_events"}
    [kept] = home.events(RunFailed.__name__)
    assert kept.model_dump(mode="json") == told["payload"]
    # Where nobody answers, the event is kept all the same.
    another = home.make({"results"})
    monkeypatch.setattr(time, "sleep", lambda _: None)
    _tell(home, another)
    assert len(home.events(RunFailed.__name__)) == 2
    said = capfd.readouterr()
    assert "was not reached in 3 attempts" in said.err + said.out
    assert "T0KEN" not in said.err + said.out
    # It is told once the webhook answers again.
    with Receiver() as receiver:
        monkeypatch.setenv("ACCEL_WEBHOOK_URL", f"{receiver.url}/T0KEN")
        for _ in range(2):
            home.tick(unsent_messages)
        [(_, body)] = receiver.received
    assert json.loads(body)["payload"]["dagster_run_id"] == another.run_id
    # What it refuses is not kept, and the log says so.
    refused = home.make({"compat_matrix"})
    with Receiver() as receiver:
        monkeypatch.setenv("ACCEL_WEBHOOK_URL", f"{receiver.url}/T0KEN")
        receiver.answers = [400]
        _tell(home, refused)
        home.tick(unsent_messages)
        assert len(receiver.received) == 1
    said = capfd.readouterr()
    assert "it answered 400. It is given up: compat_matrix failed on" in said.err + said.out
    logs = [entry for run in home.instance.get_runs() for entry in home.instance.all_logs(run.run_id)]
    assert logs
    assert "T0KEN" not in str(logs)


def test_a_day_is_reported_from_the_log_of_then(home: Home) -> None:
    today = datetime.now(UTC)
    home.ci.run(OLD)
    home.ci.run(OLD, recorded_at=today - timedelta(days=1))
    home.ci.run(OLD, recorded_at=today - timedelta(days=1))
    report = home.defs.resolve_job_def("report")
    yesterday = today.date() - timedelta(days=1)
    for day, results in ((yesterday, 2), (yesterday - timedelta(days=1), 0)):
        done = report.execute_in_process(instance=home.instance, partition_key=str(day))
        [made] = done.asset_materializations_for_node("daily_report")
        assert made.metadata["dagster/row_count"].value == results
        page = (home.settings.home / "reports" / "days" / f"{day}.md").read_text()
        assert f"{results} results came in" in page
        assert ("bert-base" in page) == bool(results)
    assert not (home.settings.warehouse_dir / "CURRENT").exists()


def test_a_report_without_a_day_says_what_to_choose(home: Home) -> None:
    job = home.defs.resolve_job_def("report")
    failure = job.execute_in_process(instance=home.instance, raise_on_error=False).failure_data_for_node("daily_report")
    assert failure is not None
    assert failure.user_failure_data is not None
    assert "Choose the day" in str(failure.user_failure_data.description)


@pytest.mark.parametrize("sensor", ["log_moved", "new_commits"])
def test_a_sensor_waits_for_a_log_or_tables_that_cannot_be_read(home: Home, sensor: str) -> None:
    for place in (home.settings.home / "log" / "segments", home.settings.warehouse_dir):
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text("no directory")
    context = dg.build_sensor_context(instance=home.instance, resources=home.resources, cursor="as it was")
    found = home.defs.resolve_sensor_def(sensor)(context)
    assert isinstance(found, dg.SensorResult)
    assert "a file is in the place of a directory" in str(found.skip_reason)
    assert found.cursor == "as it was"


def test_a_suite_runs_when_its_file_says(home: Home, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "suite.json"
    monkeypatch.setenv("ACCEL_SUITE", str(file))
    nightly = "0 1 * * *"
    assert suite_times(None) == suite_times(file) == nightly
    for text, times, runs in (
        ("{}", nightly, True),
        ('{"schedule": "30 5 * * 1"}', "30 5 * * 1", True),
        ('{"schedule": {"frequency": "weekly", "time": "02:00"}}', "0 2 * * 1", True),
        ('{"schedule": {"enabled": false}}', nightly, False),
        ('{"schedule": "at tea time"}', nightly, False),
    ):
        file.write_text(text)
        assert suite_times(file) == times, text
        with dg.build_schedule_context(instance=home.instance, resources=home.resources) as context:
            assert isinstance(nightly_suite(context), dg.RunRequest) is runs, text


@pytest.mark.slow
def test_at_night(home: Home, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def asked(schedule: dg.ScheduleDefinition) -> Any:
        with dg.build_schedule_context(instance=home.instance, resources=home.resources) as context:
            return schedule(context)

    assert "ACCEL_SUITE" in asked(nightly_suite).skip_message
    monkeypatch.setenv("ACCEL_SUITE", str(tmp_path / "suite.json"))
    assert "suite.json" in asked(nightly_suite).skip_message
    (tmp_path / "suite.json").write_text("{}")
    assert isinstance(asked(nightly_suite), dg.RunRequest)
    (tmp_path / "suite.json").write_text('{"batch_sizes": "four"}')
    assert "batch_sizes" in asked(nightly_suite).skip_message
    assert "no tables" in asked(nightly_training).skip_message
    home.ci.runs(2, OLD)
    assert home.make(TABLES).success
    assert isinstance(asked(nightly_training), dg.RunRequest)
    packed = home.defs.resolve_job_def("compaction").execute_in_process(instance=home.instance)
    assert packed.success
    assert len(list((home.settings.home / "log" / "packs").glob("*.parquet"))) == 1
