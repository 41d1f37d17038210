"""Recording of a run's cells: events for the log, and the run's summary. Thread-safe."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from accel_platform.analysis.stats.medians import median_ns
from accel_platform.backends.detect import Inventory
from accel_platform.bench.measure import authenticity
from accel_platform.bench.measure.failures import FailureReason
from accel_platform.bench.plan.plan import SEGMENT_PREFIX, Cell, cell_key, host_fingerprints, previous_medians
from accel_platform.bench.plan.run_options import Effort, RunOptions
from accel_platform.bench.prepare.worker import reference_of
from accel_platform.bench.run import event_builders
from accel_platform.bench.run.event_buffer import EventBuffer
from accel_platform.bench.run.fallbacks import FallbackName
from accel_platform.bench.run.worker_pool import FailedMeasurement, MeasuredCell
from accel_platform.events import EventLog
from accel_platform.events.types import DeviceObserved, Payload, ResultRecorded, VerificationRecorded
from accel_platform.hardware.cpu import usable_cores
from accel_platform.settings import Settings
from accel_platform.table_io.values import count_of, rounded

SOURCE = "accel bench"
Progress = Callable[[str], None]


@dataclass(frozen=True)
class RunContext:
    """Installation and host that a run measures for, and its options."""

    settings: Settings
    log: EventLog
    inventory: Inventory
    effort: Effort
    options: RunOptions = field(default_factory=RunOptions)
    report: Progress = lambda _: None
    """Called with a line on each cell, and on each step that takes long."""
    threads: int = field(default_factory=usable_cores)
    labels: Mapping[str, str] = field(default_factory=dict)
    """The run's labels; recorded."""
    resumes: str | None = None
    """Id of the interrupted run whose remaining cells are measured; recorded."""
    requested_config: Mapping[str, Any] | None = None
    """The configuration that the cells come from; recorded."""


