"""The measuring child: one model on one backend in one precision, its cells one after the other.

It imports the runtime it measures and little else, so that its load time and its peak memory are the runtime's own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from accel_platform.bench.failures import classify
from accel_platform.bench.process import Message, serve
from accel_platform.bench.sampling import Sampling, collect

if TYPE_CHECKING:
    from accel_platform.backends.base import Backend

MAJORITY = 0.5
"""Share of a model's products that must run in the precision asked, or the figure would be that of another one."""


def measure(job: Message, send: Callable[[Message], None]) -> None:
    """Load once, then measure each cell; a cell that fails says so and the next one follows."""
    from accel_platform.backends.registry import make_backend

    try:
        start = perf_counter_ns()
        backend = make_backend(job["hardware"], threads=job["threads"])
        imported = perf_counter_ns()
        backend.load(Path(job["artefact"]), precision=job["precision"])
        loaded = perf_counter_ns()
    except Exception as error:  # noqa: BLE001 - whatever a runtime throws is the cells' failure
        failure_class, reason = classify(error)
        send({"kind": "not_loaded", "failure_class": failure_class, "reason": reason})
        return
    send(
        {
            "kind": "loaded",
            "import_ms": (imported - start) / 1e6,
            "load_ms": (loaded - imported) / 1e6,
            "versions": backend.versions(),
        }
    )
    for cell in job["cells"]:
        try:
            answer = _measure_cell(backend, Path(cell), Sampling(**job["sampling"]), job["precision"])
            send({"kind": "measured", **answer})
        except Exception as error:  # noqa: BLE001 - likewise, of this cell
            failure_class, reason = classify(error)
            send({"kind": "failed", "failure_class": failure_class, "reason": reason})
    backend.close()


def _measure_cell(backend: Backend, data: Path, sampling: Sampling, precision: str) -> dict[str, Any]:
    import numpy as np

    from accel_platform.backends.base import Remote, UnsupportedPrecision
    from accel_platform.bench.contention import contention, moment
    from accel_platform.bench.verify import verify
    from accel_platform.hardware.cpu import state_now

    with np.load(data) as stored:
        parts = _by_part(stored, ("input", "other"))
    remote = backend if isinstance(backend, Remote) else None
    clock = remote.clock_ns if remote else perf_counter_ns
    before = state_now()
    start = perf_counter_ns()
    backend.compile(parts["input"])
    compiled = perf_counter_ns()
    # A second input shows whether the outputs depend on it; being run first it also is the honest cold run.
    backend.bind(parts["other"])
    bound = clock()
    backend.run()
    first = clock()
    other = backend.outputs()
    share = backend.precision_share()
    if share is not None and share < MAJORITY:
        raise UnsupportedPrecision(
            f"only {share:.0%} of the matrix products and convolutions ran in {precision}, which is not a measurement"
            " of it"
        )
    backend.bind(parts["input"])
    began = moment()
    samples = collect(backend.run, sampling, clock)
    crowd = contention(began, moment())
    peak = remote.memory_peak_mib() if remote else memory_peak_mib()
    outputs = backend.outputs()
    after = state_now()
    with np.load(data) as stored:
        reference = _by_part(stored, ("reference",))["reference"]
    placed = backend.placement()
    verdict = verify(outputs, other, reference, precision=precision)
    return {
        "compile_ms": (compiled - start) / 1e6 if backend.compiles else None,
        "first_ms": (first - bound) / 1e6,
        "samples_ns": samples.samples_ns,
        "warmup_count": samples.warmup_count,
        "stopped": samples.stopped,
        "contention": vars(crowd),
        "memory_peak_mib": peak,
        "memory_device_peak_mib": backend.memory_device_peak_mib(),
        "before": before,
        "after": after,
        "notes": remote.notes() if remote else {},
        "placement": {**vars(placed), "accelerated_share": placed.accelerated_share} if placed else None,
        "precision_share": share,
        "verdict": vars(verdict),
    }


def _by_part(stored: Any, parts: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {part: {} for part in parts}
    for key in stored.files:
        part, _, name = key.partition("/")
        if part in found:
            found[part][name] = stored[key]
    return found


def memory_peak_mib() -> float:
    """Peak resident memory of this process so far (VmHWM): what it takes to load the model and run the cell."""
    status = Path("/proc/self/status")
    if status.is_file():
        line = next(x for x in status.read_text(encoding="utf-8").splitlines() if x.startswith("VmHWM:"))
        return int(line.split()[1]) / 1024
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 1024


if __name__ == "__main__":
    serve(measure)
