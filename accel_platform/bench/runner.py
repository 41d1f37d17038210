"""The measuring parent: gives each (model, hardware, precision) a fresh child and records what comes of it.

It sleeps while a child works. Every finished child is in the log before the next one starts, so a run that is stopped
or killed keeps what it has measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal, get_args

from uuid_utils.compat import uuid7

from accel_platform.backends.base import UnsupportedPrecision
from accel_platform.backends.registry import Artefact
from accel_platform.bench import prepare, records
from accel_platform.bench.artefacts import Artefacts
from accel_platform.bench.environment import child_environment
from accel_platform.bench.failures import Why, classify, classify_death
from accel_platform.bench.plan import SEGMENT_PREFIX, Cell, artefact_of, groups, refusal
from accel_platform.bench.preparation import Unprepared, prepare_models
from accel_platform.bench.process import Child, ChildCrashed, ChildTimeout, Message
from accel_platform.bench.profiles import PROFILES, Profile
from accel_platform.bench.sampling import median_ns
from accel_platform.events import Event, EventLog
from accel_platform.events.types import DeviceObserved, Payload, ResultRecorded, RunFinished, RunStarted
from accel_platform.hardware.cpu import usable_cores
from accel_platform.hardware.detect import Inventory, detect
from accel_platform.settings import Settings

SOURCE = "accel bench"
WORKER = "accel_platform.bench.worker"

Tell = Callable[[str], None]


@dataclass
class RunSummary:
    """What became of a run. `unavailable` names hardware that was asked for and is not here, with the reason."""

    run_id: str | None = None
    """None where nothing could be measured, and so no run was begun."""
    ok: int = 0
    failed: int = 0
    skipped: int = 0
    duration_s: float = 0.0
    unavailable: dict[str, str] = field(default_factory=dict)
    results: list[ResultRecorded] = field(default_factory=list)


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

    Cells whose hardware is not here are left out and named in the summary. Without a cell to measure no run is begun.
    On KeyboardInterrupt children die, finished cells are kept, the run is recorded as cancelled, and it goes on up.
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
            summary.unavailable[cell.hardware] = (device.reason if device else None) or "not known here"
    if possible:
        _Run(possible, settings, log, profile, on_progress or (lambda _: None), inventory, summary).run()
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
        self.cells, self.settings, self.log, self.profile = cells, settings, log, profile
        self.tell, self.inventory, self.summary = tell, inventory, summary
        self.threads = usable_cores()
        self.run_id = summary.run_id = str(uuid7())
        self.pending: list[Event] = []
        self.segments = 0

    def run(self) -> None:
        started = time.monotonic()
        status: Literal["succeeded", "failed", "cancelled"] = "failed"
        reason = None
        plan = {"cells": [cell.label for cell in self.cells], "profile": asdict(self.profile), "threads": self.threads}
        self.record(RunStarted(kind="benchmark", plan=plan, software=self.inventory.host.software))
        self.pending += self.inventory.events(run_id=self.run_id)
        try:
            unprepared = self.describe()
            self.flush()
            unprepared |= prepare_models(
                [cell for cell in self.cells if (cell.model, "weights") not in unprepared and refusal(cell) is None],
                self.settings,
                threads=self.threads,
                timeout_s=self.profile.prepare_timeout_s,
                tell=self.tell,
            )
            for group in groups(self.cells):
                self.measure(group, unprepared)
                self.flush()
            status = "succeeded" if self.summary.ok else "failed"
            reason = None if self.summary.ok else "no cell could be measured"
        except BaseException as error:
            # Ctrl-C and a scheduler's interrupt are not Exceptions.
            status = "failed" if isinstance(error, Exception) else "cancelled"
            reason = f"{type(error).__name__}: {error}".rstrip(": ")
            raise
        finally:
            self.summary.skipped += len(self.cells) - self.summary.ok - self.summary.failed
            self.summary.duration_s = time.monotonic() - started
            self.record(
                RunFinished(
                    status=status,
                    reason=reason,
                    cells_ok=self.summary.ok,
                    cells_failed=self.summary.failed,
                    cells_skipped=self.summary.skipped,
                    duration_s=self.summary.duration_s,
                )
            )
            self.flush()

    def record(self, payload: Payload) -> None:
        self.pending.append(Event.of(payload, source=SOURCE, host_id=self.inventory.host_id, run_id=self.run_id))

    def flush(self) -> None:
        if self.pending:
            self.log.append(self.pending, key=f"{SEGMENT_PREFIX}{self.run_id}-{self.segments:04d}")
            self.segments += 1
            self.pending = []

    def describe(self) -> Unprepared:
        """Record each model's cost; a config that cannot even be traced ends that model's cells."""
        unusable: Unprepared = {}
        for model in dict.fromkeys(cell.model for cell in self.cells):
            try:
                self.record(records.described(model))
            except Exception as error:  # noqa: BLE001 - a custom config may fail in any way
                why = Why("failed", *classify(error))
                unusable |= {(model, kind): why for kind in get_args(Artefact)}
        return unusable

    def measure(self, group: tuple[Cell, ...], unprepared: Unprepared) -> None:
        """Give the group a child, and another one for what is left whenever one dies."""
        first = group[0]
        artefacts = Artefacts.of(first.model, self.settings)
        if (reason := refusal(first)) is not None:
            self.fail(group, Why("failed", UnsupportedPrecision.failure_class, reason))
            return
        reads = artefact_of(first)
        why = unprepared.get((first.model, reads))
        # A preparing child that died may have made all that this group needs.
        if why and artefacts.missing([reads], [(cell.batch_size, cell.sequence_length) for cell in group]):
            self.fail(group, why)
            return
        left = list(group)
        while left:
            self.measure_in_child(left, artefacts)

    def measure_in_child(self, left: list[Cell], artefacts: Artefacts) -> None:
        """Measure the cells of `left` in one process, taking each out as it ends, well or badly."""
        first = left[0]
        job = {
            "hardware": first.hardware,
            "mode": first.mode,
            "precision": first.precision,
            "threads": self.threads,
            "artefact": str(artefacts.artefact(artefact_of(first), first.sequence_length)),
            "cells": [str(artefacts.data((cell.batch_size, cell.sequence_length))) for cell in left],
            "sampling": asdict(self.profile.sampling),
        }
        loaded: Message = {}
        with Child(WORKER, job, env=child_environment(self.threads)) as child:
            try:
                for answer in child.messages(self.profile.timeout_s):
                    if answer["kind"] == "loaded":
                        loaded = answer
                    elif answer["kind"] == "measured":
                        self.succeed(left.pop(0), answer, loaded)
                    elif answer["kind"] == "failed":
                        self.fail([left.pop(0)], Why("failed", answer["failure_class"], answer["reason"]))
                    else:
                        self.fail(left, Why("failed", answer["failure_class"], answer["reason"]))
                        left.clear()
                why = Why("failed", "crash", "the process ended without measuring it")
            except ChildTimeout as error:
                why = Why("timeout", "timeout", str(error))
            except ChildCrashed as error:
                why = Why("failed", classify_death(str(error)), str(error))
        if left:
            # A fault before the model was loaded is not one cell's: the others would meet it too.
            struck = left[:1] if loaded else left[:]
            del left[: len(struck)]
            self.fail(struck, why)

    def succeed(self, cell: Cell, answer: Message, loaded: Message) -> None:
        result, verification = records.measured(
            cell,
            self.device(cell),
            answer,
            loaded,
            threads=self.threads,
            sampling=self.profile.sampling,
            reference=prepare.REFERENCE,
        )
        self.record_result(cell, result)
        self.record(verification)

    def fail(self, cells: Sequence[Cell], why: Why) -> None:
        for cell in cells:
            self.record_result(cell, records.failed(cell, self.device(cell), why, threads=self.threads))

    def record_result(self, cell: Cell, result: ResultRecorded) -> None:
        self.record(result)
        self.summary.results.append(result)
        if result.status == "ok":
            self.summary.ok += 1
            doubt = f", noisy: {result.noisy_reason}" if result.noisy else ""
            median_ms = median_ns(result.samples_ns) / 1e6
            self.tell(f"{cell.label}: {median_ms:.1f} ms, {len(result.samples_ns)} samples{doubt}")
        else:
            self.summary.failed += 1
            self.tell(f"{cell.label}: {result.status}, {result.reason}")

    def device(self, cell: Cell) -> DeviceObserved:
        device = self.inventory.device(cell.hardware)
        assert device is not None, "run_benchmark leaves out cells without a device"
        return device
