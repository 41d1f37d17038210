"""Sandbox for SELECTs of untrusted users: each runs in a process of its own, which then ends (`child.py`)."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import pyarrow as pa

from accel_platform.errors import AccelError, Busy, InvalidInput
from accel_platform.settings import Settings
from accel_platform.warehouse.layers import Projection, WarehouseDamaged, attach_statements, require_current

_CHILD = Path(__file__).with_name("child.py")
# Nothing of the service's environment; one thread and one arena, because both count as memory.
_ENVIRONMENT = {
    "HOME": "/nonexistent",
    "LANG": "C.UTF-8",
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "ARROW_IO_THREADS": "1",
    "MALLOC_ARENA_MAX": "1",
}
_START_S = 30.0
Parameters = Sequence[Any] | Mapping[str, Any]


@dataclass(frozen=True)
class SandboxLimits:
    """Resource limits of one query."""

    wall_s: float = 10.0
    cpu_s: int = 10
    memory_mib: int = 512
    answer_mib: int = 32
    at_once: int = 2
    """Queries that run at a time; the next waits at most `wall_s` for its turn."""


@dataclass(frozen=True)
class SandboxRows:
    """Rows of a query."""

    table: pa.Table
    truncated: bool
    """True if there were more rows than `max_rows`, or than fit into `answer_mib`."""
    snapshot_id: str
    elapsed_ms: float


class QueryCancelled(AccelError):
    """Cancellation of a query by its caller."""


class Sandbox:
    """Read-only SQL over the projection in service for untrusted users; safe to share between threads.

    A spare child waits with the tables open, because starting one takes a third of a second. It answers one query and
    ends.
    """

    def __init__(self, settings: Settings, limits: SandboxLimits | None = None) -> None:
        self._settings = settings
        self._limits = limits or SandboxLimits()
        self._turns = threading.BoundedSemaphore(self._limits.at_once)
        self._lock = threading.Lock()
        self._spare: _Child | None = None
        self._setup: tuple[Projection, bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the spare child."""
        with self._lock:
            spare, self._spare = self._spare, None
        if spare is not None:
            spare.close()

    def query(
        self, sql: str, parameters: Parameters = (), *, max_rows: int, cancelled: threading.Event | None = None
    ) -> SandboxRows:
        """Return the first `max_rows` rows of one SELECT.

        Raises
        ------
        InvalidInput
            If it does not run, with the database's message or the limit that it exceeded.
        Busy
            If other queries hold all places for as long as a query may take.
        QueryCancelled
            Soon after `cancelled` is set.
        WarehouseEmpty
            Before the first publish.
        """
        cancelled = cancelled or threading.Event()
        request = json.dumps(
            {
                "sql": sql,
                "parameters": dict(parameters) if isinstance(parameters, Mapping) else list(parameters),
                "max_rows": max_rows,
            }
        )
        if not self._turns.acquire(timeout=self._limits.wall_s):
            raise Busy("Other queries are running just now: ask again in a few seconds.")
        try:
            projection, child = self._take_child()
            with child:
                self._refill(projection)
                return self._answer(child, request.encode(), projection.snapshot_id, cancelled)
        finally:
            self._turns.release()

    def _answer(self, child: _Child, request: bytes, snapshot_id: str, cancelled: threading.Event) -> SandboxRows:
        started = time.perf_counter()
        deadline = time.monotonic() + self._limits.wall_s
        child.send(request)
        try:
            reply = child.message(deadline, cancelled)
            if "refused" in reply:
                raise InvalidInput(f"The query does not run: {reply['refused']}")
            most = (self._limits.answer_mib << 20) * 2
            content = child.read(min(int(reply["bytes"]), most), deadline, cancelled)
        except _Ended as error:
            raise InvalidInput(
                f"The query was ended ({error}): it may take {self._limits.wall_s:g} s, {self._limits.cpu_s} s of "
                f"processor time and {self._limits.memory_mib} MiB of memory. Ask for less at a time."
            ) from error
        table = pa.ipc.open_stream(content).read_all()
        return SandboxRows(table, bool(reply["truncated"]), snapshot_id, (time.perf_counter() - started) * 1e3)

    def _take_child(self) -> tuple[Projection, _Child]:
        """Return a child with the newest tables open: the spare one, if its tables are still the newest."""
        for attempt in range(3):
            projection = require_current(self._settings)
            with self._lock:
                spare, self._spare = self._spare, None
            if spare is not None and spare.projection == projection:
                child = spare
            else:
                if spare is not None:
                    spare.close()
                child = self._start(projection)
            try:
                child.wait_until_ready()
            except _Ended as error:
                child.close()
                # Retried, because its files may have been retired between reading the pointer and opening them.
                if attempt == 2:
                    raise WarehouseDamaged(self._settings.warehouse_dir, error) from error
            else:
                return projection, child
        raise AssertionError("the last attempt returns or raises")

    def _refill(self, projection: Projection) -> None:
        with self._lock:
            if self._spare is None:
                self._spare = self._start(projection)

    def _start(self, projection: Projection) -> _Child:
        if self._setup is None or self._setup[0] != projection:
            with projection.open() as con:
                views = con.execute("SELECT sql FROM duckdb_views() WHERE NOT internal ORDER BY view_oid").fetchall()
            attached = attach_statements(projection.directory.resolve(), projection.layers)
            setup = {"statements": [*attached.values(), *(sql for (sql,) in views)], **asdict(self._limits)}
            self._setup = (projection, json.dumps(setup).encode())
        return _Child(projection, self._setup[1])


