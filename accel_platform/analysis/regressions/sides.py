"""Sides of a comparison: which of their processes count, and the figures of these."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import numpy as np

from accel_platform.analysis.query.measured import ProcessResult
from accel_platform.analysis.regressions.decision import MIN_PROCESSES
from accel_platform.analysis.stats.medians import median_ns
from accel_platform.events.types import Measure


def any_works(processes: Sequence[ProcessResult]) -> bool:
    """Return whether a process of the side works, with verified outputs."""
    return any(process.verified and process.failure is None for process in processes)


def count_failed(processes: Sequence[ProcessResult]) -> int:
    """Return the number of processes that failed."""
    return sum(process.failure is not None for process in processes)


def comparable_processes(processes: Sequence[ProcessResult], measure: Measure) -> list[ProcessResult]:
    """Return the verified processes that work and have the figure.

    Of latencies, those without doubt if they are enough, else the undisturbed.
    """
    works = [process for process in processes if process.verified and process.failure is None]
    if measure != "latency":
        return [process for process in works if process.figure(measure)]
    steady = [process for process in works if process.doubt is None]
    undisturbed = [process for process in works if not process.disturbed]
    return next((some for some in (steady, undisturbed) if len(some) >= MIN_PROCESSES), works)


def figures_of(processes: Sequence[ProcessResult], measure: Measure) -> list[float]:
    """Return the known figures of the processes, for latencies those of their samples."""
    if measure == "latency":
        return [median_ns(process.samples_ns) / 1e6 for process in processes]
    return [figure for process in processes if (figure := process.figure(measure))]


def comparable_median_ms(processes: Sequence[ProcessResult]) -> float | None:
    """Return the median latency of the processes that work; None where none has one."""
    known = [p.median_ms for p in comparable_processes(processes, "latency") if p.median_ms is not None]
    return median(known) if known else None


def pool_samples(processes: Sequence[ProcessResult]) -> list[int]:
    """Pool equally many samples of each process, so that the one with the most does not dominate."""
    count = min(len(process.samples_ns) for process in processes)
    pool: list[int] = []
    for process in processes:
        places = np.linspace(0, len(process.samples_ns) - 1, count).round().astype(int)
        ordered = sorted(process.samples_ns)
        pool += [ordered[place] for place in places]
    return pool
