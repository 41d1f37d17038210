"""Ctrl-C ends a statement that DuckDB computes, however long it takes, and leaves signals as they were."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb
import pytest

from accel_platform.events import EventLog
from accel_platform.settings import Settings
from accel_platform.warehouse import publish
from accel_platform.warehouse.interrupts import interruptible
from factories import event, result

ENDLESS = "SELECT sum(a.range * b.range) AS s FROM range(1000000) AS a, range(100000) AS b"
"""A cross product that keeps DuckDB from looking for signals."""


@pytest.mark.parametrize("form", ["json", "csv"])
def test_ctrl_c_ends_a_query_at_once(settings: Settings, log: EventLog, tmp_path: Path, form: str) -> None:
    log.append([event(result())])
    publish.refresh(settings)
    code = "import accel_platform.warehouse.reader; print(flush=True); from accel_platform.__main__ import main; main()"
    query = ["db", "query", ENDLESS, "--format", form, "--home", str(settings.home)]
    with subprocess.Popen([sys.executable, "-c", code, *query], stdout=-1, stderr=-1, text=True) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(timeout=2)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=10)
        finally:
            process.kill()
    assert (process.returncode, out, err) == (130, "", "")


@contextmanager
def start(sender: threading.Timer) -> Iterator[None]:
    """Start the timer inside the block that it interrupts."""
    sender.start()
    yield


def test_an_interrupt_leaves_connection_and_signals_as_they_were() -> None:
    handler = signal.getsignal(signal.SIGINT)
    with duckdb.connect(":memory:") as con:
        # DuckDB looks for signals while a statement starts, and not later, so some come early and one comes late.
        for wait_s in [*(0.0002 * i for i in range(30)), 0.5]:
            sender = threading.Timer(wait_s, signal.pthread_kill, (threading.get_ident(), signal.SIGINT))
            with pytest.raises(KeyboardInterrupt), interruptible(con), start(sender):
                con.execute(ENDLESS)
        with interruptible(con):
            assert con.execute("SELECT 1").fetchall() == [(1,)]
    assert signal.getsignal(signal.SIGINT) is handler
    assert signal.set_wakeup_fd(-1) == -1


def test_other_errors_and_other_threads_are_left_alone() -> None:
    with duckdb.connect(":memory:") as con:
        with pytest.raises(duckdb.CatalogException), interruptible(con):
            con.execute("SELECT * FROM nothing")
        rows: list[object] = []

        def read() -> None:
            with interruptible(con):
                rows.extend(con.execute("SELECT 2").fetchall())

        thread = threading.Thread(target=read)
        thread.start()
        thread.join()
        assert rows == [(2,)]