class _Ended(Exception):
    """End of a child before its answer was complete; the text says how it ended."""


class _Child:
    """One process of `child.py`, in a session of its own; leaving the `with` block kills it."""

    def __init__(self, projection: Projection, setup: bytes) -> None:
        self.projection = projection
        self._process = subprocess.Popen(
            [sys.executable, "-I", str(_CHILD)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=_ENVIRONMENT,
            cwd="/",
            start_new_session=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        self._pending = b""
        self.send(setup)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, line: bytes) -> None:
        # Ignored, because reading reports how a child died that broke the pipe.
        with contextlib.suppress(BrokenPipeError):
            self._stdin.write(line + b"\n")
            self._stdin.flush()

    def wait_until_ready(self) -> None:
        """Wait until the child has opened its tables. Raises _Ended if it cannot."""
        reply = self.message(time.monotonic() + _START_S, threading.Event())
        if "gone" in reply:
            raise _Ended(reply["gone"])

    def message(self, deadline: float, cancelled: threading.Event) -> dict[str, Any]:
        while b"\n" not in self._pending:
            self._pending += self._read_some(deadline, cancelled)
        line, _, self._pending = self._pending.partition(b"\n")
        reply: dict[str, Any] = json.loads(line)
        return reply

    def read(self, size: int, deadline: float, cancelled: threading.Event) -> bytes:
        content = bytearray(self._pending)
        while len(content) < size:
            content += self._read_some(deadline, cancelled)
        return bytes(content[:size])

    def _read_some(self, deadline: float, cancelled: threading.Event) -> bytes:
        """Return the child's next output. Raises QueryCancelled, and _Ended after the deadline."""
        poller = select.poll()
        poller.register(self._stdout, select.POLLIN | select.POLLHUP)
        while not poller.poll(50):
            if cancelled.is_set():
                raise QueryCancelled("The query was given up: whoever asked has gone.")
            if time.monotonic() > deadline:
                raise _Ended("it took too long")
        data = os.read(self._stdout.fileno(), 1 << 20)
        if not data:
            code = self._process.wait()
            raise _Ended(f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}")
        return data

    def close(self) -> None:
        """Kill the child and release everything; safe to call again."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        with contextlib.suppress(BrokenPipeError):
            self._stdin.close()
        self._stdout.close()
