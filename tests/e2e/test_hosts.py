"""Requested benchmarks on several hosts, for real: PostgreSQL, two code servers, and what goes wrong while they measure.

One world serves all tests: a private PostgreSQL, Dagster without its pages' graph, and two hosts on loopback of which one
stands for `cpu` and one claims `cuda`, which is not there. What is tested is where a request goes and how it ends.
"""

from __future__ import annotations

import getpass
import os
import pwd
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import UUID

import dagster as dg
import httpx
import psutil
import pytest
from processes import REPOSITORY, family, free_port, running, wait_for

from accel_platform.bench.requests import LABEL, Request, Requests, close, request_benchmark
from accel_platform.events import EventLog
from accel_platform.events.types import ResultRecorded, RunStarted
from accel_platform.settings import Settings
from assets.alive import ALIVE_TAG
from assets.local import dagster_home
from assets.routing import ATTEMPT_TAG, REQUEST_TAG
from assets.workspace import add

pytestmark = pytest.mark.slow
pytest.importorskip("dagster_postgres", reason="the extra `postgres` is not installed")

ASKED = {"models": ["bert-tiny"], "batch_sizes": [1], "effort": "quick"}
TERMINATE = "mutation ($id: String!) { terminateRun(runId: $id) { __typename } }"
ALIVE = [dg.DagsterRunStatus.QUEUED, dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED]
FREE_S = 60
"""Within so long the device of a run that is gone is free for others."""


def _postgres_folder() -> Path | None:
    found = shutil.which("initdb") or next(iter(map(str, Path("/usr/lib/postgresql").glob("*/bin/initdb"))), None)
    return Path(found).resolve().parent if found else None


class Postgres:
    """A cluster of our own, on loopback; PostgreSQL refuses to run as root."""

    def __init__(self, folder: Path, binaries: Path) -> None:
        self._data, self._binaries, self.port = folder / "data", binaries, free_port()
        self._log = folder / "postgres.log"
        self._user: dict[str, Any] = {}
        folder.mkdir()
        if os.getuid() == 0:
            nobody = pwd.getpwnam("nobody")
            os.chown(folder, nobody.pw_uid, nobody.pw_gid)
            self._user = {"user": nobody.pw_uid, "group": nobody.pw_gid}
        self._do("initdb", "-A", "trust", "-U", "accel", "--no-sync")
        self.url = f"postgresql+psycopg2://accel@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        options = f"-p {self.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories='' -c fsync=off"
        self._do("pg_ctl", "-w", "-l", str(self._log), "-o", options, "start")

    def stop(self) -> None:
        self._do("pg_ctl", "-w", "-m", "immediate", "stop")

    def _do(self, program: str, *arguments: str) -> None:
        command = [str(self._binaries / program), "-D", str(self._data), *arguments]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd="/", timeout=60, **self._user)


