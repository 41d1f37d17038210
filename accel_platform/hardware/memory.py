"""Peak resident memory of processes, as the system counts it. Memory of devices is asked of their runtimes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path

import psutil

Kib = dict[str, int]


def own_peak_mib() -> float:
    """Return the peak resident memory of this process and its present children, in MiB.

    Its own is VmHWM. A child adds its unshared memory (USS) and how far its resident size had been higher (VmHWM -
    VmRSS). Children that have ended are not counted.
    """
    if not Path("/proc/self/status").is_file():
        return _rusage_mib()
    own = _status(os.getpid())
    assert own is not None, "this process has not ended"
    children = [_beyond_kib(child.pid) for child in psutil.Process().children(recursive=True)]
    return (own["VmHWM"] + sum(children)) / 1024


def joint_peak_mib(pids: Iterable[int]) -> float | None:
    """Return the peak memory in MiB of processes that share much: proportional sizes (PSS), each plus VmHWM - VmRSS.

    None where the system does not tell; a process that has just ended adds nothing.
    """
    if not Path("/proc/self/smaps_rollup").is_file():
        return None
    total = 0
    for pid in pids:
        try:
            status, share = _status(pid), _kib(pid, "smaps_rollup")
        except PermissionError:
            return None
        if status and share:
            total += share["Pss"] + status["VmHWM"] - status["VmRSS"]
    return total / 1024 if total else None


def _beyond_kib(pid: int) -> int:
    status, share = _status(pid), _kib(pid, "smaps_rollup")
    if not status or not share:
        return 0
    return share["Private_Clean"] + share["Private_Dirty"] + status["VmHWM"] - status["VmRSS"]


def _status(pid: int) -> Kib | None:
    found = _kib(pid, "status")
    # A process that has ended but was not waited for has no memory left.
    return found if found and "VmHWM" in found else None


def _kib(pid: int, file: str) -> Kib | None:
    """Return the values in kB of a file of /proc by name; None for a process that has just ended."""
    try:
        text = (Path("/proc") / str(pid) / file).read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return None
    pairs = (line.split(":", 1) for line in text.splitlines() if line.endswith("kB") and ":" in line)
    return {name: int(value.split()[0]) for name, value in pairs}


def _rusage_mib() -> float:
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 1024
