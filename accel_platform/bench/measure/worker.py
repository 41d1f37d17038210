"""Measuring worker process: one model on one backend in one precision and mode, cell by cell.

It imports the runtime it measures and little else, so that load time and peak memory are the runtime's own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from accel_platform.atomic_write import make_directory
from accel_platform.bench.measure.failures import classify, device_lost
from accel_platform.bench.measure.job import (
    failure_message,
    group_by_part,
    leave_cores_to_measure_on,
    load_backend,
    meter_target_for,
    read_data,
    sampling_for,
    turn,
)
from accel_platform.bench.measure.observation import observe
from accel_platform.bench.measure.sampling import Sampling
from accel_platform.hardware.memory import CellPeaks, own_peak_mib, own_pids
from accel_platform.subprocesses.json_child import Message, serve

if TYPE_CHECKING:
    from accel_platform.backends.base import Backend

PROFILED_RUNS = 10


def measure_job(job: Message, send: Callable[[Message], None]) -> None:
    """Load once, then measure each cell; a cell's failure is sent and the next one follows."""
    if job["processes"] > 1:
        from accel_platform.bench.measure import ddp

        ddp.run_leader(job, send)
        return
    # Before the runtime is imported, whose threads would have all cores.
    leave_cores_to_measure_on(job)
    backend = load_backend(job, send)
    if backend is None:
        return
    succeeded = []
    peaks = _watch_peaks(backend, Path(job["artifact"]))
    for number, cell in enumerate(job["cells"]):
        if number:
            peaks.begin_next()
        try:
            answer = _measure_cell(backend, cell, job)
            if "memory_peak_mib" in answer:
                answer["memory_peak_mib"], answer["memory_peak_unavailable"] = peaks.own_peak(answer["memory_peak_mib"])
            send({"kind": "measured", **answer})
            succeeded.append(number)
        except Exception as error:  # noqa: BLE001 - whatever a runtime throws is this cell's failure
            send(failure_message("failed", error))
            if device_lost(error):
                send({"kind": "restart"})
                return
    # Profile after all measurements, because a profiler costs time and memory that a process does not return.
    for number in succeeded if job["traces"] else ():
        send(
            {
                "kind": "operators",
                "cell": number,
                **_profile_operators(backend, Path(job["cells"][number]), job, number),
            }
        )
    backend.close()


def _watch_peaks(backend: Backend, weights: Path) -> CellPeaks:
    from accel_platform.backends.base import Remote

    if isinstance(backend, Remote):
        return CellPeaks(backend.memory_peak_mib, backend.process_ids)
    return CellPeaks(partial(own_peak_mib, weights), own_pids)


def _measure_cell(backend: Backend, cell: str, job: Message) -> dict[str, Any]:
    sampling = sampling_for(job)
    if job["mode"] == "generation":
        from accel_platform.bench.measure import generation

        target, data = meter_target_for(job), read_data(cell)
        with turn(job):
            return generation.measure_generation(backend, data, sampling, precision=job["precision"], target=target)
    if job["mode"] == "training":
        from accel_platform.bench.measure import training

        target, data = meter_target_for(job), read_data(cell)
        with turn(job):
            return training.measure_training(backend, data, sampling, precision=job["precision"], target=target)
    if job["work"] == "verify":
        return _verify_inference(backend, Path(cell), job["precision"])
    return _measure_inference(backend, Path(cell), sampling, job)


