"""Jobs of measuring processes: loading a model, reading its data, reporting a failure."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from accel_platform.bench.measure.failures import classify
from accel_platform.bench.measure.observation import MeterTarget
from accel_platform.bench.measure.sampling import Sampling
from accel_platform.hardware.cpu import cores_to_measure_on
from accel_platform.subprocesses.json_child import Message

if TYPE_CHECKING:
    from accel_platform.backends.base import Backend, Eager


def load_backend(job: Message, send: Callable[[Message], None]) -> Backend | None:
    """Return the backend with the model after sending `loaded`; None after sending `not_loaded` with the reason."""
    from accel_platform.backends.base import Generating
    from accel_platform.backends.registry import make_backend

    try:
        start = perf_counter_ns()
        backend = make_backend(job["hardware"], threads=job["threads"], mode=job["mode"])
        imported = perf_counter_ns()
        if job["mode"] == "inference" or (job["mode"] == "generation" and isinstance(backend, Generating)):
            backend.load(Path(job["artifact"]), precision=job["precision"])
        else:
            _require_eager(backend, job["mode"]).load(
                Path(job["artifact"]), precision=job["precision"], head=job["head"]
            )
        loaded = perf_counter_ns()
    except Exception as error:  # noqa: BLE001 - whatever a runtime throws is the cells' failure
        send(failure_message("not_loaded", error))
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


def _require_eager(backend: Backend, mode: str) -> Eager:
    from accel_platform.backends.base import Eager, UnsupportedMode

    if not isinstance(backend, Eager):
        raise UnsupportedMode(f"The {backend.name} backend runs inference only, not {mode}.")
    return backend


def failure_message(kind: str, error: Exception) -> Message:
    """Return the message that reports this error."""
    failure_class, reason = classify(error)
    return {"kind": kind, "failure_class": failure_class, "reason": reason}


def meter_target_for(job: Message) -> MeterTarget:
    """Return what to observe during the job."""
    return MeterTarget(job["hardware"], job["energy"], Path(job["artifact"]))


def sampling_for(job: Message) -> Sampling:
    """Return the job's sampling; a single run where only outputs are verified."""
    if job["work"] == "verify":
        return Sampling(min_time_s=0.0, min_count=1, max_time_s=0.0, limit_s=0.0, warmup_max_s=0.0)
    return Sampling(**job["sampling"])


def leave_cores_to_measure_on(job: Message) -> None:
    """Keep this process, and threads that it starts, off the cores of the worker whose turn it is."""
    if job.get("turn") is not None and (measuring := cores_to_measure_on()):
        os.sched_setaffinity(0, os.sched_getaffinity(0) - measuring)
        job["measuring_cores"] = sorted(measuring)


@contextmanager
def turn(job: Message) -> Iterator[None]:
    """Have the device alone among the workers of this run until the block is left, where they take turns.

    Meanwhile this thread, which issues the device's work, has the cores that the other workers leave alone.
    """
    if job.get("turn") is None:
        yield
        return
    with Path(job["turn"]).open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with _this_thread_on(job.get("measuring_cores")):
            yield


@contextmanager
def _this_thread_on(cores: Collection[int] | None) -> Iterator[None]:
    if not cores:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def read_data(path: str) -> dict[str, dict[str, Any]]:
    """Read all arrays of a prepared .npz, by part and name."""
    import numpy as np

    with np.load(path) as stored:
        return group_by_part(stored, tuple({key.partition("/")[0] for key in stored.files}))


def group_by_part(stored: Any, parts: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """Return the arrays of these parts of an .npz, by part and name."""
    found: dict[str, dict[str, Any]] = {part: {} for part in parts}
    for key in stored.files:
        part, _, name = key.partition("/")
        if part in found:
            found[part][name] = stored[key]
    return found
