"""Effects on a request and its results when one of two hosts is cut off from the others, and joins again.

    python benchmarks/partition.py [--json]

PostgreSQL, an S3 server, Dagster and two measuring hosts, each in a network namespace of its own: root on Linux, with
PostgreSQL installed. A host is cut off while it measures: until the other has ended its request, until the other has
taken it, and for some seconds. Aim: the request moves within 60 s, and no result is lost or doubled.
"""

# ruff: noqa: S607 - the system's own programs, found by PATH

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import psutil
import yaml

GOAL_S = 60.0
SHORT_S = 10.0
PATIENCE_S = 300.0
CELLS = [1, 2, 4]
# A process per cell, so that one is in the log while the next is measured.
ASKED = {"models": ["bert-tiny"], "hardware_types": ["cpu"], "effort": "quick", "use_resource_pool": False}
HUB, HOSTS = "accel-hub", {"a": "10.213.7", "b": "10.213.8"}
WORKER = "accel_platform.bench.measure.worker"
POSTGRES_PORT, S3_PORT, HOST_PORT = 5432, 5000, 4000


def main(*, as_json: bool) -> None:
    if reason := unavailable():
        sys.exit(f"unavailable: {reason}")
    namespace = subprocess.run(["ip", "netns", "identify"], capture_output=True, text=True, check=True).stdout.strip()
    if namespace != HUB:
        with tempfile.TemporaryDirectory(prefix="accel-partition-") as temporary, _network():
            command = ["ip", "netns", "exec", HUB, sys.executable, __file__, *sys.argv[1:]]
            sys.exit(subprocess.run(command, env={**os.environ, "TMPDIR": temporary}, check=False).returncode)
    folder = Path(tempfile.gettempdir())
    folder.chmod(0o755)  # PostgreSQL is another user
    with ExitStack() as stack:
        world = World(folder, stack)
        figures = {until: world.cut_off(until) for until in ("ended", "taken", "some seconds")}
    if as_json:
        print(json.dumps(figures, indent=2))
        return
    for name, found in figures.items():
        print(f"\ncut off until {name}" if name != "some seconds" else f"\ncut off for {SHORT_S:g} s")
        for what, value in found.items():
            print(f"  {what:42}{value:.1f}" if isinstance(value, float) else f"  {what:42}{value}")
    print(f"\ngoal: moved within {GOAL_S:g} s; results lost 0, doubled 0")


def unavailable() -> str | None:
    """Return why this machine cannot measure this; None where it can."""
    if sys.platform != "linux" or os.getuid():
        return "network namespaces need Linux and root"
    if shutil.which("ip") is None:
        return "there is no `ip`: install iproute2"
    if _postgres() is None:
        return "PostgreSQL is not installed: there is no initdb"
    tried = subprocess.run(["unshare", "--net", "--mount", "true"], capture_output=True, check=False)
    return "this sandbox allows no network namespaces" if tried.returncode else None