class World:
    """The hosts, the log that they share, and Dagster's instance."""

    def __init__(self, folder: Path, postgres: Postgres, stack: ExitStack) -> None:
        self.postgres, self.folder, self._stack = postgres, folder, stack
        self.settings = Settings(home=folder / "home", log_uri=str(folder / "log"), postgres_url=postgres.url)
        self.log = EventLog.open(self.settings)
        self.requests = Requests(self.log)
        self.environment = {
            "ACCEL_HOME": str(self.settings.home),
            "ACCEL_LOG_URI": self.settings.log_location,
            "ACCEL_POSTGRES_URL": postgres.url,
            "DAGSTER_HOME": str(dagster_home(self.settings)),
        }
        workspace = folder / "workspace.yaml"
        self._ports = {"cpu": free_port(), "cuda": free_port()}
        first = f"{{host: 127.0.0.1, port: {self._ports['cpu']}, location_name: cpu-box}}"
        workspace.write_text(f"load_from:\n  - grpc_server: {first}\n")
        add(workspace, "cuda-box", f"127.0.0.1:{self._ports['cuda']}")
        self.hosts = {hardware: self.serve(hardware) for hardware in self._ports}
        self.pages, self.said = free_port(), folder / "dagster.log"
        command = [sys.executable, "-m", "dagster", "dev", "-w", str(workspace), "-h", "127.0.0.1"]
        stack.enter_context(running([*command, "-p", str(self.pages)], self.said, **self.environment))

    def serve(self, hardware: str) -> subprocess.Popen[str]:
        """`accel host serve`, once it answers."""
        from assets.workspace import Host, answers

        accel = [sys.executable, "-c", "from accel_platform.cli import main; main()"]
        port, log = self._ports[hardware], self.folder / f"{hardware}-box-{time.time():.0f}.log"
        command = [*accel, "host", "serve", "--port", str(port), "--name", f"{hardware}-box", "--hardware", hardware]
        process = self._stack.enter_context(running(command, log, **self.environment))
        there = Host(hardware, "127.0.0.1", port)
        wait_for(f"{hardware}-box", 90, lambda: answers(there) or process.poll() is not None, log)
        assert process.poll() is None, log.read_text()
        return process

    def ask(self, hardware: str, **more: Any) -> UUID:
        options = {name: more.pop(name) for name in ("priority", "max_runtime_s") if name in more}
        [request_id] = request_benchmark({**ASKED, "hardware_types": [hardware], **more}, self.log, **options)
        return request_id

    def request(self, request_id: UUID) -> Request:
        self.requests.look()
        return self.requests[request_id]

    def closed(self, request_id: UUID, seconds: float = 120) -> Request:
        def found() -> Request | None:
            request = self.request(request_id)
            return request if request.closed else None

        return wait_for(f"the end of {request_id}", seconds, found, self.said)  # type: ignore[no-any-return]

    @contextmanager
    def instance(self) -> Iterator[dg.DagsterInstance]:
        with dg.DagsterInstance.from_config(self.environment["DAGSTER_HOME"]) as instance:
            yield instance

    def runs(self, request_id: UUID) -> list[dg.RunRecord]:
        with self.instance() as instance:
            return list(instance.get_run_records(dg.RunsFilter(tags={REQUEST_TAG: str(request_id)}), ascending=True))

    def measuring(self, request_id: UUID, attempt: int = 1, seconds: float = 90) -> psutil.Process:
        """The measuring child of that attempt, once there is one."""

        def found() -> psutil.Process | None:
            if self.request(request_id).attempts != attempt:
                return None
            return next(iter(self.children()), None)

        return wait_for(f"attempt {attempt} to measure", seconds, found, self.said)  # type: ignore[no-any-return]

    def children(self) -> list[psutil.Process]:
        """Measuring children of the host that has hardware, also of one that is gone itself."""
        found = []
        for process in psutil.process_iter(["cmdline", "environ"]):
            environment = process.info["environ"] or {}
            if "accel_platform.bench.worker" in (process.info["cmdline"] or []) and environment.get(
                "ACCEL_HOME"
            ) == str(self.settings.home):
                found.append(process)
        return found

    def run_process(self) -> psutil.Process:
        """The process of the run under way."""
        [child] = self.children()
        parent = child.parent()
        assert parent is not None
        return parent


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    binaries = _postgres_folder()
    if binaries is None:
        pytest.skip("PostgreSQL is not installed: there is no initdb")
    folder = Path(f"/tmp/accel-hosts-{getpass.getuser()}-{os.getpid()}")  # where another user may go
    folder.mkdir(mode=0o755)
    try:
        postgres = Postgres(folder / "postgres", binaries)
        postgres.start()
        with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
            patch.setenv("ACCEL_POSTGRES_URL", postgres.url)
            try:
                yield World(folder, postgres, stack)
            finally:
                stack.close()
                postgres.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _no_event_is_lost_or_doubled(world: World, request: Request) -> None:
    """Every cell of the request has one result, and every event one id."""
    ids, cells, runs = Counter[UUID](), Counter[Any](), set()
    events = list(world.log.read())
    for event in events:
        ids[event.event_id] += 1
        if isinstance(event.payload, RunStarted) and event.payload.labels.get(LABEL) == str(request.id):
            runs.add(event.run_id)
    for event in events:
        if isinstance(event.payload, ResultRecorded) and event.run_id in runs:
            result = event.payload
            cells[result.model_id, result.hardware, result.batch_size] += 1
    assert max(ids.values()) == 1
    assert request.closed is not None
    assert set(request.closed.run_ids) == runs
    assert list(cells.values()) == [1] * len(request.asked.config["batch_sizes"])


def test_a_request_goes_to_the_host_that_claims_its_hardware_and_to_no_other(world: World) -> None:
    cuda, first, second = world.ask("cuda"), world.ask("cpu"), world.ask("cpu", priority=5)
    request = world.closed(cuda)
    assert request.claimed_by == "cuda-box"
    assert request.state == "failed"
    assert request.closed is not None
    assert str(request.closed.reason).startswith("cuda is unavailable: ")
    [run] = world.runs(cuda)
    assert run.dagster_run.tags["hardware"] == "cuda"
    origin = run.dagster_run.remote_job_origin
    assert origin is not None
    assert origin.location_name == "cuda-box"

    for request_id in (first, second):
        request = world.closed(request_id)
        assert (request.state, request.attempts, request.claimed_by) == ("done", 1, "cpu-box")
        _no_event_is_lost_or_doubled(world, request)
    [one], [other] = world.runs(first), world.runs(second)
    assert one.dagster_run.tags["hardware"] == other.dagster_run.tags["hardware"] == "cpu"
    # One device, one benchmark; whichever began first.
    earlier, later = sorted([one, other], key=lambda record: record.start_time or 0)
    assert earlier.end_time is not None
    assert later.start_time is not None
    assert later.start_time >= earlier.end_time