def _measure_inference(backend: Backend, data: Path, sampling: Sampling, job: Message) -> dict[str, Any]:
    import numpy as np

    from accel_platform.backends.base import Remote

    with np.load(data) as stored:
        parts = group_by_part(stored, ("input", "other"))
    remote = backend if isinstance(backend, Remote) else None
    clock = remote.clock_ns if remote else perf_counter_ns
    with turn(job):
        start = perf_counter_ns()
        backend.compile(parts["input"])
        compiled = perf_counter_ns()
        # The other input shows whether the outputs depend on the input; it runs first, so it is also the cold run.
        backend.bind(parts["other"])
        bound = clock()
        backend.run()
        first = clock()
        other = backend.outputs()
        backend.bind(parts["input"])
        peak = remote.memory_peak_mib if remote else None
        observed = observe(backend.run, sampling, clock, memory_peak_mib=peak, target=meter_target_for(job))
        outputs = backend.outputs()
        memory_device_peak_mib = backend.memory_device_peak_mib()
        where = _where_it_ran(backend, job["precision"])
    return {
        **observed,
        "compile_ms": (compiled - start) / 1e6 if backend.compiles else None,
        "first_ms": (first - bound) / 1e6,
        "figures": {},
        "memory_device_peak_mib": memory_device_peak_mib,
        "notes": remote.notes() if remote else {},
        **where,
        **_verify_outputs(outputs, other, data, job["precision"]),
    }


def _verify_inference(backend: Backend, data: Path, precision: str) -> dict[str, Any]:
    """Compute and verify the outputs, without timing."""
    import numpy as np

    with np.load(data) as stored:
        parts = group_by_part(stored, ("input", "other"))
    backend.compile(parts["input"])
    found = {}
    for part in ("other", "input"):
        backend.bind(parts[part])
        backend.run()
        found[part] = backend.outputs()
    where = _where_it_ran(backend, precision)
    return {**where, **_verify_outputs(found["input"], found["other"], data, precision)}


def _where_it_ran(backend: Backend, precision: str) -> dict[str, Any]:
    """Return the runtime's report of the last run: its device, its graph's placement, its share of the precision."""
    from accel_platform.bench.measure.verification import require_precision_share

    share = require_precision_share(backend, precision)
    confirmed, placed = backend.confirm(), backend.placement()
    return {
        "confirmed": vars(confirmed) if confirmed else None,
        "precision_share": share,
        "placement": {**vars(placed), "accelerated_share": placed.accelerated_share} if placed else None,
    }


def _verify_outputs(outputs: Any, other: Any, data: Path, precision: str) -> dict[str, Any]:
    """Return the verdict on the last run's outputs.

    `verdict` is None without a reference; `unfounded` names a problem found even so.
    """
    import numpy as np

    from accel_platform.bench.measure.verification import degenerate_reason, verify

    with np.load(data) as stored:
        parts = group_by_part(stored, ("reference", "items"))
    reference, items = parts["reference"], parts["items"].get("compared")
    verdict = verify(outputs, other, reference, precision=precision, items=items) if reference else None
    return {"verdict": vars(verdict) if verdict else None, "unfounded": degenerate_reason(outputs, other)}


def _profile_operators(backend: Backend, data: Path, job: Message, number: int) -> dict[str, Any]:
    """Run a cell once more under the runtime's profiler; return its operators, longest first, or why there are none."""
    import numpy as np

    from accel_platform.backends.profiling import ProfilingBackend

    if job["mode"] != "inference":
        return {"reason": f"operators are looked at in inference only, not in {job['mode']}"}
    if not isinstance(backend, ProfilingBackend):
        return {"reason": f"the {backend.name} backend keeps no operator times"}
    trace = Path(job["traces"][number])
    make_directory(trace.parent)
    try:
        with np.load(data) as stored:
            inputs = group_by_part(stored, ("input",))["input"]
        backend.compile(inputs)
        backend.bind(inputs)
        backend.run()
        found = backend.operators(runs=PROFILED_RUNS, trace=trace)
    except Exception as error:  # noqa: BLE001 - likewise, and the cell's figures stand
        return {"reason": classify(error)[1]}
    longest = sorted(found, key=lambda operator: -operator.total_ms)
    return {"trace": str(trace), "runs": PROFILED_RUNS, "operators": [vars(operator) for operator in longest]}


if __name__ == "__main__":
    serve(measure_job)
