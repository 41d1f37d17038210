"""Old results by source: what the inbox's sensor and the nightly schedule ask for, and what one source says."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from accel_platform.bench.plan.run_locks import hold_run_lock
from accel_platform.settings import Settings
from accel_platform.warehouse.reader import Reader
from assets.definitions import build_defs, defs
from assets.legacy_imports import legacy_history
from assets.partitions import SAMPLES, inbox_sources, legacy_sources, source_state
from assets.resources import Installation
from assets.run_in_process import dagster_home
from assets.triggers import schedules
from assets.triggers.schedules import nightly_history
from assets.triggers.sensors import inbox


class Home:
    """An installation with an inbox, and the Dagster instance in it."""

    def __init__(self, directory: Path) -> None:
        self.settings = Settings(home=directory)
        self.inbox = self.settings.inbox_dir
        self.inbox.mkdir(parents=True)
        self.resources = {"accel": Installation(home=str(directory))}
        self.instance = dg.DagsterInstance.from_config(str(dagster_home(self.settings)))
        self.cursor: str | None = None

    def put(self, name: str, latency_ms: float = 5.5, **more: Any) -> Path:
        """A source: a file, or a directory with one."""
        path = self.inbox / name / "card.json" if "." not in name else self.inbox / name
        path.parent.mkdir(exist_ok=True)
        document = {
            "model": "gpt2",
            "hardware": "cpu",
            "success": True,
            "batch_results": {"1": {"avg_latency_ms": latency_ms}},
        }
        path.write_text(json.dumps({**document, **more}))
        return path

    def tick(self) -> dict[str, str]:
        """Evaluate the sensor as its daemon does; the runs it asks for, by partition, with their keys."""
        # One left to the garbage collector puts another test's instance out of service whenever it is collected.
        with dg.build_sensor_context(instance=self.instance, cursor=self.cursor, resources=self.resources) as context:
            found = inbox(context)
        assert isinstance(found, dg.SensorResult)
        assert found.run_requests or found.skip_reason
        self.cursor = found.cursor
        for request in found.dynamic_partitions_requests or ():
            self.instance.add_dynamic_partitions(request.partitions_def_name, list(request.partition_keys))
        return {str(request.partition_key): str(request.run_key) for request in found.run_requests or ()}

    def night(self) -> list[str]:
        """Evaluate the schedule; the partitions it asks for."""
        with dg.build_schedule_context(instance=self.instance, resources=self.resources) as context:
            found = nightly_history(context)
        return [] if isinstance(found, dg.SkipReason) else [str(request.partition_key) for request in found]  # type: ignore[union-attr]

    def read(self, source: str) -> dict[str, Any]:
        """Materialise one source; its metadata."""
        done = dg.materialize([legacy_history], partition_key=source, instance=self.instance, resources=self.resources)
        [event] = done.asset_materializations_for_node("legacy_history")
        assert event.partition == source
        return {name: entry.value for name, entry in event.metadata.items()}


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path / "home")
    with made.instance:
        yield made


def test_both_run_without_being_asked() -> None:
    assert defs.resolve_sensor_def("inbox").default_status is dg.DefaultSensorStatus.RUNNING
    assert defs.resolve_schedule_def("nightly_history").default_status is dg.DefaultScheduleStatus.RUNNING


def test_a_source_is_read_once_it_stood_still_for_a_tick_and_again_when_it_changed(home: Home) -> None:
    assert home.tick() == {}
    first, second = home.put("lab.json"), home.put("cluster")
    assert home.tick() == {}
    asked = home.tick()
    assert asked.keys() == {"inbox/cluster", "inbox/lab.json"}
    assert set(home.instance.get_dynamic_partitions(str(legacy_sources.name))) == {SAMPLES, *asked}
    assert home.tick() == {}

    home.put("cluster", 6.5)
    (second.parent / "more.json").write_text("{}")
    assert home.tick() == {}
    again = home.tick()
    assert again.keys() == {"inbox/cluster"}
    assert again["inbox/cluster"] != asked["inbox/cluster"]
    first.unlink()
    assert home.tick() == {}


def test_what_is_still_being_written_is_not_read(home: Home) -> None:
    path = home.put("growing.json")
    for _ in range(4):
        assert home.tick() == {}
        with path.open("a") as file:
            file.write(" ")
    assert home.tick() == {}
    assert home.tick().keys() == {"inbox/growing.json"}


def test_while_this_host_measures_no_source_is_read(home: Home) -> None:
    home.put("lab.json")
    with hold_run_lock(home.settings, "of-a-benchmark"):
        for _ in range(3):
            assert home.tick() == {}
    assert home.tick().keys() == {"inbox/lab.json"}


def test_temporaries_and_what_holds_no_file_are_no_sources(home: Home) -> None:
    home.put(".lab.json.part")
    (home.inbox / "empty").mkdir()
    home.put("odd\nname.json")
    for _ in range(3):
        assert home.tick() == {}


def test_with_a_lost_cursor_the_same_runs_are_asked_for_which_dagster_does_not_repeat(home: Home) -> None:
    home.put("lab.json")
    home.tick()
    asked = home.tick()
    for cursor in (None, "", "nonsense", '{"sources": [1]}', '{"old": true}'):
        home.cursor = cursor
        assert home.tick() == {}
        assert home.tick() == asked


def test_the_state_of_a_source_tells_every_change(home: Home) -> None:
    path = home.put("cluster")
    states = []

    def note() -> None:
        state = source_state(path.parent)
        assert state is not None
        states.append(state.digest)

    note()
    home.put("cluster", 6.5)  # as many bytes as before
    os.utime(path, ns=(1, 1))
    note()
    (path.parent / "more.json").write_text("{}")
    note()
    (path.parent / "more.json").rename(path.parent / "other.json")
    note()
    assert len(set(states)) == 4


def test_the_night_reads_what_is_not_read_as_it_is(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    home.put("lab.json")
    home.put("cluster")
    assert home.night() == []  # written this minute
    monkeypatch.setattr(schedules, "_QUIET_S", 0)
    assert home.night() == ["inbox/cluster", "inbox/lab.json"]
    home.read("inbox/lab.json")
    assert home.night() == ["inbox/cluster"]
    home.read("inbox/cluster")
    assert home.night() == []
    home.put("cluster", 7.5)
    assert home.night() == ["inbox/cluster"]


def test_a_source_says_what_became_of_its_files_and_how_its_results_are_judged(
    home: Home, capfd: pytest.CaptureFixture[str]
) -> None:
    home.put("cluster", is_simulation=True)
    (home.inbox / "cluster" / "copy.json").write_bytes((home.inbox / "cluster" / "card.json").read_bytes())
    (home.inbox / "cluster" / "deep").mkdir()
    (home.inbox / "cluster" / "deep" / "unknown.json").write_text('{"experiment": "x", "timings": [1]}')
    home.put("lab.json", 9.5)
    assert sorted(inbox_sources(home.settings)) == ["inbox/cluster", "inbox/lab.json"]
    home.instance.add_dynamic_partitions(str(legacy_sources.name), list(inbox_sources(home.settings)))
    for new_events in (6, 0):  # the last of the six is the record of the check across documents
        said = home.read("inbox/cluster")
        assert said["outcomes"] == {"imported": 1, "duplicate": 1, "quarantined": 1}
        assert said["verdicts"] == {"simulated": 1}
        assert "simulation_label | simulated | 1" in said["suspicions"]
        assert (said["files"], said["dagster/row_count"], said["new_events"]) == (3, 1, new_events)
        assert said["already_imported"] == (0 if new_events else 3)
        assert ("; known before: 3 files; 0 new records" in capfd.readouterr().err) == (not new_events)
        assert said["quarantined"] == 1
        first = said["preview"].splitlines()[2]
        assert first.startswith("| deep/unknown.json |")  # although 'c' comes before 'd'
    assert home.read("inbox/lab.json")["verdicts"] == {"imported": 1}


def test_a_source_that_is_gone_says_so(home: Home) -> None:
    home.instance.add_dynamic_partitions(str(legacy_sources.name), ["inbox/gone"])
    done = dg.materialize(
        [legacy_history],
        partition_key="inbox/gone",
        instance=home.instance,
        resources=home.resources,
        raise_on_error=False,
    )
    failure = done.failure_data_for_node("legacy_history")
    assert failure is not None
    assert failure.user_failure_data is not None
    assert "was moved or deleted" in str(failure.user_failure_data.description)


def test_a_run_without_a_source_says_what_to_choose(home: Home) -> None:
    job = build_defs(resources=home.resources).resolve_job_def("full_pipeline")
    done = job.execute_in_process(instance=home.instance, asset_selection=[legacy_history.key], raise_on_error=False)
    failure = done.failure_data_for_node("legacy_history")
    assert failure is not None
    assert failure.user_failure_data is not None
    assert "Choose the source" in str(failure.user_failure_data.description)


@pytest.mark.slow
def test_the_history_line_brings_a_source_into_the_tables(home: Home) -> None:
    home.put("lab.json")
    home.tick()
    [(source, _)] = home.tick().items()
    job = build_defs(resources=home.resources).resolve_job_def("history_line")
    done = job.execute_in_process(instance=home.instance, partition_key=source)
    assert done.success
    assert done.get_asset_check_evaluations()
    assert {event.step_key for event in done.all_events if event.is_step_success} >= {"legacy_history", "compat_matrix"}
    assert {"measurements", "predictor"}.isdisjoint({event.step_key for event in done.all_events})
    [row] = Reader(home.settings).rows("SELECT model_id, latency_mean_ms, provenance FROM results")
    assert row == {"model_id": "gpt2", "latency_mean_ms": 5.5, "provenance": "imported"}
