"""Requested benchmarks as jobs of Slurm: of a stand-in, and of Slurm itself where it is installed."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import UUID

import dagster as dg
import psutil
import pytest
from processes import free_port, needs_a_quiet_machine
from slurm_world import Slurm, StandIn, slurm_is_installed

from accel_platform.bench.requests.lifecycle import Request, Requests, claim, close, request_benchmark
from accel_platform.events import EventLog
from accel_platform.settings import Settings
from assets.executors.cluster import load_cluster
from assets.executors.routing import claim_request
from assets.resources import Installation

pytestmark = pytest.mark.slow
ASKED: dict[str, Any] = {"models": ["bert-tiny"], "batch_sizes": [1], "effort": "quick", "hardware_types": ["cpu"]}
WORKER = "accel_platform.bench.measure.worker"


class World:
    """A login node, its Slurm, and Dagster's instance."""

    def __init__(self, slurm: Slurm | StandIn, settings: Settings, instance: dg.DagsterInstance) -> None:
        from assets.hosts import build_host_defs

        self.slurm, self.settings, self.instance = slurm, settings, instance
        self.log = EventLog.open(settings)
        # `cpu` stands in for an accelerator: what it asks of Slurm is a GPU, and what it measures is here.
        device = load_cluster(settings).devices["nvidia"].model_copy(update={"slurm": ["--gres=gpu:1"]})
        accel = Installation(home=str(settings.home))
        self.defs = build_host_defs({"cpu": "here/nvidia"}, accel, "slurm", {"cpu": device})

    def ask(self, **more: Any) -> UUID:
        options = {name: more.pop(name) for name in ("max_runtime_s",) if name in more}
        [one] = request_benchmark({**ASKED, **more}, self.log, **options)
        return one

    def request(self, one: UUID) -> Request:
        requests = Requests(self.log)
        requests.refresh()
        return requests[one]

    def claim(self) -> Request:
        """What the sensor does: claim what is to be measured now."""
        [request] = claim_request(Requests(self.log), self.log, self.instance, hardware=["cpu"], host="login")
        return request

    def run(self, request: Request) -> dg.ExecuteInProcessResult:
        config = {"request_id": str(request.id), "attempt": request.attempts}
        return self.defs.resolve_job_def("measure_cpu").execute_in_process(
            run_config={"ops": {"benchmark_cpu": {"config": config}}},
            tags={"accel/request": str(request.id), "accel/attempt": str(request.attempts), "dagster/max_runtime": "0"},
            instance=self.instance,
            raise_on_error=False,
        )

    def told(self, run_id: str) -> list[str]:
        return [entry.user_message for entry in self.instance.all_logs(run_id) if entry.dagster_event is None]

    def working(self) -> list[psutil.Process]:
        """Return what works on this home in processes of its own, the oldest first."""
        listed = psutil.process_iter(["environ", "create_time", "cmdline"])
        here = [one for one in listed if (one.info["environ"] or {}).get("ACCEL_HOME") == str(self.settings.home)]
        return sorted(here, key=lambda process: float(process.info["create_time"]))

    def measuring(self) -> list[psutil.Process]:
        return [process for process in self.working() if WORKER in (process.info["cmdline"] or [])]

    def kill_all(self) -> None:
        """Kill what works, as the end of a node does: parents first, which else record that a child was killed."""
        for process in self.working():
            with suppress(psutil.NoSuchProcess):  # Slurm may have ended it since it was listed
                process.kill()

    def while_measuring(self, action: Callable[[], object]) -> threading.Thread:
        """Do something once a job measures."""

        def wait() -> None:
            deadline = time.monotonic() + 90
            while not self.measuring() and time.monotonic() < deadline:
                time.sleep(0.1)
            action()

        thread = threading.Thread(target=wait)
        thread.start()
        return thread

    def job_of(self, run_id: str) -> str:
        [submitted] = [line for line in self.told(run_id) if "is submitted" in line]
        return submitted.split()[2]

    def job_now(self) -> str:
        [run] = self.instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED]))
        return self.job_of(run.run_id)


def _gone(world: World) -> None:
    deadline = time.monotonic() + 30
    while world.measuring():
        assert time.monotonic() < deadline, world.measuring()
        time.sleep(0.2)


