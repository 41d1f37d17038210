"""One benchmark run read from the event log, and the statistics of its results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

import numpy as np

from accel_platform.analysis.stats.medians import MIN_PERCENTILE_SAMPLES
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


@dataclass(frozen=True)
class ResultStatistics:
    """Milliseconds per batch, and items per second; None if unknown."""

    mean_ms: float | None
    p50_ms: float | None
    p90_ms: float | None
    p95_ms: float | None
    p99_ms: float | None
    min_ms: float | None
    max_ms: float | None
    std_ms: float | None
    items_per_s: float | None
    """By the mean time; with several training processes, of all of them."""


def result_statistics(result: ResultRecorded) -> ResultStatistics:
    """Return the statistics of a result's samples, or the stated ones without samples.

    Percentiles use linear interpolation (Hyndman & Fan type 7), as in the table `results`. They are None with too few
    samples.
    """
    if not result.samples_ns:
        return ResultStatistics(
            result.latency_mean_ms,
            result.latency_p50_ms,
            result.latency_p90_ms,
            result.latency_p95_ms,
            result.latency_p99_ms,
            result.latency_min_ms,
            result.latency_max_ms,
            result.latency_std_ms,
            result.throughput_items_per_s,
        )
    samples_ms = np.array(result.samples_ns) / 1e6
    mean_ms = float(samples_ms.mean())
    count = len(samples_ms)
    percentiles = {
        q: float(np.percentile(samples_ms, q)) if count >= needed else None
        for q, needed in MIN_PERCENTILE_SAMPLES.items()
    }
    return ResultStatistics(
        mean_ms,
        percentiles[50],
        percentiles[90],
        percentiles[95],
        percentiles[99],
        float(samples_ms.min()),
        float(samples_ms.max()),
        float(samples_ms.std(ddof=1)) if count > 1 else None,
        result.batch_size * (result.processes or 1) * 1e3 / mean_ms if result.batch_size and mean_ms else None,
    )
