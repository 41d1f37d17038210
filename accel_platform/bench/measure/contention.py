"""Contention by other processes during a measurement: their processor time, and time spent waiting for a core.

A busy neighbor slows a measurement down evenly (shared caches, sibling threads, a lower clock). The samples look calm,
so contention has to be measured separately.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

MAX_OTHERS_SHARE = 0.15
"""Share of the machine's cores that others may use before a result is called noisy."""
MIN_OTHERS_SHARE = 0.02
"""Below this share of others, a process waits for its own threads."""
MAX_WAITING_SHARE = 0.05
"""Share of its own running time that a process may wait for a core."""


@dataclass(frozen=True)
class LoadCounters:
    """Counters in seconds since some beginning; only differences of two readings mean anything."""

    wall_s: float
    machine_s: float
    """Processor time used on all cores by anyone, other guests of the same host included where the kernel tells."""
    own_s: float
    """Processor time of this process and all that it started: a browser backend works in processes of its own."""
    waiting_s: float | None
    """Time that their threads, ready to run, waited for a core; None where the kernel does not tell."""
    cores: int


@dataclass(frozen=True)
class Contention:
    """Contention between two readings."""

    others_share: float
    """Processor time of others over that of all cores, 0 to 1."""
    waiting_share: float | None
    """Waiting over running and waiting of this process and its children, 0 to 1."""


def read_load_counters(root: int | None = None) -> LoadCounters:
    """Read the counters, which takes some milliseconds. Own time is that of `root` (default: this process) and its
    descendants."""
    used = psutil.cpu_times()
    # Subtract guest time, because Linux counts it in user time too; waiting for a disk is not work.
    idle = used.idle + getattr(used, "iowait", 0.0)
    guest = getattr(used, "guest", 0.0) + getattr(used, "guest_nice", 0.0)
    process = psutil.Process(root)
    children = process.children(recursive=True)
    own = process.cpu_times()
    return LoadCounters(
        wall_s=time.perf_counter(),
        machine_s=sum(used) - idle - guest,
        own_s=own.user + own.system + own.children_user + own.children_system + sum(map(_cpu_time_s, children)),
        waiting_s=_run_queue_s([process.pid, *(child.pid for child in children)]),
        cores=psutil.cpu_count() or 1,
    )


def measure_contention(before: LoadCounters, after: LoadCounters) -> Contention:
    """Return the shares between two readings. Counters tick in hundredths of a second: below half a second they tell
    little."""
    own = after.own_s - before.own_s
    capacity = (after.wall_s - before.wall_s) * after.cores
    others = after.machine_s - before.machine_s - own
    waiting = None
    if before.waiting_s is not None and after.waiting_s is not None:
        # The sum may fall, because a thread that ended takes its counter with it.
        waited = max(0.0, after.waiting_s - before.waiting_s)
        waiting = waited / (own + waited) if own + waited > 0 else 0.0
    return Contention(min(1.0, max(0.0, others / capacity)) if capacity > 0 else 0.0, waiting)


def contention_reason(seen: Contention) -> str | None:
    """Return why a simultaneous measurement should not be trusted to a few per cent; None where it can."""
    if seen.waiting_share is not None and seen.waiting_share > MAX_WAITING_SHARE:
        cause = (
            "other processes were running" if seen.others_share > MIN_OTHERS_SHARE else "it has more threads than cores"
        )
        return f"it waited for a core {seen.waiting_share:.0%} of its time: {cause}"
    if seen.others_share > MAX_OTHERS_SHARE:
        return f"other processes used {seen.others_share:.0%} of the processor meanwhile"
    return None


def disturbance_by_others(seen: Contention) -> str | None:
    """Return why a repetition may do better; None where others left the processor alone.

    A process that waits for its own threads would wait again.
    """
    return contention_reason(seen) if seen.others_share > MIN_OTHERS_SHARE else None


def _cpu_time_s(child: psutil.Process) -> float:
    try:
        used = child.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(used.user + used.system)


def _run_queue_s(pids: Sequence[int]) -> float | None:
    """Return the seconds that all living threads spent on a run queue, the second figure of schedstat."""
    if not Path("/proc/self/schedstat").is_file():
        return None
    waited = 0
    for pid in pids:
        for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            # A thread may end between being listed and being read.
            with suppress(FileNotFoundError, ProcessLookupError):
                waited += int(path.read_text(encoding="ascii").split()[1])
    return waited / 1e9
