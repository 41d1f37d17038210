"""One benchmark run read from the event log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from accel_platform.bench.plan.plan import SEGMENT_PREFIX
from accel_platform.errors import NotFound
from accel_platform.events import Event, EventLog, Snapshot
from accel_platform.events.integrity import require_sound
from accel_platform.events.types import (
    DeviceObserved,
    HostObserved,
    ModelDescribed,
    Payload,
    ResultRecorded,
    VerificationRecorded,
)

Kind = TypeVar("Kind", bound=Payload)


@dataclass(frozen=True)
class RecordedResult:
    """A result and when it was recorded."""

    result: ResultRecorded
    at: datetime


@dataclass(frozen=True)
class BenchmarkRun:
    """Everything that a benchmark run recorded."""

    run_id: str
    at: datetime
    """Start time."""
    host: HostObserved
    devices: Mapping[str, DeviceObserved]
    """Devices by hardware name."""
    models: Mapping[str, ModelDescribed]
    results: tuple[RecordedResult, ...]
    """Results; those whose outputs were found wrong count as failed."""


def read_run(log: EventLog, run_id: str) -> BenchmarkRun:
    """Read a run of the log. Raises NotFound."""
    names = {name for name in log.snapshot().segments if name.startswith(f"{SEGMENT_PREFIX}{run_id}-")}
    require_sound(log, names)
    events = list(log.read(Snapshot(frozenset(names))))
    started = next((event for event in events if event.type == "RunStarted"), None)
    if started is None:
        raise NotFound(f"The log holds no benchmark run {run_id}.")
    wrong = {_cell(verdict): verdict for verdict in _payloads(VerificationRecorded, events) if not verdict.passed}
    return BenchmarkRun(
        run_id=run_id,
        at=_time(started),
        host=_payloads(HostObserved, events)[0],
        devices={str(device.hardware): device for device in _payloads(DeviceObserved, events)},
        models={model.model_id: model for model in _payloads(ModelDescribed, events)},
        results=tuple(
            RecordedResult(_apply_verification(event.payload, wrong), _time(event))
            for event in events
            if isinstance(event.payload, ResultRecorded)
        ),
    )


def _payloads(kind: type[Kind], events: Iterable[Event]) -> list[Kind]:
    return [event.payload for event in events if isinstance(event.payload, kind)]


def _apply_verification(result: ResultRecorded, wrong: Mapping[object, VerificationRecorded]) -> ResultRecorded:
    verdict = wrong.get(_cell(result))
    if verdict is None or result.status != "ok":
        return result
    return result.model_copy(update={"status": "failed", "failure_class": "wrong_output", "reason": verdict.reason})


def _cell(of: ResultRecorded | VerificationRecorded) -> object:
    return (of.model_id, of.hardware, of.precision, of.batch_size, of.sequence_length, of.weights_sha256)


def _time(event: Event) -> datetime:
    assert event.occurred_at is not None, "what we measure has a time"
    return event.occurred_at
