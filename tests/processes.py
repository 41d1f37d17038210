"""Processes that tests start and must end: with all that they start themselves. No test lives here."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

REPOSITORY = Path(__file__).parent.parent


def free_port() -> int:
    """A loopback port that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(
    command: Sequence[str], log: Path, *, folder: Path = REPOSITORY, **environment: str
) -> Iterator[subprocess.Popen[str]]:
    """The command in the folder, its output in `log`; SIGINT at the end, and then nothing of it is left."""
    with log.open("w") as output:
        process = subprocess.Popen(
            list(command),
            cwd=folder,
            env=_environment(environment),
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            started = family(process)
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=60 * PATIENCE)
            for left in started:
                with suppress(psutil.NoSuchProcess):
                    left.kill()
            process.wait()


THOROUGH = os.environ.get("ACCEL_TEST_PROFILE") == "thorough"
"""Whether tests take the time to try all that they can, as `make test-all` does."""
needs_a_quiet_machine = pytest.mark.skipif(
    not THOROUGH,
    reason="takes minutes, and waits of its own on several processes: make test-all runs it, on a quiet machine",
)


PATIENCE = 3
"""Factor that a machine may be slower by, because it runs several tests at once or others use it, too."""


def wait_for(what: str, seconds: float, found: Callable[[], Any], log: Path) -> Any:
    """Return what `found` answers, once it answers something; else fail the test with what the process said.

    `seconds` are those of a quiet machine. A limit that is itself promised has to be asserted beside it.
    """
    seconds *= PATIENCE
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if answer := found():
            return answer
        time.sleep(0.2)
    pytest.fail(f"{what}: not within {seconds:.0f} s. The process said:\n{log.read_text()[-4000:]}")


def family(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """The process and all that descend from it, as far as they still run."""
    try:
        leader = psutil.Process(process.pid)
        return [leader, *leader.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _environment(changed: Mapping[str, str]) -> dict[str, str]:
    """This one's, without what a developer may have set for the platform or for Dagster."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ACCEL_", "DAGSTER_"))}
    return {**kept, **changed}


@contextmanager
def asking_until_refused(
    address: tuple[str, int], request: bytes, *, clients: int = 8
) -> Iterator[tuple[list[bytes], list[str]]]:
    """Whole responses, and what broke, of clients that connect for each request until nobody listens any more.

    Leaving waits until they are refused.
    """
    responses: list[bytes] = []
    broken: list[str] = []

    def ask() -> None:
        while True:
            try:
                client = socket.create_connection(address, timeout=30)
            except ConnectionRefusedError:
                return
            try:
                with client, client.makefile("rb") as response:
                    client.sendall(request)
                    responses.append(response.read())
            except OSError as error:
                broken.append(repr(error))

    threads = [threading.Thread(target=ask) for _ in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield responses, broken
    finally:
        for thread in threads:
            thread.join()