class World:
    """The hub, its two hosts, and the log that they share."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self._stack = folder, stack
        self._start_postgres()
        # Every address is one of this namespace.
        self._start("s3", [sys.executable, "-m", "moto.server", "-H", "0.0.0.0", "-p", str(S3_PORT)])  # noqa: S104
        os.environ |= self._environment("127.0.0.1", "hub")
        _wait("the S3 server", 60, lambda: _answers("127.0.0.1", S3_PORT))
        httpx.put(f"http://127.0.0.1:{S3_PORT}/accel").raise_for_status()

        from accel_platform.bench.requests.lifecycle import Requests
        from accel_platform.events import EventLog
        from accel_platform.settings import Settings
        from assets.run_in_process import dagster_home

        settings = Settings()
        self.log = EventLog.open(settings)
        self.requests = Requests(self.log)
        os.environ["DAGSTER_HOME"] = str(dagster_home(settings))
        self._start_hosts()
        workspace = folder / "workspace.yaml"
        servers = [
            {"grpc_server": {"host": f"{net}.2", "port": HOST_PORT, "location_name": name}}
            for name, net in HOSTS.items()
        ]
        workspace.write_text(yaml.safe_dump({"load_from": servers}))
        self._start("daemon", [sys.executable, "-m", "dagster._daemon", "run", "-w", str(workspace)])

    def cut_off(self, until: str) -> dict[str, Any]:
        """Cut off the host that measures a request until the other has `ended` it, has `taken` it, or for SHORT_S."""
        from accel_platform.bench.requests.lifecycle import request_benchmark

        [one] = request_benchmark({**ASKED, "batch_sizes": CELLS}, self.log)
        _wait("a measurement with a result", PATIENCE_S, lambda: self._results(one) and self._children())
        host = str(self._request(one).claimed_by)
        found: dict[str, Any] = {"results before the cut": len(self._results(one))}
        self._link(host, "down")
        cut = time.monotonic()
        if until == "some seconds":
            time.sleep(SHORT_S)
        else:
            _wait("the request to move", PATIENCE_S, lambda: self._request(one).attempts > 1)
            found["s until the other host took it"] = time.monotonic() - cut
        if until == "ended":
            _wait("the request to end", PATIENCE_S, lambda: self._request(one).closed)
            found["s until it ended"] = time.monotonic() - cut
        self._link(host, "up")
        joined = time.monotonic()
        _wait("the request to end", PATIENCE_S, lambda: self._request(one).closed)
        _wait("nothing to be measured", PATIENCE_S, lambda: not self._children())
        found["s from joining until nobody measured"] = time.monotonic() - joined
        time.sleep(15)  # what was held back would arrive by now
        request = self._request(one)
        found["state"], found["attempts"] = request.state, request.attempts
        found |= self._lost_and_doubled(one)
        again = request_benchmark({**ASKED, "batch_sizes": [1]}, self.log, host=host)[0]
        _wait("the host that joined again to measure", PATIENCE_S, lambda: self._request(again).closed)
        found["s from joining until it had measured another"] = time.monotonic() - joined
        found["that one"] = self._request(again).state
        return found

    def _request(self, one: UUID) -> Any:
        self.requests.refresh()
        return self.requests[one]

    def _results(self, one: UUID) -> list[Any]:
        from accel_platform.bench.requests.lifecycle import runs_of

        runs = set(runs_of(self.log, one))
        return [event.payload for event in self.log.read(types={"ResultRecorded"}) if event.run_id in runs]

    def _lost_and_doubled(self, one: UUID) -> dict[str, int]:
        cells = Counter(result.batch_size for result in self._results(one) if result.status == "ok")
        ids = Counter(event.event_id for event in self.log.read())
        return {
            "results lost": sum(cells[size] == 0 for size in CELLS),
            "results doubled": sum(max(0, cells[size] - 1) for size in CELLS),
            "events doubled": sum(count - 1 for count in ids.values()),
        }

    def _children(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter(["cmdline", "environ"]):
            home = (process.info["environ"] or {}).get("ACCEL_HOME", "")
            if WORKER in (process.info["cmdline"] or []) and home.startswith(str(self.folder)):
                found.append(process)
        return found

    def _environment(self, hub: str, home: str) -> dict[str, str]:
        return {
            "ACCEL_HOME": str(self.folder / home),
            "ACCEL_LOG_URI": "s3://accel/log",
            "ACCEL_POSTGRES_URL": f"postgresql://accel@{hub}:{POSTGRES_PORT}/postgres",
            "AWS_ENDPOINT_URL": f"http://{hub}:{S3_PORT}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            # Nothing here is measured in a browser, and looking for one takes seconds of each attempt.
            "PATH": f"{Path(sys.executable).parent}:/usr/sbin:/sbin:/bin",
        }

    def _start_hosts(self) -> None:
        for name, net in HOSTS.items():
            identity = self.folder / f"machine-id-{name}"  # two machines, two devices
            identity.write_text(f"{name * 32}\n")
            serve = [sys.executable, "-m", "accel_platform", "host", "serve", "--port", str(HOST_PORT)]
            serve += ["--bind", f"{net}.2", "--name", name, "--hardware", "cpu"]
            inner = 'mount --bind "$0" /etc/machine-id && exec "$@"'
            command = ["ip", "netns", "exec", f"accel-{name}", "sh", "-c", inner, str(identity), *serve]
            self._start(name, command, self._environment(f"{net}.1", f"home-{name}"))
        for name, net in HOSTS.items():
            _wait(f"the host {name}", PATIENCE_S, partial(_answers, f"{net}.2", HOST_PORT))

    def _start_postgres(self) -> None:
        binaries, data = _postgres(), self.folder / "postgres"
        assert binaries is not None
        shutil.chown(_made(data), "nobody", "nogroup")
        as_nobody = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"]
        init = [*as_nobody, str(binaries / "initdb"), "-D", str(data), "-A", "trust", "-U", "accel", "--no-sync"]
        subprocess.run(init, check=True, stdout=subprocess.DEVNULL, cwd="/")
        with (data / "pg_hba.conf").open("a") as file:
            file.write("host all all 10.213.0.0/16 trust\n")
        options = [
            "-p",
            str(POSTGRES_PORT),
            "-c",
            "listen_addresses=*",
            "-c",
            "unix_socket_directories=",
            "-c",
            "fsync=off",
        ]
        self._start("postgres-server", [*as_nobody, str(binaries / "postgres"), "-D", str(data), *options])
        _wait("PostgreSQL", 60, lambda: _answers("127.0.0.1", POSTGRES_PORT))

    def _start(self, name: str, command: list[str], environment: dict[str, str] | None = None) -> None:
        output = self._stack.enter_context((self.folder / f"{name}.log").open("w"))
        whole = {**os.environ, **(environment or {})}
        process = subprocess.Popen(
            command, stdout=output, stderr=output, env=whole, start_new_session=True, cwd=self.folder
        )
        self._stack.callback(_end, process)

    def _link(self, host: str, how: str) -> None:
        subprocess.run(["ip", "link", "set", f"to-{host}", how], check=True)


@contextmanager
def _network() -> Iterator[None]:
    """Make a hub and two hosts, each a namespace; the hosts reach the hub and nothing else."""
    names = [HUB, *(f"accel-{name}" for name in HOSTS)]
    made: list[str] = []
    try:
        for name in names:
            _ip("netns", "add", name)
            made.append(name)
            _ip("-n", name, "link", "set", "lo", "up")
        for name, net in HOSTS.items():
            there = ("peer", "name", "eth0", "netns", f"accel-{name}")
            _ip("-n", HUB, "link", "add", f"to-{name}", "type", "veth", *there)
            for space, device, address in (
                (HUB, f"to-{name}", f"{net}.1/30"),
                (f"accel-{name}", "eth0", f"{net}.2/30"),
            ):
                _ip("-n", space, "address", "add", address, "dev", device)
                _ip("-n", space, "link", "set", device, "up")
        yield
    finally:
        for name in made:
            found = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=False)
            for number in found.stdout.split():
                with suppress(ProcessLookupError):
                    os.kill(int(number), signal.SIGKILL)
            _ip("netns", "delete", name)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


def _postgres() -> Path | None:
    found = next(iter(sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), reverse=True)), None)
    found = found or (Path(name) if (name := shutil.which("initdb")) else None)
    return found.resolve().parent if found else None


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _answers(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=1):
            return True
    except OSError:
        return False


def _wait(what: str, seconds: float, found: Callable[[], Any]) -> None:
    deadline = time.monotonic() + seconds
    while not found():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {seconds:.0f} s")
        time.sleep(0.3)


def _end(process: subprocess.Popen[bytes]) -> None:
    with suppress(psutil.NoSuchProcess):
        family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        process.send_signal(signal.SIGINT)
        psutil.wait_procs(family, timeout=5)
        for one in family:
            with suppress(psutil.NoSuchProcess):
                one.kill()
    process.wait()


if __name__ == "__main__":
    main(as_json="--json" in sys.argv[1:])
