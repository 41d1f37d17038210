"""Faults of disks and of what lies on them, for tests: no room, no rights, and something else in a file's place."""

from __future__ import annotations

import ctypes
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_CAPABILITIES_V3 = 0x20080522
_DAC = 1 << 1 | 1 << 2
"""CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH: what lets root pass over permission bits."""


@contextmanager
def no_room(largest: int = 0) -> Iterator[None]:
    """Let no file of this process grow over so many bytes: each write beyond fails, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
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
