"""Signals that end processes: SIGINT kept from some children, SIGTERM as an interrupt, and no child left behind."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from types import FrameType
from typing import NoReturn

import psutil

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_KILL_S = 2.0
"""Seconds that killed processes may take to end."""
# Looked up here, because a child that was just forked must not wait for the loader's lock.
_prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None


@contextmanager
def block_sigint() -> Iterator[None]:
    """Block SIGINT in processes that `multiprocessing` spawns within the block, even during their imports.

    The caller has to end them. Its own SIGINT is delayed until the block is left.
    """
    # Start the tracker first, because the first spawn would start it and unblock SIGINT.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """Have SIGTERM, by which CI servers cancel jobs, act like Ctrl-C within the block, unless something handles it.

    Otherwise it would end this process at once, and the log would not say that its run was stopped.
    """
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def adopt_orphans() -> None:
    """Have Linux hand this process the children of its children that die, so that `kill_descendants` finds them."""
    if _prctl is not None:
        _prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def reap_orphans(waited_for: Collection[int]) -> None:
    """Let the system forget adopted processes that have ended, because each keeps an id until then.

    `waited_for` are the ids of children that something else waits for.
    """
    if _prctl is None:
        return
    with suppress(ChildProcessError):
        while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if ended.si_pid in waited_for:
                return
            os.waitpid(ended.si_pid, 0)


def interrupt_with_parent() -> None:
    """Have Linux send this process SIGINT when the thread that started it ends, however it does."""
    if _prctl is not None:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGINT, 0, 0, 0)


def kill_descendants() -> list[int]:
    """Kill all descendants of this process and wait for their end. Return the ids of those that the system keeps."""
    deadline = time.monotonic() + _KILL_S
    while found := _descendants():
        for process in found:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        # A process that was just killed may have started another, so look again.
        psutil.wait_procs(found, timeout=max(0.0, deadline - time.monotonic()))
        if time.monotonic() >= deadline:
            return [process.pid for process in _descendants()]
    return []


def end_at_once(number: int, _: FrameType | None = None) -> NoReturn:
    """End this process and its descendants with the exit code of the signal, as a handler of a second Ctrl-C.

    Nothing is raised and nothing cleaned up, because the parts that are just stopping would report that as errors.
    """
    os.write(2, b"Ended at once.\n")  # because the interrupted code may hold the lock of sys.stderr
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # because threads would report the ends of what is killed
    kill_descendants()
    os._exit(128 + number)


def _descendants() -> list[psutil.Process]:
    # Python's resource tracker ends with this process, and cleans up after it.
    tracker = getattr(resource_tracker._resource_tracker, "_pid", None)
    return [child for child in psutil.Process().children(recursive=True) if child.pid != tracker]
