"""Faults for tests: no room, no rights, and processes that are killed at one of their file operations."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_CAPABILITIES_V3 = 0x20080522
_DAC = 1 << 1 | 1 << 2
"""CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH: what lets root pass over permission bits."""

_FILE_OPERATIONS = frozenset({"open", "os.link", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate"})
"""Names of Python's audit events."""
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


@contextmanager
def no_room(largest: int = 0) -> Iterator[None]:
    """Let no file of this process grow over so many bytes: each write beyond fails, as on a full disk.

    No bytecode is written meanwhile, because Python keeps what a limit has cut off, and fails on it ever after.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "dont_write_bytecode", True)
        patch.setenv("PYTHONDONTWRITEBYTECODE", "1")
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def without_rights(place: Path, mode: int = 0o500) -> Iterator[None]:
    """Give every directory below a place, itself included, this mode, and hold root to it like anybody."""
    directories = [place, *(path for path in place.rglob("*") if path.is_dir())]
    before = {path: path.stat().st_mode for path in directories}
    for path in reversed(directories):
        path.chmod(mode)
    effective = _effective()
    _set_effective(effective & ~_DAC)
    try:
        yield
    finally:
        _set_effective(effective)
        for path in directories:
            path.chmod(before[path])


def killed_at(operation: int, work: Callable[[], object]) -> bool:
    """Do the work in a forked process and kill it before the file operation with this number; False if it ended."""
    with warnings.catch_warnings():
        # Of forks beside threads newer Pythons warn: here the child needs none of them.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        code = 1
        try:
            _kill_at(operation)
            work()
            code = 0
        except BaseException:  # noqa: BLE001 - the fork must not go on as a second test run
            traceback.print_exc()
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) == 0, "the work failed by itself"
    return False


def _kill_at(operation: int) -> None:
    done = 0

    def hear(name: str, arguments: tuple[object, ...]) -> None:
        nonlocal done
        reads = name == "open" and not (isinstance(arguments[2], int) and arguments[2] & _WRITING)
        if name in _FILE_OPERATIONS and not reads:
            done += 1
            if done == operation:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hear)


def _capabilities() -> tuple[ctypes.Array[ctypes.c_uint32], ctypes.Array[ctypes.c_uint32]]:
    header = (ctypes.c_uint32 * 2)(_CAPABILITIES_V3, 0)
    data = (ctypes.c_uint32 * 6)()
    if ctypes.CDLL(None, use_errno=True).capget(header, data):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return header, data


def _effective() -> int:
    return int(_capabilities()[1][0])


def _set_effective(effective: int) -> None:
    """Of this thread; threads it starts later inherit it."""
    header, data = _capabilities()
    data[0] = effective
    if ctypes.CDLL(None, use_errno=True).capset(header, data):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
