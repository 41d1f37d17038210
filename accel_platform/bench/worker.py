"""The measuring child: one model on one backend in one precision, its cells one after the other.

It imports the runtime it measures and little else, so that its load time and its peak memory are the runtime's own.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from accel_platform.bench.failures import classify
from accel_platform.bench.process import Message, serve
from accel_platform.bench.sampling import Sampling, collect

if TYPE_CHECKING:
    from accel_platform.backends.base import Backend

PROFILED_RUNS = 10


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
    work = _verify_cell if job["work"] == "verify" else _measure_cell
    worked = []
    for number, cell in enumerate(job["cells"]):
        try:
            answer = work(backend, Path(cell), Sampling(**job["sampling"]), job)
            send({"kind": "measured", **answer})
            worked.append(number)
        except Exception as error:  # noqa: BLE001 - likewise, of this cell
            failure_class, reason = classify(error)
            send({"kind": "failed", "failure_class": failure_class, "reason": reason})
    # After all figures are taken: a profiler costs time, and memory that a process does not give back.
    for number in worked if job["traces"] else ():
        send({"kind": "operators", "cell": number, **_operators(backend, Path(job["cells"][number]), job, number)})
    backend.close()


def _measure_cell(backend: Backend, data: Path, sampling: Sampling, job: Message) -> dict[str, Any]:
    import numpy as np

    from accel_platform.backends.base import Remote
    from accel_platform.bench.contention import contention, moment
    from accel_platform.hardware.energy import Meter, described, meter_for
    from accel_platform.hardware.memory import own_peak_mib

    with np.load(data) as stored:
        parts = _by_part(stored, ("input", "other"))
    remote = backend if isinstance(backend, Remote) else None
    clock = remote.clock_ns if remote else perf_counter_ns
    meter = meter_for(job["energy"])
    before = _state(job["hardware"])
    start = perf_counter_ns()
    backend.compile(parts["input"])
    compiled = perf_counter_ns()
    # A second input shows whether the outputs depend on it; being run first it also is the honest cold run.
    backend.bind(parts["other"])
    bound = clock()
    backend.run()
    first = clock()
    other = backend.outputs()
    backend.bind(parts["input"])
    began = moment()
    samples = collect(backend.run, sampling, clock, steady=meter if isinstance(meter, Meter) else None)
    crowd = contention(began, moment())
    peak = remote.memory_peak_mib() if remote else own_peak_mib()
    outputs = backend.outputs()
    after = _state(job["hardware"])
    return {
        "compile_ms": (compiled - start) / 1e6 if backend.compiles else None,
        "first_ms": (first - bound) / 1e6,
        "samples_ns": samples.samples_ns,
        "warmup_count": samples.warmup_count,
        "stopped": samples.stopped,
        "contention": vars(crowd),
        "memory_peak_mib": peak,
        "memory_device_peak_mib": backend.memory_device_peak_mib(),
        "energy": described(meter),
        "before": before,
        "after": after,
        "notes": remote.notes() if remote else {},
        **_judged(backend, outputs, other, data, job["precision"]),
    }


def _state(hardware: str) -> dict[str, Any]:
    """Load, clocks and temperatures now; what cannot be read is left out."""
    from accel_platform.hardware import gpu
    from accel_platform.hardware.cpu import state_now

    return state_now() | (gpu.state() if hardware in ("cuda", "rocm") else {})


def _verify_cell(backend: Backend, data: Path, _: Sampling, job: Message) -> dict[str, Any]:
    """The outputs alone: nothing is timed."""
    import numpy as np

    with np.load(data) as stored:
        parts = _by_part(stored, ("input", "other"))
    backend.compile(parts["input"])
    found = {}
    for part in ("other", "input"):
        backend.bind(parts[part])
        backend.run()
        found[part] = backend.outputs()
    return _judged(backend, found["input"], found["other"], data, job["precision"])


def _judged(backend: Backend, outputs: Any, other: Any, data: Path, precision: str) -> dict[str, Any]:
    """What speaks for the last run: whether its outputs are right, and where the runtime says it was.

    `verdict` is None where there is no reference to judge by; `unfounded` says what is wrong even so.
    """
    import numpy as np

    from accel_platform.bench.verify import unfounded, verify

    with np.load(data) as stored:
        reference = _by_part(stored, ("reference",))["reference"]
    verdict = verify(outputs, other, reference, precision=precision) if reference else None
    confirmed, placed = backend.confirm(), backend.placement()
    return {
        "verdict": vars(verdict) if verdict else None,
        "unfounded": unfounded(outputs, other),
        "confirmed": vars(confirmed) if confirmed else None,
        "placement": {**vars(placed), "accelerated_share": placed.accelerated_share} if placed else None,
    }


def _operators(backend: Backend, data: Path, job: Message, number: int) -> dict[str, Any]:
    """One more pass of a cell under the runtime's profiler: its operators, longest first, or why there are none."""
    import numpy as np

    from accel_platform.backends.operators import Profiled

    if not isinstance(backend, Profiled):
        return {"reason": f"the {backend.name} backend keeps no operator times"}
    trace = Path(job["traces"][number])
    trace.parent.mkdir(parents=True, exist_ok=True)
    try:
        with np.load(data) as stored:
            inputs = _by_part(stored, ("input",))["input"]
        backend.compile(inputs)
        backend.bind(inputs)
        backend.run()
        found = backend.operators(runs=PROFILED_RUNS, trace=trace)
    except Exception as error:  # noqa: BLE001 - likewise, and the cell's figures stand
        return {"reason": classify(error)[1]}
    longest = sorted(found, key=lambda operator: -operator.total_ms)
    return {"trace": str(trace), "runs": PROFILED_RUNS, "operators": [vars(operator) for operator in longest]}


def _by_part(stored: Any, parts: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {part: {} for part in parts}
    for key in stored.files:
        part, _, name = key.partition("/")
        if part in found:
            found[part][name] = stored[key]
    return found


if __name__ == "__main__":
    serve(measure)
