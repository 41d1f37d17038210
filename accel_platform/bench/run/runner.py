"""Benchmark runner: prepares models, measures each group of cells in a worker process, and tries fallbacks.

It sleeps while a worker runs. Every finished worker's results are in the log before the next one starts, so a stopped
or killed run keeps what it has measured.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal

from uuid_utils.compat import uuid7

from accel_platform.bench.measure.contention import Contention, disturbance_by_others
from accel_platform.bench.measure.failures import FailureReason
from accel_platform.bench.plan import device_scheduling, resume, run_locks
from accel_platform.bench.plan.plan import Cell, artifact_kind, group_by_process
from accel_platform.bench.plan.run_locks import hold_run_lock, lock_devices
from accel_platform.bench.plan.support import head_for, unsupported_reason
from accel_platform.bench.prepare.artifacts import Artifacts, Exporter
from accel_platform.bench.prepare.description import read_description
from accel_platform.bench.prepare.preparation import PreparationFailures, prepare_models
from accel_platform.bench.run.fallbacks import Fallback, FallbackName, fallbacks_for
from accel_platform.bench.run.recorder import AppliedFallback, CellFailure, Recorder, RunContext, RunSummary
from accel_platform.bench.run.worker_pool import FailedMeasurement, MeasuredCell, OperatorProfile, WorkerPool
from accel_platform.events.types import RunFinished, RunStarted
from accel_platform.hardware.energy import energy_counter


def measure_cells(
    cells: Sequence[Cell], context: RunContext, on_stored: Callable[[Collection[Cell]], None] = lambda _: None
) -> RunSummary:
    """Measure the cells and append their events, one segment per worker; failures end a cell, never the run.

    Cells whose hardware is not here are left out and named in the summary. Without a cell to measure no run is started.
    While another benchmark of this installation uses one of the devices, this one waits.

    `on_stored` is called with all finished cells each time a worker's results are in the log, before the next worker
    starts. On KeyboardInterrupt workers are killed, finished cells are kept, and the run is recorded as cancelled. The
    exception is raised again.
    """
    inventory, summary = context.inventory, RunSummary()
    possible = []
    for cell in cells:
        device = inventory.device(cell.hardware)
        if device is not None and device.available:
            possible.append(cell)
        else:
            summary.skipped += 1
            summary.unavailable[cell.hardware] = (device.reason if device else None) or "not known here"
    if possible:
        run = _BenchmarkRun(possible, context, summary, on_stored)
        devices = {
            device_id
            for cell in possible
            if (device_id := device_scheduling.physical_device_id(cell.hardware, inventory)) is not None
        }
        with lock_devices(context.settings, devices, context.report), hold_run_lock(context.settings, run.run_id):
            run.run()
    return summary


@dataclass
class _Recovery:
    """A failed cell with the fallbacks still to try, those tried, and the one that helped."""

    failure: CellFailure
    remaining: list[Fallback]
    tried: list[FallbackName] = field(default_factory=list)
    helped: Fallback | None = None


class _BenchmarkRun:
    """One run: its cells, its options, and the failures of its preparation."""

    def __init__(
        self,
        cells: Sequence[Cell],
        context: RunContext,
        summary: RunSummary,
        on_stored: Callable[[Collection[Cell]], None],
    ) -> None:
        self.cells, self.context, self.summary, self.on_stored = cells, context, summary, on_stored
        self.settings, self.effort, self.options = context.settings, context.effort, context.options
        self.report, self.inventory, self.threads = context.report, context.inventory, context.threads
        self.run_id = summary.run_id = str(uuid7())
        self.workers = WorkerPool(self.threads, self.effort.timeout_s)
        self.recorder = Recorder(context, self.run_id, summary)
        self.planned_cells = set(cells)
        self.preparation_failures: PreparationFailures = {}
        self.stayed_disturbed = False
        """True if other processes disturbed the newest cell to its end. The next worker then tries each cell once: on a
        machine that stays busy, repetitions only make a run longer."""

    def run(self) -> None:
        started = time.monotonic()
        status: Literal["succeeded", "failed", "cancelled"] = "failed"
        reason = None
        plan = resume.describe_plan(
            self.cells,
            self.effort,
            self.options,
            threads=self.threads,
            resumes=self.context.resumes,
            requested_config=self.context.requested_config,
        )
        software, labels = self.inventory.host.software, dict(self.context.labels)
        self.recorder.record(RunStarted(kind="benchmark", plan=plan, software=software, labels=labels))
        self.recorder.observe_hardware()
        try:
            cells = self.reject_unsupported()
            self.recorder.flush()
            self.preparation_failures = self.prepare(cells, "dynamo")
            self.record_models(cells)
            self.recorder.flush()
            groups = group_by_process(cells) if self.options.pooled else [(cell,) for cell in cells]
            lanes = device_scheduling.assign_lanes(groups, self.inventory) if self.options.parallel else [groups]
            split_lanes = [
                part
                for lane in lanes
                for part in device_scheduling.split_lane(lane, self.inventory, self.options.at_once)
            ]
            device_scheduling.run_lanes(split_lanes, self.measure, self.workers.stop)
            status = "succeeded" if self.summary.ok else "failed"
            reason = None if self.summary.ok else "no cell could be measured"
        except BaseException as error:
            # Ctrl-C and a scheduler's interrupt are not Exceptions.
            status = "failed" if isinstance(error, Exception) else "cancelled"
            reason = f"{type(error).__name__}: {error}".rstrip(": ")
            raise
        finally:
            self.summary.skipped += len(set(self.cells) - self.recorder.finished)
            self.summary.duration_s = time.monotonic() - started
            self.recorder.record(
                RunFinished(
                    status=status,
                    reason=reason,
                    cells_ok=self.summary.ok,
                    cells_failed=self.summary.failed,
                    cells_skipped=self.summary.skipped,
                    duration_s=self.summary.duration_s,
                )
            )
            self.recorder.flush()

    def reject_unsupported(self) -> list[Cell]:
        """Record unsupported cells as failed; return the others."""
        possible = []
        for cell in self.cells:
            cause = unsupported_reason(cell)
            failure = self.recorder.record_outcome(FailedMeasurement(cell, cause)) if cause else None
            if failure is None:
                possible.append(cell)
            else:
                self.recorder.record_failure(failure)
        return possible

    def record_models(self, cells: Sequence[Cell]) -> None:
        """Record each model, with its cost where that could be traced."""
        # A model with several modes is described by the first.
        modes = {cell.model: cell.mode for cell in reversed(cells)}
        for model in dict.fromkeys(cell.model for cell in cells):
            described, unknown = read_description(model, Artifacts.of(model, self.settings, mode=modes[model]))
            self.recorder.record(described)
            if unknown is not None:
                self.report(f"{model.model_id}: its cost is unknown, {unknown}")

    def prepare(self, cells: Sequence[Cell], exporter: Exporter) -> PreparationFailures:
        self.workers.check()
        preparation_failures = prepare_models(
            cells,
            self.settings,
            threads=self.threads,
            timeout_s=self.effort.prepare_timeout_s,
            report=self.report,
            exporter=exporter,
            reference=self.options.work != "measure",
            running=self.workers.preparing,
        )
        self.workers.check()
        return preparation_failures

    def measure(self, group: Sequence[Cell]) -> None:
        """Measure a group, then try fallbacks for its failed cells."""
        failures = self.attempt(group, self.preparation_failures)
        self.recorder.flush()
        for recovery in self.apply_fallbacks(failures):
            if recovery.helped is None or recovery.helped.changes(recovery.failure.cell):
                self.recorder.record_failure(
                    recovery.failure, recovery.tried, recovery.helped.cell if recovery.helped else None
                )
        self.recorder.flush()
        self.on_stored(self.recorder.finished)

    def apply_fallbacks(self, failures: Sequence[CellFailure]) -> list[_Recovery]:
        """Try fallbacks for failed cells, one kind at a time, until one helps or none is left."""
        recoveries = [
            _Recovery(f, list(fallbacks_for(f.cell, f.cause, self.planned_cells)) if self.options.fix else [])
            for f in failures
        ]
        while unresolved := [recovery for recovery in recoveries if recovery.remaining]:
            name = unresolved[0].remaining[0].name
            now = [
                (recovery, recovery.remaining.pop(0)) for recovery in unresolved if recovery.remaining[0].name == name
            ]
            self.planned_cells |= {fallback.cell for _, fallback in now}
            # Cells that shared a worker share the next one.
            for group in group_by_process(dict.fromkeys(fallback.cell for _, fallback in now)):
                mine = [(recovery, fallback) for recovery, fallback in now if fallback.cell in group]
                exporter = mine[0][1].exporter
                self.report(
                    f"{', '.join(recovery.failure.cell.label for recovery, _ in mine)}: trying {name.replace('_', ' ')}"
                )
                applied = {
                    r.cell: AppliedFallback(name, recovery.failure.cell, recovery.failure.cause) for recovery, r in mine
                }
                failed = {f.cell for f in self.attempt(group, self.prepare(group, exporter), exporter, applied)}
                self.recorder.flush()
                for recovery, fallback in mine:
                    recovery.tried.append(name)
                    if fallback.cell not in failed:
                        recovery.helped, recovery.remaining = fallback, []
        return recoveries

    def attempt(
        self,
        group: Sequence[Cell],
        preparation_failures: PreparationFailures,
        exporter: Exporter = "dynamo",
        applied: Mapping[Cell, AppliedFallback] | None = None,
    ) -> list[CellFailure]:
        """Measure a group in one worker, or several where one dies; record what succeeded and return what failed."""
        first, kind = group[0], artifact_kind(group[0])
        artifacts = Artifacts.of(first.model, self.settings, exporter, first.mode)
        reference = self.options.work != "measure"
        failures: list[CellFailure | None] = []
        ready: dict[Cell, Path] = {}
        for cell in group:
            shape = (cell.batch_size, cell.sequence_length)
            # A preparing worker that died may have made all that this cell needs.
            if not artifacts.missing([kind], [shape], reference=reference):
                ready[cell] = artifacts.data(shape) if reference else artifacts.inputs(shape)
                continue
            lacking = (preparation_failures.get((cell.model, cell.mode, what)) for what in (kind, shape))
            cause = next(filter(None, lacking), None)
            failures.append(
                self.recorder.record_outcome(
                    FailedMeasurement(cell, cause or FailureReason("failed", "error", "it was not prepared"))
                )
            )
        job = {
            "hardware": first.hardware,
            "mode": first.mode,
            "head": head_for(first.model, first.mode),
            "processes": first.processes,
            "precision": first.precision,
            "threads": self.threads,
            "energy": energy_counter(self.recorder.device(first), first.processes),
            "artifact": str(artifacts.artifact(kind, first.sequence_length)),
            "sampling": asdict(
                replace(self.effort.sampling, max_attempts=1) if self.stayed_disturbed else self.effort.sampling
            ),
            "work": self.options.work,
            "turn": self.turn_file(first),
        }
        for outcome in self.workers.measure(ready, job, self.trace_path if self.options.operators else None):
            if isinstance(outcome, OperatorProfile):
                self.summary.operators[outcome.cell.label] = outcome.message
            else:
                # Nothing is timed where outputs are only verified.
                if isinstance(outcome, MeasuredCell) and "contention" in outcome.answer:
                    seen = Contention(**outcome.answer["contention"])
                    self.stayed_disturbed = disturbance_by_others(seen) is not None
                failures.append(self.recorder.record_outcome(outcome, (applied or {}).get(outcome.cell)))
        return [failure for failure in failures if failure is not None]

    def turn_file(self, cell: Cell) -> str | None:
        """Return the file that the device's workers lock in turns; None where it has one worker at a time."""
        device_id = device_scheduling.physical_device_id(cell.hardware, self.inventory)
        if self.options.at_once == 1 or device_id is None:
            return None
        return str(run_locks.turn_path(self.settings, device_id))

    def trace_path(self, cell: Cell) -> Path:
        """Return the path for the Chrome trace of a cell's operators."""
        name = re.sub(r"[^a-z0-9.]+", "-", cell.label.casefold()).strip("-")
        return self.settings.home.absolute() / "traces" / self.run_id / f"{name}.json"
