"""Ctrl-C ends a statement that DuckDB computes, however long it takes, and leaves signals as they were."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
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


_INTERRUPTED = f"""
import signal, threading, duckdb
from accel_platform.warehouse.interrupts import interruptible

signal.signal(signal.SIGINT, signal.default_int_handler)
ended = []
with duckdb.connect(":memory:") as con:
    for wait_s in [*(0.0002 * i for i in range(30)), 0.5]:
        sender = threading.Timer(wait_s, signal.pthread_kill, (threading.get_ident(), signal.SIGINT))
        try:
            with interruptible(con):
                sender.start()
                con.execute({ENDLESS!r})
        except BaseException as error:
            ended.append(type(error))
    with interruptible(con):
        assert con.execute("SELECT 1").fetchall() == [(1,)]
assert ended == [KeyboardInterrupt] * 31, ended
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
assert signal.set_wakeup_fd(-1) == -1
"""
"""DuckDB looks for signals while a statement starts, and not later, so some come early and one comes late."""


def test_an_interrupt_leaves_connection_and_signals_as_they_were() -> None:
    # In a process of its own, because a signal that is not caught ends the one it is sent to.
    done = subprocess.run(
        [sys.executable, "-c", _INTERRUPTED], capture_output=True, text=True, check=False, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")


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
