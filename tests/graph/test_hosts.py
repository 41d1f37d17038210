"""A host's jobs and its sensor: what is tagged, who shares a pool, which requests become runs, and when one is lost."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from types import ModuleType
from typing import Any
from uuid import UUID

import dagster as dg
import pytest
from dagster._core.launcher import WorkerStatus
from dagster._core.storage.tags import GRPC_INFO_TAG

from accel_platform.bench.requests.lifecycle import Request, Requests, claim, close, request_benchmark
from accel_platform.events import EventLog
from accel_platform.settings import Settings
from assets.executors import heartbeat
from assets.executors.heartbeat import ALIVE_TAG, SILENT_CHECKS, STOPPED, HostRunLauncher, stop_runs
from assets.executors.routing import STOPPING_S
from assets.failures import reason_of
from assets.resources import Installation

POOLS = {"cpu": "host-1/cpu-a", "openvino": "host-1/cpu-a", "openvino:gpu": "host-1/gpu-b"}
ASKED: dict[str, Any] = {"models": ["bert-tiny"], "batch_sizes": [1], "effort": "quick"}


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setenv("ACCEL_HOST_POOLS", "{}")  # importing it would look at this machine's hardware
    from assets import hosts

    monkeypatch.setattr(hosts, "WATCH_S", 0.0)
    monkeypatch.setenv("ACCEL_HOST_NAME", "here")
    return hosts


class Host:
    """One host and the instance that it works for."""

    def __init__(self, hosts: ModuleType, settings: Settings, instance: dg.DagsterInstance) -> None:
        self.log, self.instance = EventLog.open(settings), instance
        self.resources = {"accel": Installation(home=str(settings.home))}
        self.defs: dg.Definitions = hosts.build_host_defs(POOLS, self.resources["accel"])

    def ask(self, hardware: str, **more: Any) -> UUID:
        [one] = request_benchmark({**ASKED, "hardware_types": [hardware], **more.pop("config", {})}, self.log, **more)
        return one

    def request(self, one: UUID) -> Request:
        requests = Requests(self.log)
        requests.refresh()
        return requests[one]

    def tick(self) -> list[dg.RunRequest]:
        context = dg.build_sensor_context(instance=self.instance, resources=self.resources)
        found = self.defs.resolve_sensor_def("benchmark_requests")(context)
        assert isinstance(found, dg.SensorResult)
        assert found.run_requests or found.skip_reason
        return list(found.run_requests or ())

    def begin(
        self,
        request: dg.RunRequest,
        server: dict[str, Any],
        status: dg.DagsterRunStatus = dg.DagsterRunStatus.STARTED,
    ) -> str:
        """A run that a code server has begun, which is gone since."""
        launcher = HostRunLauncher()
        launcher.register_instance(self.instance)
        self.instance._run_launcher = launcher
        run = self.instance.create_run_for_job(
            self.defs.resolve_job_def(str(request.job_name)),
            run_config=request.run_config,
            tags={**request.tags, GRPC_INFO_TAG: json.dumps({"host": "localhost", **server})},
            status=status,
        )
        return run.run_id

    def run(self, request: dg.RunRequest) -> dg.ExecuteInProcessResult:
        job = self.defs.resolve_job_def(str(request.job_name))
        return job.execute_in_process(
            run_config=request.run_config, tags=dict(request.tags), instance=self.instance, raise_on_error=False
        )


@pytest.fixture
def host(hosts: ModuleType, settings: Settings) -> Iterator[Host]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield Host(hosts, settings, instance)


def test_each_hardware_name_is_a_job_and_runtimes_of_one_device_share_its_pool(host: Host) -> None:
    for name, pool in POOLS.items():
        job = host.defs.resolve_job_def(f"measure_{name.replace(':', '_')}")
        assert job.tags["hardware"] == name
        [node] = job.nodes
        assert node.definition.pool == pool
    sensor = host.defs.resolve_sensor_def("benchmark_requests")
    assert sensor.default_status is dg.DefaultSensorStatus.RUNNING


def test_a_request_becomes_one_run_where_its_hardware_is(host: Host) -> None:
    mine, other = host.ask("openvino:gpu", priority=7, max_runtime_s=90), host.ask("cuda")
    [run] = host.tick()
    assert run.job_name == "measure_openvino_gpu"
    assert run.tags["dagster/priority"] == "7"
    assert run.tags["accel/models"] == "bert-tiny"
    assert run.tags[ALIVE_TAG] == "0"  # missed, from the beginning
    assert run.tags["dagster/max_runtime"] == "90"
    assert (host.request(mine).state, host.request(mine).claimed_by) == ("running", "here")
    assert host.request(other).state == "open"
    # As long as Dagster has no run of that key, it is asked for again.
    assert [again.run_key for again in host.tick()] == [run.run_key]
    assert claim(host.log, other, 1, claimed_by="there")
    assert [again.run_key for again in host.tick()] == [run.run_key]


def test_a_request_for_one_host_is_left_to_it(host: Host) -> None:
    mine, other = host.ask("cpu", host="here"), host.ask("cpu", host="there")
    [run] = host.tick()
    assert run.run_key == f"{mine} 1"
    assert [host.request(one).state for one in (mine, other)] == ["running", "open"]


def test_what_cannot_be_measured_at_all_ends_at_once(host: Host) -> None:
    one = host.ask("cpu", config={"models_file": None, "weights": {"bert-tiny": "/nowhere/at-all"}})
    [run] = host.tick()
    done = host.run(run)
    request = host.request(one)
    assert (request.state, request.attempts) == ("failed", 1)
    assert host.tick() == []
    # Dagster shows the run as failed, too, and why.
    assert not done.success
    [failure] = [event for event in done.all_events if event.is_step_failure]
    assert request.closed is not None
    assert reason_of(failure) == f"The request failed: {request.closed.reason}"
    assert "nowhere" in str(request.closed.reason)


def test_a_run_of_an_attempt_that_is_over_does_nothing(host: Host, capfd: pytest.CaptureFixture[str]) -> None:
    one = host.ask("cpu")
    [run] = host.tick()
    close(host.log, host.request(one), "cancelled", "taken back")
    assert host.run(run).success
    assert "`accel bench request` asks anew" in capfd.readouterr().err
    assert not any(event.type == "RunStarted" for event in host.log.read())


def test_a_run_launched_by_hand_without_a_request_says_how_to_ask(host: Host) -> None:
    config = {"ops": {"benchmark_cpu": {"config": {"request_id": "none", "attempt": 1}}}}
    done = host.run(dg.RunRequest(job_name="measure_cpu", run_config=config))
    failure = done.failure_data_for_node("benchmark_cpu")
    assert failure is not None
    assert failure.user_failure_data is not None
    assert "'none' is no id of a request. `accel bench request` asks" in str(failure.user_failure_data.description)


def test_a_run_that_fails_is_tried_three_times_in_all(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("the disk is on fire")

    monkeypatch.setattr("assets.hosts.measure_within_limits", broken)
    one = host.ask("cpu")
    for attempt in (1, 2, 3):
        [run] = host.tick()
        assert run.tags["accel/attempt"] == str(attempt)
        assert not host.run(run).success
    assert host.tick() == []
    request = host.request(one)
    assert (request.state, request.attempts) == ("failed", 3)
    assert request.closed is not None
    assert request.closed.reason == "tried 3 times; the last time: RuntimeError: the disk is on fire"


def test_a_run_that_ends_with_accel_ui_is_no_try_at_its_request(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("the disk is on fire")

    monkeypatch.setattr("assets.hosts.measure_within_limits", broken)
    now = time.time()
    one = host.ask("cpu")
    for attempt in range(1, 7):
        [run] = host.tick()
        assert run.tags["accel/attempt"] == str(attempt)
        if attempt % 2:
            run_id = host.begin(run, {"socket": "/nowhere"})
            stop_runs(host.instance, wait_s=60)
            record = host.instance.get_run_by_id(run_id)
            assert record is not None
            assert record.status is dg.DagsterRunStatus.CANCELED
            [canceled] = host.instance.all_logs(run_id, of_type=dg.DagsterEventType.RUN_CANCELED)
            assert canceled.dagster_event is not None
            assert canceled.dagster_event.message == STOPPED
            assert host.tick() == []  # its `accel ui` may still be stopping
            now += STOPPING_S + 60
            monkeypatch.setattr("assets.executors.routing.time.time", lambda now=now: now)
        else:
            assert not host.run(run).success
    assert host.tick() == []
    request = host.request(one)
    assert request.closed is not None
    assert request.closed.reason == "tried 3 times; the last time: RuntimeError: the disk is on fire"


def test_a_run_that_a_stop_keeps_from_beginning_is_canceled_and_has_not_failed(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.ask("cpu")
    [run] = host.tick()
    run_id = host.begin(run, {"socket": "/there"}, dg.DagsterRunStatus.STARTING)

    def notice_end(_: float) -> None:
        """Report a failed run as the code server does once the process has ended; it ignores one being canceled."""
        left = host.instance.get_run_by_id(run_id)
        assert left is not None
        if not left.is_finished:
            host.instance.report_run_failed(left)

    monkeypatch.setattr(HostRunLauncher, "terminate", lambda *_: True)
    monkeypatch.setattr("assets.executors.heartbeat.time.sleep", notice_end)
    stop_runs(host.instance, wait_s=60)
    record = host.instance.get_run_by_id(run_id)
    assert record is not None
    assert record.status is dg.DagsterRunStatus.CANCELED


def test_a_run_on_the_code_server_of_another_host_goes_on(host: Host) -> None:
    host.ask("cpu")
    [run] = host.tick()
    run_id = host.begin(run, {"port": 4000})
    stop_runs(host.instance, wait_s=0)
    record = host.instance.get_run_by_id(run_id)
    assert record is not None
    assert record.status is dg.DagsterRunStatus.STARTED


def test_a_run_that_somebody_cancels_in_dagster_ends_its_request(host: Host) -> None:
    one = host.ask("cpu")
    [run] = host.tick()
    record = host.instance.get_run_by_id(host.begin(run, {"port": 4000}))
    assert record is not None
    host.instance.report_run_canceling(record)
    host.instance.report_run_canceled(record)
    assert host.tick() == []
    assert host.request(one).state == "cancelled"


def test_a_log_that_cannot_be_read_is_a_reason_to_wait(host: Host, settings: Settings) -> None:
    host.ask("cpu")
    segments = settings.home / "log" / "segments"
    segments.rename(segments.with_name("away"))
    segments.write_text("no directory")
    context = dg.build_sensor_context(instance=host.instance, resources=host.resources)
    found = host.defs.resolve_sensor_def("benchmark_requests")(context)
    assert isinstance(found, dg.SensorResult)
    assert "The event log at" in str(found.skip_reason)


def test_a_run_that_says_nothing_any_more_is_lost() -> None:
    launcher = HostRunLauncher()
    with dg.DagsterInstance.ephemeral() as instance:
        run = instance.create_run_for_job(dg.GraphDefinition(name="empty").to_job())

    def check(said: str | None) -> WorkerStatus:
        tags = {} if said is None else {ALIVE_TAG: said}
        return launcher.check_run_worker_health(run._replace(tags=tags)).status

    assert {check(None) for _ in range(10)} == {WorkerStatus.RUNNING}  # runs of the asset graph say nothing
    assert {check(str(beat)) for beat in range(10)} == {WorkerStatus.RUNNING}
    assert [check("9") for _ in range(SILENT_CHECKS)] == [WorkerStatus.RUNNING] * (SILENT_CHECKS - 1) + [
        WorkerStatus.NOT_FOUND
    ]


def test_runs_that_ended_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "_MOST_RUNS", 3)
    launcher = HostRunLauncher()
    with dg.DagsterInstance.ephemeral() as instance:
        job = dg.GraphDefinition(name="empty").to_job()
        silent, *ended = [instance.create_run_for_job(job)._replace(tags={ALIVE_TAG: "1"}) for _ in range(6)]
    for run in ended:
        launcher.check_run_worker_health(run)
        found = launcher.check_run_worker_health(silent)
    assert found.status is WorkerStatus.NOT_FOUND, "one that is under way is remembered among many that are not"
    assert len(launcher._last_beats) < 3
