"""Requested benchmarks on several hosts, for real: PostgreSQL, two code servers, and faults while they measure.

One world serves all tests: a private PostgreSQL, Dagster without the asset graph, and two hosts on loopback, of which
one stands for `cpu` and one claims `cuda`, which is not there. What is tested is where a request goes and how it ends.
"""

from __future__ import annotations

import getpass
import itertools
import os
import pwd
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import UUID

import dagster as dg
import httpx
import psutil
import pytest
import sqlalchemy
from processes import PATIENCE, family, free_port, needs_a_quiet_machine, running, wait_for

from accel_platform.bench.requests.lifecycle import REQUEST_LABEL, Request, Requests, close, request_benchmark
from accel_platform.errors import AccelError
from accel_platform.events import EventLog
from accel_platform.events.types import ResultRecorded, RunStarted
from accel_platform.settings import Settings
from assets.executors.routing import REQUEST_TAG
from assets.run_in_process import TABLES_LOCK, dagster_home
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
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd="/", timeout=180, **self._user)


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
            # Nothing here is measured in a browser, and looking for one takes seconds of each attempt.
            "PATH": str(Path(sys.executable).parent),
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

        accel = [sys.executable, "-m", "accel_platform"]
        port, log = self._ports[hardware], self.folder / f"{hardware}-box-{time.time():.0f}.log"
        command = [*accel, "host", "serve", "--port", str(port), "--name", f"{hardware}-box", "--hardware", hardware]
        process = self._stack.enter_context(running(command, log, **self.environment))
        there = Host(hardware, "127.0.0.1", port)
        wait_for(f"{hardware}-box", 180, lambda: answers(there) or process.poll() is not None, log)
        assert process.poll() is None, log.read_text()
        return process

    def ask(self, hardware: str, **more: Any) -> UUID:
        options = {name: more.pop(name) for name in ("priority", "max_runtime_s") if name in more}
        [request_id] = request_benchmark({**ASKED, "hardware_types": [hardware], **more}, self.log, **options)
        return request_id

    def request(self, request_id: UUID) -> Request:
        self.requests.refresh()
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
            if "accel_platform.bench.measure.worker" in (process.info["cmdline"] or []) and environment.get(
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
        (folder / "log").mkdir()
        if os.getuid() == 0:
            small = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(folder / "log")]
            subprocess.run(small, check=False, capture_output=True)
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
        if os.path.ismount(folder / "log"):
            subprocess.run(["umount", "--lazy", str(folder / "log")], check=True)
        shutil.rmtree(folder, ignore_errors=True)


