"""One run as it stands in the log, and the files that are made of it. What is in them is known to their modules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from accel_platform.bench.plan.plan import SEGMENT_PREFIX
from accel_platform.errors import InvalidInput, NotFound
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
class Measured:
    """A result and when it was recorded."""

    result: ResultRecorded
    at: datetime


@dataclass(frozen=True)
class Run:
    """What a benchmark run recorded."""

    run_id: str
    at: datetime
    """When it began."""
    host: HostObserved
    devices: Mapping[str, DeviceObserved]
    """By hardware name."""
    models: Mapping[str, ModelDescribed]
    results: tuple[Measured, ...]
    """A result whose outputs were found wrong, at once or later in the run, is a failed one."""


def read_run(log: EventLog, run_id: str) -> Run:
    """A run of this log. Raises NotFound."""
    names = {name for name in log.snapshot().segments if name.startswith(f"{SEGMENT_PREFIX}{run_id}-")}
    require_sound(log, names)
    events = list(log.read(Snapshot(frozenset(names))))
    started = next((event for event in events if event.type == "RunStarted"), None)
    if started is None:
        raise NotFound(f"The log holds no benchmark run {run_id}.")
    wrong = {_cell(verdict): verdict for verdict in _all(VerificationRecorded, events) if not verdict.passed}
    return Run(
        run_id=run_id,
        at=_time(started),
        host=_all(HostObserved, events)[0],
        devices={str(device.hardware): device for device in _all(DeviceObserved, events)},
        models={model.model_id: model for model in _all(ModelDescribed, events)},
        results=tuple(
            Measured(_judged(event.payload, wrong), _time(event))
            for event in events
            if isinstance(event.payload, ResultRecorded)
        ),
    )


def _all(kind: type[Kind], events: Iterable[Event]) -> list[Kind]:
    return [event.payload for event in events if isinstance(event.payload, kind)]


def _judged(result: ResultRecorded, wrong: Mapping[object, VerificationRecorded]) -> ResultRecorded:
    verdict = wrong.get(_cell(result))
    if verdict is None or result.status != "ok":
        return result
    return result.model_copy(update={"status": "failed", "failure_class": "wrong_output", "reason": verdict.reason})


def _cell(of: ResultRecorded | VerificationRecorded) -> object:
    return (of.model_id, of.hardware, of.precision, of.batch_size, of.sequence_length, of.weights_sha256)


def write_reports(
    log: EventLog,
    run_id: str,
    *,
    folder: Path | None,
    csv: Path | None = None,
    charts: bool = False,
    headings: Mapping[str, str] | None = None,
) -> list[Path]:
    """Write what is asked of a run; the files written. Raises NotFound, or InvalidInput where nothing can be written.

    Into `folder` go a JSON document per model, hardware and precision and, with `charts`, drawings, which `headings`
    (by model id) divide; `csv` is a file of its own.
    """
    from accel_platform.reports import comparison_csv, per_model_json
    from accel_platform.reports import run_charts as drawn

    if folder is None and csv is None:
        return []
    run = read_run(log, run_id)
    make_places(folder, csv)
    files: list[Path] = []
    try:
        if folder is not None:
            files += per_model_json.write(run, folder)
            files += drawn.write(run, folder, headings or {}) if charts else []
        if csv is not None:
            comparison_csv.write(run, csv)
            files.append(csv)
    except OSError as error:
        raise InvalidInput(f"A report cannot be written: {error}. The results themselves are in the log.") from error
    return files


def make_places(folder: Path | None, csv: Path | None) -> None:
    """Make the folders that reports go to; before a measurement, so as not to find out after. Raises InvalidInput."""
    for place in (folder, csv and csv.parent):
        try:
            if place is not None:
                place.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidInput(f"Reports cannot go to {place}: {error.strerror}.") from error
    if csv is not None and csv.is_dir():
        raise InvalidInput(f"{csv} is a folder: name the CSV file to write.")


def _time(event: Event) -> datetime:
    assert event.occurred_at is not None, "what we measure has a time"
    return event.occurred_at