@pytest.fixture(scope="module", params=["stand-in", pytest.param("slurm", marks=needs_a_quiet_machine)])
def slurm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm | StandIn]:
    folder = tmp_path_factory.mktemp("slurm")
    if request.param == "stand-in":
        yield StandIn(folder)
        return
    if not slurm_is_installed():
        pytest.skip("Slurm is not installed (slurmctld, slurmd, munge), or this is not root")
    own = Slurm(folder, (free_port(), free_port()))
    with own.running():
        yield own


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is prepared once for all tests."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def world(slurm: Slurm | StandIn, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setenv("ACCEL_HOST_POOLS", "{}")
    monkeypatch.setenv("ACCEL_HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "cache").symlink_to(cache)
    for name, value in slurm.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("assets.executors.slurm.POLL_S", 0.5)
    with dg.DagsterInstance.local_temp(str(tmp_path), overrides={"telemetry": {"enabled": False}}) as instance:
        found = World(slurm, Settings(home=tmp_path / "home"), instance)
        yield found
        _gone(found)


def test_a_job_measures_and_its_progress_reaches_dagsters_log(world: World, tmp_path: Path) -> None:
    one = world.ask()
    done = world.run(world.claim())
    told = "\n".join(world.told(done.run_id))
    assert done.success, told
    request = world.request(one)
    assert (request.state, request.attempts) == ("done", 1), request
    assert request.closed is not None
    assert len(request.closed.run_ids) == 1
    assert "is RUNNING" in told
    assert "bert-tiny" in told, told  # what the measuring process says on the node
    script = (world.settings.home / "slurm" / done.run_id / "job.sh").read_text()
    assert "#SBATCH --gres=gpu:1\n" in script
    assert f"#SBATCH --job-name=accel-{one}\n" in script


def test_a_job_whose_node_is_lost_is_tried_again(world: World) -> None:
    one = world.ask()
    request = world.claim()
    losing = world.while_measuring(lambda: _lose(world))
    done = world.run(request)
    losing.join()
    assert not done.success
    if isinstance(world.slurm, Slurm):
        world.slurm.start_node()
        world.slurm._wait_idle()
    again = world.claim()
    assert (again.id, again.attempts) == (one, 2)
    assert "NODE_FAIL" in _reason(world, done.run_id)
    assert world.run(again).success
    request = world.request(one)
    assert request.state == "done", request.closed


def _lose(world: World) -> None:
    world.slurm.lose_node(world.job_now())
    world.kill_all()


def _reason(world: World, run_id: str) -> str:
    from assets.executors.routing import _failure_reason

    return _failure_reason(world.instance, run_id)


def test_a_job_that_is_cancelled_in_slurm_is_tried_again(world: World) -> None:
    one = world.ask()
    request = world.claim()
    cancelling = world.while_measuring(lambda: subprocess.run(["scancel", world.job_now()], check=True))
    done = world.run(request)
    cancelling.join()
    assert not done.success
    assert "ended as CANCELLED" in _reason(world, done.run_id)
    _gone(world)
    again = world.claim()
    assert (again.id, again.attempts) == (one, 2)


@needs_a_quiet_machine  # a signal that comes a moment late ends the process of the tests, and the others with it
def test_a_run_that_is_interrupted_cancels_its_job(world: World) -> None:
    world.ask(effort="thorough", batch_sizes=[1, 2, 4, 8])
    request = world.claim()
    jobs: list[str] = []

    def interrupt() -> None:
        jobs.append(world.job_now())
        os.kill(os.getpid(), signal.SIGINT)  # as Dagster does with a run that is cancelled in its pages

    interrupting = world.while_measuring(interrupt)
    with suppress(KeyboardInterrupt):  # where it comes between two steps of Dagster
        assert not world.run(request).success
    interrupting.join()
    _gone(world)
    deadline = time.monotonic() + 60
    while not (state := _state(jobs[0])).startswith("CANCELLED"):
        assert state.startswith("COMPLETING"), state
        assert time.monotonic() < deadline
        time.sleep(0.5)


def _state(job: str) -> str:
    command = ["squeue", "--noheader", f"--jobs={job}", "--states=all", "--format=%T|%r|%N"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_a_request_that_is_cancelled_or_over_its_limit_ends_where_it_is_measured(world: World) -> None:
    one = world.ask(max_runtime_s=1.0)
    assert not world.run(world.claim()).success
    request = world.request(one)
    assert request.closed is not None
    assert (request.state, request.closed.reason) == ("failed", "it took longer than 1 s, its limit")

    one = world.ask()
    request = world.claim()
    closing = world.while_measuring(lambda: close(world.log, world.request(one), "cancelled", "taken back"))
    assert world.run(request).success
    closing.join()
    assert world.request(one).state == "cancelled"
    _gone(world)


def test_a_job_ends_when_a_later_attempt_has_begun(world: World) -> None:
    one = world.ask()
    request = world.claim()
    claiming = world.while_measuring(lambda: claim(world.log, one, 2, claimed_by="another"))
    done = world.run(request)
    claiming.join()
    assert not done.success
    assert "a later attempt has begun" in _reason(world, done.run_id)
    assert world.request(one).state == "running"
    _gone(world)


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ("TIMEOUT|TimeLimit|node1", "ended as TIMEOUT (TimeLimit) on node1"),
        ("OUT_OF_MEMORY|OutOfMemory|node1", "ended as OUT_OF_MEMORY"),
        ("PREEMPTED|None|node1", "ended as PREEMPTED on node1"),
    ],
)
def test_how_slurm_ended_a_job_is_the_reason_of_the_attempt(world: World, state: str, reason: str) -> None:
    slurm = world.slurm
    if not isinstance(slurm, StandIn):
        pytest.skip("only the stand-in is told how a job ends")
    world.ask()
    request = world.claim()
    ending = world.while_measuring(lambda: (slurm.end(world.job_now(), state), world.kill_all()))
    done = world.run(request)
    ending.join()
    assert not done.success
    assert reason in _reason(world, done.run_id)


def test_a_job_that_slurm_refuses_is_a_failed_attempt_with_its_reason(world: World) -> None:
    from assets.hosts import build_host_defs

    device = load_cluster(world.settings).devices["nvidia"].model_copy(update={"slurm": ["--gres=gpu:9"]})
    accel = Installation(home=str(world.settings.home))
    world.defs = build_host_defs({"cpu": "here/nvidia"}, accel, "slurm", {"cpu": device})
    world.ask()
    done = world.run(world.claim())
    assert not done.success
    assert "sbatch refused the job: " in _reason(world, done.run_id)
    assert "Requested node configuration is not available" in _reason(world, done.run_id)
