"""Sampling with simultaneous observation of contention, memory, energy and processor state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from accel_platform.bench.measure.contention import disturbance_by_others, measure_contention, read_load_counters
from accel_platform.bench.measure.sampling import Sampling, collect_samples
from accel_platform.hardware import gpu
from accel_platform.hardware.cpu import state_now
from accel_platform.hardware.energy import Meter, meter_facts, meter_for
from accel_platform.hardware.memory import own_peak_mib


@dataclass(frozen=True)
class MeterTarget:
    """Targets observed beside a measurement: clocks and energy of the hardware, and memory with the model's files."""

    hardware: str
    energy: str | None
    """Energy counter, as returned by `energy.energy_counter`."""
    weights: Path | None = None
    """File or folder of the model, which the runtime may map."""


def observe(
    run: Callable[[], None],
    sampling: Sampling,
    clock: Callable[[], int] = perf_counter_ns,
    *,
    target: MeterTarget,
    memory_peak_mib: Callable[[], float | None] | None = None,
    root: int | None = None,
) -> dict[str, Any]:
    """Return the steady samples of `run`, and the part of a cell's answer that does not depend on what was run.

    A measurement that others disturb is repeated at once, if another of its length fits into the sampling's limit; the
    last one counts. The peak memory is this process's unless `memory_peak_mib` is given. Processor time is counted for
    `root` and its descendants.
    """
    before = _state(target.hardware)
    started_ns, spent_s, disturbances = perf_counter_ns(), 0.0, list[str]()
    while True:
        meter = meter_for(target.energy)
        began = read_load_counters(root)
        remaining = replace(sampling, limit_s=sampling.limit_s - spent_s)
        samples = collect_samples(run, remaining, clock, steady=meter if isinstance(meter, Meter) else None)
        contention = measure_contention(began, read_load_counters(root))
        reason = disturbance_by_others(contention)
        attempts = len(disturbances) + 1
        spent_s = (perf_counter_ns() - started_ns) / 1e9
        if reason is None or attempts >= sampling.max_attempts or spent_s * (1 + 1 / attempts) > sampling.limit_s:
            break
        disturbances.append(reason)
    return {
        "disturbed_before": disturbances,
        "samples_ns": samples.samples_ns,
        "warmup_count": samples.warmup_count,
        "stopped": samples.stopped,
        "contention": vars(contention),
        "memory_peak_mib": own_peak_mib(target.weights) if memory_peak_mib is None else memory_peak_mib(),
        "energy": meter_facts(meter),
        "before": before,
        "after": _state(target.hardware),
    }


def slowdown_reason(after: Mapping[str, Any]) -> str | None:
    """Return why the state after a measurement says that the GPU was too hot for its clock; None where it was not."""
    reasons = sorted(gpu.OVERHEATED.intersection(after.get("gpu_slowed_by", ())))
    return f"the GPU lowered its clock: {', '.join(reasons)}" if reasons else None


def _state(hardware: str) -> dict[str, Any]:
    """Return load, clocks and temperatures; what cannot be read is left out."""
    return state_now() | (gpu.state() if hardware.partition(":")[0] in ("cuda", "rocm") else {})
