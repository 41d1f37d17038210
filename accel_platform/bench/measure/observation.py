"""Sampling something with an eye on what goes on meanwhile: other processes, memory, energy, the state of processors.

What is sampled is not known here; how often is `sampling.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any

from accel_platform.bench.measure.contention import measure_contention, read_load_counters
from accel_platform.bench.measure.sampling import Sampling, collect_samples
from accel_platform.hardware import gpu
from accel_platform.hardware.cpu import state_now
from accel_platform.hardware.energy import Meter, described, meter_for
from accel_platform.hardware.memory import own_peak_mib


@dataclass(frozen=True)
class MeterTarget:
    """Whose clocks and whose energy are looked at."""

    hardware: str
    energy: str | None
    """As `energy.counted_by` says."""


def observe(
    run: Callable[[], None],
    sampling: Sampling,
    clock: Callable[[], int] = perf_counter_ns,
    *,
    counted: MeterTarget,
    memory_peak_mib: Callable[[], float | None] | None = None,
    root: int | None = None,
) -> dict[str, Any]:
    """The steady samples of `run`, and that part of a cell's answer which does not depend on what was run.

    The peak is this process's unless another is handed in; processor time is counted for `root` and all below it.
    """
    meter = meter_for(counted.energy)
    before = _state(counted.hardware)
    began = read_load_counters(root)
    samples = collect_samples(run, sampling, clock, steady=meter if isinstance(meter, Meter) else None)
    crowd = measure_contention(began, read_load_counters(root))
    return {
        "samples_ns": samples.samples_ns,
        "warmup_count": samples.warmup_count,
        "stopped": samples.stopped,
        "contention": vars(crowd),
        "memory_peak_mib": (memory_peak_mib or own_peak_mib)(),
        "energy": described(meter),
        "before": before,
        "after": _state(counted.hardware),
    }


def _state(hardware: str) -> dict[str, Any]:
    """Load, clocks and temperatures now; what cannot be read is left out."""
    return state_now() | (gpu.state() if hardware in ("cuda", "rocm") else {})
