"""Interrupts of DuckDB statements by Ctrl-C."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import duckdb

_REPEAT_S = 0.1
"""Time between two interrupts of a connection, because one that comes before the statement starts is lost."""

_END = 0
"""Byte that ends the watcher: no signal has this number."""


@contextmanager
def interruptible(connection: duckdb.DuckDBPyConnection) -> Iterator[None]:
    """End the connection's statements with KeyboardInterrupt on SIGINT.

    Python runs its signal handlers only after DuckDB returns, which can take hours. So a thread that the system's
    handler wakes interrupts the connection. In other threads than the main one, and where SIGINT is ignored or an event
    loop receives the signals, nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread() or not callable(signal.getsignal(signal.SIGINT)):
        yield
        return
    received, wakeup = os.pipe()
    os.set_blocking(wakeup, False)
    interrupted, ended = threading.Event(), threading.Event()

    def watch() -> None:
        while (number := os.read(received, 1)[0]) not in (signal.SIGINT, _END):
            pass
        if number == signal.SIGINT:
            interrupted.set()
        while not ended.wait(_REPEAT_S if interrupted.is_set() else None):
            with suppress(duckdb.Error):
                connection.interrupt()

    previous = signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
    if previous != -1:
        signal.set_wakeup_fd(previous)
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        try:
            yield
        finally:
            ended.set()
            if previous == -1:
                signal.set_wakeup_fd(-1)
            os.write(wakeup, bytes([_END]))
            watcher.join()
            os.close(wakeup)
            os.close(received)
    except Exception:
        # Asked after the watcher has read all that came before the end, because DuckDB may notice the signal earlier.
        if interrupted.is_set():
            raise KeyboardInterrupt from None
        raise