def test_of_hosts_that_start_at_once_on_an_empty_database_one_creates_the_tables(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    server = sqlalchemy.create_engine(world.postgres.url, isolation_level="AUTOCOMMIT")
    with server.connect() as con:
        con.execute(sqlalchemy.text("CREATE DATABASE empty"))
    url = world.postgres.url.replace("/postgres", "/empty")
    monkeypatch.setenv("ACCEL_POSTGRES_URL", url)
    empty = sqlalchemy.create_engine(url)
    log = world.folder / "postgres" / "postgres.log"
    waiting = sqlalchemy.text("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
    with ThreadPoolExecutor(1) as pool:
        with empty.connect() as other:
            other.execute(sqlalchemy.text(f"SELECT pg_advisory_lock({TABLES_LOCK})"))
            host = pool.submit(dagster_home, Settings(home=tmp_path))
            wait_for("the host waits", 30, lambda: other.execute(waiting).scalar() or host.done(), log)
            assert not host.done()
            assert sqlalchemy.inspect(other).get_table_names() == []
            other.invalidate()  # as of a host that was killed
        host.result(timeout=180)
    assert "runs" in sqlalchemy.inspect(empty).get_table_names()
    empty.dispose()
    server.dispose()


def test_a_database_that_does_not_answer_is_named(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    url = f"postgresql://accel:secret@127.0.0.1:{free_port()}/postgres"
    monkeypatch.setenv("ACCEL_POSTGRES_URL", url)
    with pytest.raises(
        AccelError, match=r"PostgreSQL \(127.0.0.1, ACCEL_POSTGRES_URL\) cannot be used: .*refused"
    ) as problem:
        dagster_home(Settings(home=tmp_path))
    assert "secret" not in str(problem.value)


def _no_event_is_lost_or_doubled(world: World, request: Request) -> None:
    """Every cell of the request has one result, and every event one id."""
    ids, cells, runs = Counter[UUID](), Counter[Any](), set()
    events = list(world.log.read())
    for event in events:
        ids[event.event_id] += 1
        if isinstance(event.payload, RunStarted) and event.payload.labels.get(REQUEST_LABEL) == str(request.id):
            runs.add(event.run_id)
    for event in events:
        if isinstance(event.payload, ResultRecorded) and event.run_id in runs:
            result = event.payload
            if result.remedy is None:  # what is measured in the place of a cell that failed comes on top
                cells[result.model_id, result.hardware, result.batch_size] += 1
    assert max(ids.values()) == 1
    assert request.closed is not None
    assert set(request.closed.run_ids) == runs
    assert list(cells.values()) == [1] * len(request.payload.config["batch_sizes"])


def test_a_request_goes_to_the_host_that_claims_its_hardware_and_to_no_other(world: World) -> None:
    cuda, cpu = world.ask("cuda"), world.ask("cpu")
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

    request = world.closed(cpu)
    assert (request.state, request.attempts, request.claimed_by) == ("done", 1, "cpu-box")
    _no_event_is_lost_or_doubled(world, request)
    [run] = world.runs(cpu)
    assert run.dagster_run.tags["hardware"] == "cpu"


@needs_a_quiet_machine
def test_a_run_that_is_killed_and_a_log_that_cannot_be_written_are_tried_again(world: World) -> None:
    # A process per cell, so that one is in the log when the other is struck.
    asked = world.ask("cpu", batch_sizes=[1, 2], use_resource_pool=False)
    wait_for("a result", 180, lambda: _results(world, asked), world.said)
    world.measuring(asked)
    run = world.run_process()
    run.kill()
    _gone(world, run)

    world.measuring(asked, attempt=2, seconds=FREE_S / PATIENCE)
    with _not_writable(world, "full"):
        wait_for("the second run to fail", 120, lambda: _statuses(world, asked)[1:] == ["FAILURE"], world.said)
        time.sleep(6)
        assert world.request(asked).attempts == 2  # what cannot be written down does not begin

    child = world.measuring(asked, attempt=3, seconds=FREE_S / PATIENCE)
    child.kill()
    request = world.closed(asked)
    # One cell was measured in the first attempt, and is not measured again; the other's process was killed.
    assert request.attempts == 3
    assert request.state == "done"
    assert request.closed is not None
    assert "SIGKILL" in str(request.closed.reason)
    _no_event_is_lost_or_doubled(world, request)


@needs_a_quiet_machine
def test_a_run_outlives_its_code_server_and_a_restart_of_postgresql(world: World) -> None:
    asked = world.ask("cpu", batch_sizes=[1, 2], use_resource_pool=False)
    world.measuring(asked)
    with _not_writable(world, "read-only"):
        wait_for("the run to fail", 60, lambda: _statuses(world, asked) == ["FAILURE"], world.said)

    world.measuring(asked, attempt=2, seconds=FREE_S / PATIENCE)
    world.hosts["cpu"].kill()
    world.postgres.stop()
    time.sleep(2)
    world.postgres.start()
    wait_for("the run to end", 90, lambda: "STARTED" not in _statuses(world, asked), world.said)
    world.hosts["cpu"] = world.serve("cpu")
    request = world.closed(asked)
    assert request.state == "done", request
    assert request.attempts in (2, 3)  # a run that needs PostgreSQL just then fails
    _no_event_is_lost_or_doubled(world, request)


def test_a_host_that_vanishes_while_it_measures_is_given_up_and_its_device_is_free(world: World) -> None:
    asked = world.ask("cpu")
    world.measuring(asked)
    lost_at = time.monotonic()
    lost = [*family(world.hosts["cpu"]), *world.children()]
    # All at one moment: else a process would record that the one it started was killed.
    for end in (psutil.Process.suspend, psutil.Process.kill):
        for process in lost:
            with suppress(psutil.NoSuchProcess):  # it ended because the one before it did
                end(process)
    wait_for(
        "the run to be given up", (FREE_S + 5) / PATIENCE, lambda: _statuses(world, asked) == ["FAILURE"], world.said
    )
    assert time.monotonic() - lost_at <= FREE_S
    world.hosts["cpu"] = world.serve("cpu")
    request = world.closed(asked)
    assert (request.state, request.attempts) == ("done", 2), request.closed
    _no_event_is_lost_or_doubled(world, request)


def test_what_is_cancelled_stops_measuring(world: World) -> None:
    in_pages, by_command, limited = world.ask("cpu"), world.ask("cpu"), world.ask("cpu", max_runtime_s=2)
    child = world.measuring(in_pages)
    [record] = world.runs(in_pages)
    url = f"http://127.0.0.1:{world.pages}/graphql"
    asked = {"query": TERMINATE, "variables": {"id": record.dagster_run.run_id}}
    answer = httpx.post(url, json=asked, timeout=90).json()
    assert answer["data"]["terminateRun"]["__typename"] == "TerminateRunSuccess", answer
    _gone(world, child)
    request = world.closed(in_pages)
    assert (request.state, request.attempts) == ("cancelled", 1)

    child = world.measuring(by_command)
    assert close(world.log, world.request(by_command), "cancelled", "taken back")
    _gone(world, child)

    request = world.closed(limited)
    assert request.state == "failed"
    assert request.closed is not None
    assert request.closed.reason == "it took longer than 2 s, its limit"


def test_two_benchmarks_never_shared_the_device(world: World) -> None:
    with world.instance() as instance:
        records = [r for r in instance.get_run_records() if r.dagster_run.tags.get("hardware") == "cpu"]
    spans = sorted((r.start_time, r.end_time) for r in records if r.start_time and r.end_time)
    assert len(spans) >= 5
    for (_, end), (start, _) in itertools.pairwise(spans):
        assert end <= start


def _results(world: World, request_id: UUID) -> list[ResultRecorded]:
    runs, events = set(), list(world.log.read(types={"RunStarted", "ResultRecorded"}))
    for event in events:
        if isinstance(event.payload, RunStarted) and event.payload.labels.get(REQUEST_LABEL) == str(request_id):
            runs.add(event.run_id)
    return [e.payload for e in events if isinstance(e.payload, ResultRecorded) and e.run_id in runs]


def _statuses(world: World, request_id: UUID) -> list[str]:
    return [record.dagster_run.status.value for record in world.runs(request_id)]


def _gone(world: World, process: psutil.Process) -> None:
    wait_for(f"the end of {process}", 20, lambda: not process.is_running() or process.status() == "zombie", world.said)
    wait_for("the end of its children", 20, lambda: not world.children(), world.said)


@contextmanager
def _not_writable(world: World, how: str) -> Iterator[None]:
    """The log's directory is `full` or `read-only`. Root may write anywhere but to a file system that is so."""
    folder = Path(world.log.location)
    if not os.path.ismount(folder):
        if os.getuid() == 0:
            pytest.skip("this root may not mount a file system")
        folders = [folder, *(path for path in folder.iterdir() if path.is_dir())]
        for path in folders:
            path.chmod(0o555)
        try:
            yield
        finally:
            for path in folders:
                path.chmod(0o755)
    elif how == "read-only":
        subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
        try:
            yield
        finally:
            subprocess.run(["mount", "-o", "remount,rw", str(folder)], check=True)
    else:
        filler = folder / "filler"
        with suppress(OSError), filler.open("wb", buffering=0) as file:
            while file.write(b" " * 4096):
                continue
        try:
            yield
        finally:
            filler.unlink()
