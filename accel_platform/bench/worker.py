"""The measuring child: one model on one backend in one precision and mode, its cells one after the other.

It imports the runtime it measures and little else, so that its load time and its peak memory are the runtime's own.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from accel_platform.bench.failures import classify
from accel_platform.bench.observe import observe
from accel_platform.bench.process import Message, serve
from accel_platform.bench.sampling import Sampling

if TYPE_CHECKING:
    from accel_platform.backends.base import Backend, Eager


def measure(job: Message, send: Callable[[Message], None]) -> None:
    """Load once, then measure each cell; a cell that fails says so and the next one follows."""
    if job["processes"] > 1:
        from accel_platform.bench import replicas

        replicas.lead(job, send)
        return
    backend = load(job, send)
    if backend is None:
        return
    for cell in job["cells"]:
        try:
            send({"kind": "measured", **_measure_cell(backend, cell, job)})
        except Exception as error:  # noqa: BLE001 - whatever a runtime throws is this cell's failure
            send(failure("failed", error))
    backend.close()


def load(job: Message, send: Callable[[Message], None]) -> Backend | None:
    """The backend with the model, having said `loaded`; or None, having said `not_loaded` and why."""
    from accel_platform.backends.registry import make_backend

    try:
        start = perf_counter_ns()
        backend = make_backend(job["hardware"], threads=job["threads"])
        imported = perf_counter_ns()
        if job["mode"] == "inference":
            backend.load(Path(job["artefact"]), precision=job["precision"])
        else:
            _eager(backend, job["mode"]).load(Path(job["artefact"]), precision=job["precision"], head=job["head"])
        loaded = perf_counter_ns()
    except Exception as error:  # noqa: BLE001 - whatever a runtime throws is the cells' failure
        send(failure("not_loaded", error))
        return None
    send(
        {
            "kind": "loaded",
            "import_ms": (imported - start) / 1e6,
            "load_ms": (loaded - imported) / 1e6,
            "versions": backend.versions(),
        }
    )
    return backend


def _eager(backend: Backend, mode: str) -> Eager:
    from accel_platform.backends.base import Eager, UnsupportedMode

    if not isinstance(backend, Eager):
        raise UnsupportedMode(f"The {backend.name} backend runs inference only, not {mode}.")
    return backend


def failure(kind: str, error: Exception) -> Message:
    """The message that says so."""
    failure_class, reason = classify(error)
    return {"kind": kind, "failure_class": failure_class, "reason": reason}


def _measure_cell(backend: Backend, cell: str, job: Message) -> dict[str, Any]:
    sampling = Sampling(**job["sampling"])
    if job["mode"] == "generation":
        from accel_platform.bench import generation

        return generation.measure(backend, read_data(cell), sampling, precision=job["precision"])
    if job["mode"] == "training":
        from accel_platform.bench import training

        return training.measure(backend, read_data(cell), sampling, precision=job["precision"])
    return _measure_inference(backend, Path(cell), sampling, job["precision"])


def _measure_inference(backend: Backend, data: Path, sampling: Sampling, precision: str) -> dict[str, Any]:
    import numpy as np

    from accel_platform.backends.base import Remote
    from accel_platform.bench.verify import verify

    with np.load(data) as stored:
        parts = _by_part(stored, ("input", "other"))
    remote = backend if isinstance(backend, Remote) else None
    clock = remote.clock_ns if remote else perf_counter_ns
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
    observed = observe(backend.run, sampling, clock, memory_peak_mib=remote.memory_peak_mib if remote else None)
    outputs = backend.outputs()
    with np.load(data) as stored:
        reference = _by_part(stored, ("reference",))["reference"]
    placed = backend.placement()
    verdict = verify(outputs, other, reference, precision=precision)
    return {
        **observed,
        "compile_ms": (compiled - start) / 1e6 if backend.compiles else None,
        "first_ms": (first - bound) / 1e6,
        "figures": {},
        "memory_device_peak_mib": backend.memory_device_peak_mib(),
        "notes": remote.notes() if remote else {},
        "placement": {**vars(placed), "accelerated_share": placed.accelerated_share} if placed else None,
        "verdict": vars(verdict),
    }


def read_data(path: str) -> dict[str, dict[str, Any]]:
    """All arrays of a prepared .npz by part and name."""
    import numpy as np

    with np.load(path) as stored:
        return _by_part(stored, tuple({key.partition("/")[0] for key in stored.files}))


def _by_part(stored: Any, parts: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {part: {} for part in parts}
    for key in stored.files:
        part, _, name = key.partition("/")
        if part in found:
            found[part][name] = stored[key]
    return found


if __name__ == "__main__":
    serve(measure)
