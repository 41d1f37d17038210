"""Preparation of models by worker processes, several at once, before anything is measured."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from typing import Any

import psutil

from accel_platform.backends.registry import Artifact
from accel_platform.bench.measure.failures import FailureReason, classify_death
from accel_platform.bench.plan.plan import Cell, artifact_kind
from accel_platform.bench.plan.support import head_for
from accel_platform.bench.prepare import worker
from accel_platform.bench.prepare.artifacts import Artifacts, Exporter, Shape
from accel_platform.bench.prepare.description import is_described
from accel_platform.events.types import Mode
from accel_platform.settings import Settings
from accel_platform.subprocesses.json_child import Child, ChildCrashed, ChildTimeout, child_environment
from accel_platform.workloads.model_catalog import ModelSpec

_CHILD_MEMORY_BYTES = 4 * 2**30
"""Bytes of free memory needed per worker: a base model, its graph and its reference."""


PreparationFailures = dict[tuple[ModelSpec, Mode, Artifact | Shape], FailureReason]
"""Failures by model, mode and artifact, or shape for inputs and reference outputs."""


def prepare_models(
    cells: Collection[Cell],
    settings: Settings,
    *,
    threads: int,
    timeout_s: float,
    report: Callable[[str], None],
    exporter: Exporter = "dynamo",
    reference: bool = True,
    running: list[Child] | None = None,
) -> PreparationFailures:
    """Create the missing artifacts of the cells, and return what could not be made.

    As many models as cores and free memory allow are prepared at once. `running` lists the running processes, so that
    the caller can kill them.
    """
    pairs = dict.fromkeys((cell.model, cell.mode) for cell in cells)
    found = (_make_job(*pair, cells, Artifacts.of(pair[0], settings, exporter, pair[1]), reference) for pair in pairs)
    jobs = [job for job in found if job is not None]
    failures: PreparationFailures = {}
    if not jobs:
        return failures
    at_once = min(len(jobs), threads, max(1, int(psutil.virtual_memory().available // _CHILD_MEMORY_BYTES)))

    children: list[Child] = []

    def prepare_in_pool(model: ModelSpec, job: dict[str, Any]) -> tuple[str, PreparationFailures]:
        registers = [children] if running is None else [children, running]
        return _prepare_one(model, {**job, "threads": max(1, threads // at_once)}, timeout_s, registers)

    pool = ThreadPoolExecutor(at_once)
    try:
        for future in as_completed([pool.submit(prepare_in_pool, model, job) for model, job in jobs]):
            line, unprepared = future.result()
            failures |= unprepared
            report(line)
    finally:
        # After Ctrl-C, cancel what has not begun; the thread that waits for a worker ends when that is killed.
        pool.shutdown(wait=False, cancel_futures=True)
        for child in children:
            child.kill()
        pool.shutdown()
    return failures


def _make_job(
    model: ModelSpec, mode: Mode, cells: Collection[Cell], artifacts: Artifacts, reference: bool
) -> tuple[ModelSpec, dict[str, Any]] | None:
    own_cells = [cell for cell in cells if (cell.model, cell.mode) == (model, mode)]
    kinds = sorted({artifact_kind(cell) for cell in own_cells})
    shapes = list(dict.fromkeys((cell.batch_size, cell.sequence_length) for cell in own_cells))
    if is_described(model, artifacts) and not artifacts.missing(kinds, shapes, reference=reference):
        return None
    return model, {
        "model": asdict(model),
        "mode": mode,
        "head": head_for(model, mode),
        "folder": str(artifacts.folder),
        "exporter": artifacts.exporter,
        "kinds": kinds,
        "shapes": shapes,
        "reference": reference,
    }


def _prepare_one(
    model: ModelSpec, job: dict[str, Any], timeout_s: float, registers: list[list[Child]]
) -> tuple[str, PreparationFailures]:
    """Run one worker; return a progress line and what it could not make."""
    started = time.monotonic()
    failures: PreparationFailures = {}
    random_parts: Sequence[str] = ()
    kinds: Sequence[Artifact] = job["kinds"]
    mode: Mode = job["mode"]
    with Child(worker.__name__, job, env=child_environment(job["threads"])) as child:
        for register in registers:
            register.append(child)
        try:
            for answer in child.messages(timeout_s):
                if answer["kind"] == "failed":
                    reason = f"it cannot be prepared: {answer['reason']}"
                    what = answer["artifact"] if "artifact" in answer else tuple(answer["shape"])
                    failures[model, mode, what] = FailureReason("failed", answer["failure_class"], reason)
                elif answer["kind"] == "prepared":
                    random_parts = answer["drawn"]
        except ChildTimeout as error:
            failures |= {
                (model, mode, kind): FailureReason("timeout", "timeout", f"preparing it: {error}") for kind in kinds
            }
        except ChildCrashed as error:
            cause = FailureReason("failed", classify_death(str(error)), f"preparing it: {error}")
            failures |= {(model, mode, kind): cause for kind in kinds}
        finally:
            # Forget the worker, because its process id may be reused.
            for register in registers:
                register.remove(child)
    failed_items = (what if isinstance(what, str) else f"batch {what[0]}" for _, _, what in failures)
    word = "prepared" if not failures else f"not prepared: {', '.join(failed_items)}"
    # A checkpoint of one task may lack another task's weights, such as BERT's pooler.
    random = f"; its weights hold no {', '.join(random_parts)}: random ones" if random_parts else ""
    named = model.model_id if mode == "inference" else f"{model.model_id} for {mode}"
    return f"{named}: {word}, {time.monotonic() - started:.0f} s{random}", failures