@dataclass
class RunSummary:
    """The outcome of a run; `unavailable` maps requested hardware that is not here to the reason."""

    run_id: str | None = None
    """None where nothing could be measured, so no run was started."""
    ok: int = 0
    failed: int = 0
    skipped: int = 0
    duration_s: float = 0.0
    unavailable: dict[str, str] = field(default_factory=dict)
    results: list[ResultRecorded] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)
    """Reports written of it."""
    verifications: list[VerificationRecorded] = field(default_factory=list)
    operators: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Profile by cell label: `operators`, longest first, number of `runs`, and `trace`; or the `reason` for none."""


@dataclass(frozen=True)
class AppliedFallback:
    """The fallback under which a cell is tried, and the failure it is for."""

    name: FallbackName
    cell: Cell
    cause: FailureReason


@dataclass(frozen=True)
class CellFailure:
    """A failed cell with its events, which are recorded once no fallback is left."""

    cell: Cell
    cause: FailureReason
    payloads: tuple[ResultRecorded | VerificationRecorded, ...]


class Recorder:
    """The events and summary of one run. Events between two calls of `flush` share a segment."""

    def __init__(self, context: RunContext, run_id: str, summary: RunSummary) -> None:
        self._context, self._run_id, self._summary = context, run_id, summary
        log, host_id = context.log, context.inventory.host_id
        self._buffer = EventBuffer(log, prefix=SEGMENT_PREFIX, source=SOURCE, host_id=host_id, run_id=run_id)
        self._earlier = previous_medians(log, context.labels.get("commit"))
        self._fingerprints = host_fingerprints(context.inventory)
        self._lock = threading.RLock()
        self.finished: set[Cell] = set()
        """Cells that were recorded, well or badly."""

    def record(self, *payloads: Payload) -> None:
        self._buffer.record(*payloads)

    def observe_hardware(self) -> None:
        self._buffer.add(self._context.inventory.events(run_id=self._run_id))

    def flush(self) -> None:
        self._buffer.flush()

    def record_outcome(
        self, outcome: MeasuredCell | FailedMeasurement, fallback: AppliedFallback | None = None
    ) -> CellFailure | None:
        """Record a successful cell; return a failed one."""
        cell, device = outcome.cell, self.device(outcome.cell)
        with self._lock:
            if isinstance(outcome, FailedMeasurement):
                return CellFailure(cell, outcome.cause, (self._no_result(cell, outcome.cause),))
            answer = outcome.answer
            payloads: list[ResultRecorded | VerificationRecorded] = []
            cause = event_builders.rejection_reason(answer)
            if self._context.options.work != "verify":
                result = event_builders.measured_result(
                    cell,
                    device,
                    answer,
                    outcome.loaded,
                    threads=self._context.threads,
                    sampling=self._context.effort.sampling,
                    earlier_ns=self._earlier.get(cell_key(cell, self._fingerprints[cell.hardware]), ()),
                )
                if result.status == "ok" and (cause := self._find_duplicate(result, reference_of(cell.model))):
                    result = _as_failed(result, cause)
                if fallback is not None:
                    of = {
                        "cell": fallback.cell.label,
                        "failure_class": fallback.cause.failure_class,
                        "reason": fallback.cause.reason,
                    }
                    environment = {**result.environment, "remedied": of}
                    result = result.model_copy(update={"remedy": fallback.name, "environment": environment})
                payloads.append(result)
            if answer["verdict"] is not None:
                verdict = {**answer["verdict"], **({"passed": False, "reason": cause.reason} if cause else {})}
                payloads.append(
                    event_builders.verification_event(cell, device, verdict, reference=reference_of(cell.model))
                )
            if cause is not None:
                return CellFailure(cell, cause, tuple(payloads))
            self._store(cell, payloads)
            suffix = f", by {fallback.name.replace('_', ' ')}" if fallback else ""
            self._context.report(f"{cell.label}: {_progress_line(payloads[0])}{suffix}")
            self._summary.ok += 1
            return None

    def record_failure(
        self, failure: CellFailure, tried: Sequence[FallbackName] = (), instead: Cell | None = None
    ) -> None:
        """Record a cell that stays failed after its fallbacks; `instead` is the cell that one of them measured in its
        place."""
        reason = failure.cause.reason + (f"; measured instead: {instead.label}" if instead is not None else "")
        payloads = []
        for payload in failure.payloads:
            changes: dict[str, Any] = {"reason": reason}
            if tried and isinstance(payload, ResultRecorded):
                changes["environment"] = {**payload.environment, "remedies_tried": list(dict.fromkeys(tried))}
            payloads.append(payload.model_copy(update=changes))
        with self._lock:
            self._store(failure.cell, payloads)
            self._context.report(f"{failure.cell.label}: {failure.cause.status}, {reason}")
            self._summary.failed += 1

    def device(self, cell: Cell) -> DeviceObserved:
        device = self._context.inventory.device(cell.hardware)
        assert device is not None, "measure_cells leaves out cells without a device"
        return device

    def _store(self, cell: Cell, payloads: Any) -> None:
        self.record(*payloads)
        self.finished.add(cell)
        self._summary.results += [payload for payload in payloads if isinstance(payload, ResultRecorded)]
        self._summary.verifications += [payload for payload in payloads if isinstance(payload, VerificationRecorded)]

    def _no_result(self, cell: Cell, cause: FailureReason) -> ResultRecorded | VerificationRecorded:
        device = self.device(cell)
        if self._context.options.work == "verify":
            return event_builders.failed_verification(cell, device, cause.reason, reference=reference_of(cell.model))
        return event_builders.failed_result(cell, device, cause, threads=self._context.threads)

    def _find_duplicate(self, result: ResultRecorded, reference: str) -> FailureReason | None:
        """Return a failure where another hardware's result of this run has the same samples. That result is retracted
        too."""
        for number, other in enumerate(self._summary.results):
            if other.status != "ok" or other.hardware == result.hardware or _shape_key(other) != _shape_key(result):
                continue
            if evidence := authenticity.duplicate_reason(result.samples_ns, other.samples_ns):
                cause = FailureReason("failed", "fake", f"as on {result.hardware}: {evidence}")
                self._retract(number, cause, reference)
                return FailureReason("failed", "fake", f"as on {other.hardware}: {evidence}")
        return None

    def _retract(self, number: int, cause: FailureReason, reference: str) -> None:
        """Mark a recorded result as failed; a failed verification retracts it in the log."""
        other = self._summary.results[number]
        self._summary.results[number] = _as_failed(other, cause)
        self._summary.ok -= 1
        self._summary.failed += 1
        self.record(event_builders.retraction(other, cause.reason, reference=reference))
        self._context.report(f"{other.model_id} · {other.hardware}: {cause.status}, {cause.reason}")


def _as_failed(result: ResultRecorded, cause: FailureReason) -> ResultRecorded:
    return result.model_copy(
        update={"status": cause.status, "failure_class": cause.failure_class, "reason": cause.reason}
    )


def _shape_key(result: ResultRecorded) -> tuple[Any, ...]:
    return (result.model_id, result.mode, result.precision, result.batch_size, result.sequence_length)


def _progress_line(payload: ResultRecorded | VerificationRecorded) -> str:
    if isinstance(payload, VerificationRecorded):
        return f"verified, differs by {payload.relative_error:.2g}"
    median_ms = median_ns(payload.samples_ns) / 1e6
    doubt = f", noisy: {payload.noisy_reason}" if payload.noisy else ""
    return f"{rounded(median_ms)} ms, {count_of(len(payload.samples_ns), 'sample')}{doubt}"
