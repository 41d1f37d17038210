"""Sampling something with an eye on what goes on meanwhile: other processes, memory, the processor's state.

What is sampled is not known here; how often is `sampling.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from accel_platform.bench.contention import contention, moment
from accel_platform.bench.sampling import Sampling, collect
from accel_platform.hardware.cpu import state_now


def observe(
    run: Callable[[], None],
    sampling: Sampling,
    clock: Callable[[], int] = perf_counter_ns,
    *,
    memory_peak_mib: Callable[[], float | None] | None = None,
    root: int | None = None,
) -> dict[str, Any]:
    """The steady samples of `run`, and that part of a cell's answer which does not depend on what was run.

    The peak is this process's unless another is handed in; processor time is counted for `root` and all below it.
    """
    before = state_now()
    began = moment(root)
    samples = collect(run, sampling, clock)
    crowd = contention(began, moment(root))
    return {
        "samples_ns": samples.samples_ns,
        "warmup_count": samples.warmup_count,
        "stopped": samples.stopped,
        "contention": vars(crowd),
        "memory_peak_mib": (memory_peak_mib or own_peak_mib)(),
        "before": before,
        "after": state_now(),
    }


def own_peak_mib() -> float:
    """Peak resident memory of this process so far (VmHWM): what it takes to load the model and run the cell."""
    status = Path("/proc/self/status")
    if status.is_file():
        line = next(x for x in status.read_text(encoding="utf-8").splitlines() if x.startswith("VmHWM:"))
        return int(line.split()[1]) / 1024
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 1024
