"""Adaptive sampling of a repeated function: warmup, stopping rules and noise checks.

Times are integer nanoseconds. Decisions use the median and order statistics only, because latencies are skewed and a
mean follows its outliers.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from time import perf_counter_ns

from accel_platform.analysis.stats.medians import MIN_MEDIAN_SAMPLES, median_ns, relative_error
from accel_platform.table_io.values import count_of

MAX_ERROR_FACTOR = 2.0
"""Times the target error that the median's error may be; a limit may end a cell before its target."""
MAX_DRIFT = 0.05
"""Relative difference of the medians of both halves of the samples above which they drift."""
SLOW_SAMPLE_RATIO, MAX_SLOW_SHARE = 1.5, 0.1
"""Ratio to the median above which a sample is slow, and the share of slow samples above which a result is noisy."""


@dataclass(frozen=True)
class Sampling:
    """Stopping rules: a cell ends with `min_count`, `min_time_s` and `target_error` reached, or at a limit."""

    min_time_s: float = 1.5
    min_count: int = MIN_MEDIAN_SAMPLES
    target_error: float = 0.02
    """Half width of the median's 95 % confidence interval, relative to the median."""
    max_time_s: float = 6.0
    """After this a cell with `min_count` ends, target reached or not."""
    limit_s: float = 40.0
    """After this a cell ends with as many samples as it has."""
    warmup_max_s: float = 3.0
    warmup_tolerance: float = 0.05
    warmup_min_count: int = 0
    """Runs that warm up at least, whatever `warmup_max_s` says; `limit_s` ends them too."""
    max_attempts: int = 3
    """Times that a cell is sampled at most while other processes disturb it; `limit_s` ends this too."""


@dataclass(frozen=True)
class Samples:
    """The steady samples in order, the number of warmup runs, and why sampling stopped."""

    samples_ns: tuple[int, ...]
    warmup_count: int
    stopped: str


def collect_samples(
    run: Callable[[], None],
    sampling: Sampling,
    clock: Callable[[], int] = perf_counter_ns,
    steady: AbstractContextManager[object] | None = None,
) -> Samples:
    """Warm up until stable, then sample until enough. `run` must return only when its work is done.

    `steady` is entered just before the first sample and left right after the last.
    """
    warmup: list[int] = []
    while not is_warm(warmup, sampling):
        warmup.append(_time_once(run, clock))
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        with steady or nullcontext():
            return _collect_steady(run, sampling, clock, len(warmup))
    finally:
        if was_enabled:
            gc.enable()


def _collect_steady(
    run: Callable[[], None], sampling: Sampling, clock: Callable[[], int], warmup_count: int
) -> Samples:
    samples: list[int] = []
    # Check the median's interval at growing counts only, because sorting at every sample would cost more than running.
    check_at = sampling.min_count
    began = clock()
    while True:
        start = clock()
        run()
        end = clock()
        samples.append(end - start)
        # Elapsed time, not the sum of samples: work shorter than the clock's own cost would never end.
        spent = end - began
        reason = limit_reached(len(samples), spent, sampling)
        if reason is None and len(samples) >= check_at and spent >= sampling.min_time_s * 1e9:
            check_at = len(samples) + max(1, len(samples) // 10)
            if relative_error(samples) <= sampling.target_error:
                reason = "target_error"
        if reason is not None:
            return Samples(tuple(samples), warmup_count, reason)


def is_warm(warmup_ns: Sequence[int], sampling: Sampling) -> bool:
    """Return True once the last three of at least `warmup_min_count` runs agree, or time is up."""
    spent_s = sum(warmup_ns) / 1e9
    if len(warmup_ns) < sampling.warmup_min_count and spent_s < sampling.limit_s:
        return False
    if spent_s >= sampling.warmup_max_s:
        return True
    last = warmup_ns[-3:]
    return len(last) == 3 and max(last) - min(last) <= sampling.warmup_tolerance * min(last)


def limit_reached(count: int, spent_ns: int, sampling: Sampling) -> str | None:
    """Return the limit that ends a cell here, None without one."""
    if spent_ns >= sampling.limit_s * 1e9:
        return "limit"
    if spent_ns >= sampling.max_time_s * 1e9 and count >= sampling.min_count:
        return "max_time"
    return None


def noise_reason(samples: Sequence[int], sampling: Sampling) -> str | None:
    """Return why these samples should not be trusted to a few per cent; None where they can."""
    if len(samples) < sampling.min_count:
        return f"only {count_of(len(samples), 'sample')} where {sampling.min_count} are needed"
    middle = median_ns(samples)
    error = relative_error(samples)
    if error > MAX_ERROR_FACTOR * sampling.target_error:
        return f"the median may be off by {error:.1%}"
    half = len(samples) // 2
    drift = abs(median_ns(samples[half:]) - median_ns(samples[:half])) / middle
    if drift > MAX_DRIFT:
        return f"the median drifts by {drift:.1%} between the first half and the second"
    slow = sum(sample > SLOW_SAMPLE_RATIO * middle for sample in samples) / len(samples)
    if slow > MAX_SLOW_SHARE:
        return f"{slow:.0%} of the samples take over {SLOW_SAMPLE_RATIO:g} times the median"
    return None


def _time_once(run: Callable[[], None], clock: Callable[[], int]) -> int:
    start = clock()
    run()
    return clock() - start
