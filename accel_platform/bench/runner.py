"""The measuring parent: prepares models, gives each (model, hardware, precision) a fresh child, records what comes.

It sleeps while a child works. Every finished child is in the log before the next one starts, so a run that is stopped
or killed keeps what it has measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

import psutil
from uuid_utils.compat import uuid7

from accel_platform.backends.registry import runtime_for
from accel_platform.bench import prepare, records
from accel_platform.bench.artefacts import Artefacts
from accel_platform.bench.failures import classify_death
from accel_platform.bench.plan import SEGMENT_PREFIX, Cell, groups
from accel_platform.bench.process import Child, ChildCrashed, ChildTimeout, Message
from accel_platform.bench.profiles import PROFILES, Profile
from accel_platform.bench.sampling import median_ns
from accel_platform.events import Event, EventLog
from accel_platform.events.types import Payload, RunFinished, RunStarted
from accel_platform.hardware.cpu import usable_cores
from accel_platform.hardware.detect import Inventory, detect
from accel_platform.settings import Settings
from accel_platform.workloads.families import ModelSpec

SOURCE = "accel bench"
_PREPARE_MEMORY = 4 * 2**30
"""Bytes of free memory wanted for each preparing child: a base model, its graph and its reference."""

Tell = Callable[[str], None]


@dataclass
class RunSummary:
    """What became of a run. `unavailable` names hardware that was asked for and is not here, with the reason."""

    run_id: str | None = None
    ok: int = 0
    failed: int = 0
    skipped: int = 0
    duration_s: float = 0.0
    unavailable: dict[str, str] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)


def run_benchmark(
    cells: Sequence[Cell],
    settings: Settings,
    log: EventLog,
    *,
    profile: Profile = PROFILES["standard"],
    on_progress: Tell | None = None,
    inventory: Inventory | None = None,
) -> RunSummary:
    """Measure the cells and append their events, one segment per child; failures end a cell, never the run.

    Cells whose hardware is not here are left out and named in the summary. Without a cell to measure no run is recorded.
    On KeyboardInterrupt children die, finished cells are kept, the run is recorded as cancelled, and it is raised again.
    """
    inventory = inventory or detect()
    summary = RunSummary()
    possible = []
    for cell in cells:
        device = inventory.device(cell.hardware)
        if device is not None and device.available:
            possible.append(cell)
        else:
            summary.skipped += 1
            summary.unavailable[cell.hardware] = (
                device.reason if device else None
            ) or "not known here"
    if possible:
        _Run(
            possible,
            settings,
            log,
            profile,
            on_progress or (lambda _: None),
            inventory,
            summary,
        ).run()
    return summary


class _Run:
    """One run's state: what is being measured, where it is recorded, and what came of it so far."""

    def __init__(
        self,
        cells: Sequence[Cell],
        settings: Settings,
        log: EventLog,
        profile: Profile,
        tell: Tell,
        inventory: Inventory,
        summary: RunSummary,
    ) -> None:
        self.cells, self.settings, self.log, self.profile = (
            cells,
            settings,
            log,
            profile,
        )
        self.tell, self.inventory, self.summary = tell, inventory, summary
        self.threads = usable_cores()
        self.run_id = summary.run_id = str(uuid7())
        self.models = tuple(dict.fromkeys(cell.model for cell in cells))
        self.pending: list[Event] = []
        self.segments = 0
        self.unprepared: dict[tuple[ModelSpec, str], tuple[str, str, str]] = {}
        """(model, artefact) to status, failure class and reason."""

    def run(self) -> None:
        started = time.monotonic()
        status, reason = "failed", None
        plan = {
            "cells": [cell.label for cell in self.cells],
            "profile": asdict(self.profile),
            "threads": self.threads,
        }
        self.record(
            RunStarted(
                kind="benchmark", plan=plan, software=self.inventory.host.software
            )
        )
        self.pending += self.inventory.events(run_id=self.run_id)
        try:
            for model in self.models:
                self.record(records.described(model))
            self.flush()
            self.prepare()
            for group in groups(self.cells):
                self.measure(group)
                self.flush()
            status = "succeeded" if self.summary.ok else "failed"
            reason = None if self.summary.ok else "no cell could be measured"
        except BaseException as error:
            status = "cancelled" if isinstance(error, KeyboardInterrupt) else "failed"
            reason = f"{type(error).__name__}: {error}".rstrip(": ")
            raise
        finally:
            done = self.summary.ok + self.summary.failed
            self.summary.skipped += len(self.cells) - done
            self.summary.duration_s = time.monotonic() - started
            self.record(
                RunFinished.model_validate(
                    {
                        "status": status,
                        "reason": reason,
                        "cells_ok": self.summary.ok,
                        "cells_failed": self.summary.failed,
                        "cells_skipped": self.summary.skipped,
                        "duration_s": self.summary.duration_s,
                    }
                )
            )
            self.flush()

    def record(self, payload: Payload) -> None:
        event = Event.of(
            payload,
            source=SOURCE,
            host_id=self.inventory.host_id,
            run_id=self.run_id,
            occurred_at=datetime.now(UTC),
        )
        self.pending.append(event)

    def flush(self) -> None:
        if self.pending:
            self.log.append(
                self.pending, key=f"{SEGMENT_PREFIX}{self.run_id}-{self.segments:04d}"
            )
            self.segments += 1
            self.pending = []

    # Preparing

    def prepare(self) -> None:
        """Make what is missing, several models at once but all before anything is measured."""
        jobs = [job for job in map(self.prepare_job, self.models) if job is not None]
        if not jobs:
            return
        affordable = max(1, int(psutil.virtual_memory().available // _PREPARE_MEMORY))
        at_once = min(len(jobs), usable_cores(), affordable)
        children: list[Child] = []
        pool = ThreadPoolExecutor(at_once)
        try:
            waiting = [
                pool.submit(
                    self.prepare_one, job, max(1, self.threads // at_once), children
                )
                for job in jobs
            ]
            for future in as_completed(waiting):
                self.tell(future.result())
        finally:
            # After Ctrl-C: what has not begun never does, and a dead child ends the thread that waits for it.
            pool.shutdown(wait=False, cancel_futures=True)
            for child in children:
                child.kill()
            pool.shutdown()

    def prepare_job(self, model: ModelSpec) -> tuple[ModelSpec, dict[str, Any]] | None:
        artefacts = Artefacts.of(model, self.settings)
        mine = [cell for cell in self.cells if cell.model == model]
        kinds = sorted({runtime_for(cell.hardware).reads for cell in mine})
        shapes = list(
            dict.fromkeys((cell.batch_size, cell.sequence_length) for cell in mine)
        )
        if not artefacts.missing(kinds, shapes):
            return None
        return model, {
            "model": asdict(model),
            "folder": str(artefacts.folder),
            "kinds": kinds,
            "shapes": shapes,
        }

    def prepare_one(
        self, job: tuple[ModelSpec, dict[str, Any]], threads: int, children: list[Child]
    ) -> str:
        model, message = job
        started = time.monotonic()
        child = Child(
            prepare.__name__, {**message, "threads": threads}, env=_environment(threads)
        )
        children.append(child)
        finished = False
        try:
            for answer in child.messages(self.profile.prepare_timeout_s):
                finished |= answer["kind"] == "prepared"
                if answer["kind"] == "failed":
                    reason = f"the model cannot be prepared for it: {answer['reason']}"
                    self.unprepared[model, answer["artefact"]] = (
                        "failed",
                        answer["failure_class"],
                        reason,
                    )
        except (ChildTimeout, ChildCrashed) as error:
            status = "timeout" if isinstance(error, ChildTimeout) else "failed"
            why = (
                status,
                "timeout" if status == "timeout" else classify_death(str(error)),
                f"preparing: {error}",
            )
            self.unprepared.update(
                {(model, artefact): why for artefact in message["kinds"]}
            )
        word = "prepared" if finished else "could not be prepared"
        return f"{model.model_id}: {word} in {time.monotonic() - started:.0f} s"

    # Measuring

    def measure(self, group: tuple[Cell, ...]) -> None:
        """Give the group a child, and another one for what is left whenever one dies."""
        left = list(group)
        artefact = runtime_for(group[0].hardware).reads
        unprepared = self.unprepared.get((group[0].model, artefact))
        if unprepared is not None:
            self.fail(left, *unprepared)
            return
        while left:
            self.measure_in_child(left)

    def measure_in_child(self, left: list[Cell]) -> None:
        """Measure the cells of `left`, taking each out as it ends, well or badly."""
        first = left[0]
        artefacts = Artefacts.of(first.model, self.settings)
        job = {
            "hardware": first.hardware,
            "precision": first.precision,
            "threads": self.threads,
            "artefact": str(
                artefacts.artefact(
                    runtime_for(first.hardware).reads, first.sequence_length
                )
            ),
            "cells": [
                str(artefacts.data((cell.batch_size, cell.sequence_length)))
                for cell in left
            ],
            "sampling": asdict(self.profile.sampling),
        }
        child = Child(
            "accel_platform.bench.worker", job, env=_environment(self.threads)
        )
        loaded: Message = {}
        try:
            for answer in child.messages(self.profile.timeout_s):
                if answer["kind"] == "loaded":
                    loaded = answer
                elif answer["kind"] == "not_loaded":
                    self.fail(left, "failed", answer["failure_class"], answer["reason"])
                elif answer["kind"] == "failed":
                    self.fail(
                        left[:1], "failed", answer["failure_class"], answer["reason"]
                    )
                    left.pop(0)
                else:
                    self.succeed(left.pop(0), answer, loaded)
        except (ChildTimeout, ChildCrashed) as error:
            # Before loading is done the fault is not one cell's: the others would meet it too.
            struck = left[:1] if loaded else list(left)
            del left[: len(struck)]
            if isinstance(error, ChildTimeout):
                self.fail(struck, "timeout", "timeout", str(error))
            else:
                self.fail(struck, "failed", classify_death(str(error)), str(error))
        else:
            left.clear()

    def succeed(self, cell: Cell, answer: Message, loaded: Message) -> None:
        device = self.inventory.device(cell.hardware)
        assert device is not None
        result, verification = records.measured(
            cell,
            device,
            answer,
            loaded,
            threads=self.threads,
            sampling=self.profile.sampling,
            reference=prepare.REFERENCE,
        )
        self.record(result)
        self.record(verification)
        if result.status != "ok":
            self.count_failure(cell, result.reason or "wrong output")
            return
        self.summary.ok += 1
        median_ms = median_ns(result.samples_ns) / 1e6
        doubt = f", noisy: {result.noisy_reason}" if result.noisy else ""
        self.tell(
            f"{cell.label}: {median_ms:.1f} ms, {len(result.samples_ns)} samples{doubt}"
        )

    def fail(
        self, cells: Sequence[Cell], status: str, failure_class: str, reason: str
    ) -> None:
        for cell in cells:
            device = self.inventory.device(cell.hardware)
            assert device is not None
            self.record(
                records.failed(
                    cell,
                    device,
                    threads=self.threads,
                    status=status,
                    failure_class=failure_class,
                    reason=reason,
                )
            )
            self.count_failure(cell, reason)

    def count_failure(self, cell: Cell, reason: str) -> None:
        self.summary.failed += 1
        self.summary.failures.append(f"{cell.label}: {reason}")
        self.tell(f"{cell.label}: failed, {reason}")


def _environment(threads: int) -> dict[str, str]:
    """Threads for libraries that read them as they load; nothing may ask the network or draw progress bars."""
    return {
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "OPENBLAS_NUM_THREADS": str(threads),
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "TRANSFORMERS_VERBOSITY": "error",
        "PYTHONWARNINGS": "ignore",
    }
