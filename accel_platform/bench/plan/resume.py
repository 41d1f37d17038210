"""Plans recorded in `RunStarted`, and the search for an interrupted run to resume."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from typing import Any

from accel_platform.bench.measure.sampling import Sampling
from accel_platform.bench.plan.plan import SEGMENT_PREFIX, Cell
from accel_platform.bench.plan.run_locks import is_running
from accel_platform.bench.plan.run_options import Effort, RunOptions
from accel_platform.errors import NotFound
from accel_platform.events import EventLog, Snapshot
from accel_platform.events.types import ResultRecorded, RunFinished, RunStarted, VerificationRecorded
from accel_platform.settings import Settings
from accel_platform.workloads.model_catalog import ModelSpec

_CELL_FIELDS = tuple(field.name for field in fields(Cell) if field.name != "model")


@dataclass(frozen=True)
class InterruptedRun:
    """A run without an end, and its remaining cells."""

    run_id: str
    started_at: datetime
    cells: tuple[Cell, ...]
    effort: Effort
    options: RunOptions
    labels: Mapping[str, str]


def describe_plan(
    cells: Sequence[Cell],
    effort: Effort,
    options: RunOptions,
    *,
    threads: int,
    resumes: str | None = None,
    requested_config: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Build the plan of `RunStarted`: labels for people, `work` for resuming the run, and the configuration it comes
    from."""
    models = list(dict.fromkeys(cell.model for cell in cells))
    work = [
        {"model": models.index(cell.model), **{name: getattr(cell, name) for name in _CELL_FIELDS}} for cell in cells
    ]
    return {
        "cells": [cell.label for cell in cells],
        "effort": asdict(effort),
        "how": asdict(options),
        "threads": threads,
        "models": [asdict(model) for model in models],
        "work": work,
        **({"resumes": resumes} if resumes is not None else {}),
        **({"asked": dict(requested_config)} if requested_config else {}),
    }


def find_interrupted_run(log: EventLog, settings: Settings, host_id: str) -> InterruptedRun:
    """Return this host's newest benchmark run that was stopped or killed and that no later run resumed.

    A run still under way has no end either; its lock tells it apart. Raises NotFound where no run was interrupted.
    """
    benchmarks = log.snapshot().beginning(SEGMENT_PREFIX)
    started: dict[str, tuple[RunStarted, datetime]] = {}
    ended, resumed = set(), set()
    for event in log.read(benchmarks, types={"RunStarted", "RunFinished"}):
        run_id, payload = event.run_id, event.payload
        if run_id is None or event.host_id != host_id:
            continue
        if isinstance(payload, RunStarted) and "work" in payload.plan:
            started[run_id] = payload, event.recorded_at
            resumed.add(payload.plan.get("resumes"))
        elif isinstance(payload, RunFinished) and payload.status != "cancelled":
            ended.add(run_id)
    # A UUIDv7 begins with its time, so it sorts by it.
    for run_id in sorted(started.keys() - ended - resumed, reverse=True):
        if is_running(settings, run_id):
            continue
        begun, at = started[run_id]
        done = _recorded_keys(log, benchmarks.beginning(f"{SEGMENT_PREFIX}{run_id}-"))
        if cells := tuple(
            cell for cell in cells_from_plan(begun.plan) if _cell_identity(cell.model.model_id, cell) not in done
        ):
            return InterruptedRun(
                run_id, at, cells, effort_from_plan(begun.plan), RunOptions(**begun.plan["how"]), begun.labels
            )
    raise NotFound("No benchmark run of this host was interrupted: there is nothing to resume.")


def cells_from_plan(plan: Mapping[str, Any]) -> list[Cell]:
    """Restore the cells of a plan that `describe_plan` made."""
    models = [ModelSpec.of_job(model) for model in plan["models"]]
    return [Cell(**{**item, "model": models[item["model"]]}) for item in plan["work"]]


def effort_from_plan(plan: Mapping[str, Any]) -> Effort:
    """Restore the effort of a plan that `describe_plan` made."""
    effort = dict(plan["effort"])
    sampling = Sampling(**effort.pop("sampling"))
    return Effort(sampling=sampling, **effort)


def remaining_cells(cells: Sequence[Cell], log: EventLog, run_ids: Sequence[str]) -> tuple[Cell, ...]:
    """Return the cells for which none of these runs recorded a result, successful or failed."""
    benchmarks = log.snapshot()
    done = set().union(*(_recorded_keys(log, benchmarks.beginning(f"{SEGMENT_PREFIX}{run_id}-")) for run_id in run_ids))
    return tuple(cell for cell in cells if _cell_identity(cell.model.model_id, cell) not in done)


def _recorded_keys(log: EventLog, segments: Snapshot) -> set[tuple[Any, ...]]:
    done = set()
    for event in log.read(segments, types={"ResultRecorded", "VerificationRecorded"}):
        result = event.payload
        assert isinstance(result, ResultRecorded | VerificationRecorded)
        done.add(_cell_identity(result.model_id, result))
    return done


def _cell_identity(model_id: str, of: Any) -> tuple[Any, ...]:
    """Return what a cell shares with its result or verification; an event omits default values."""
    return (
        model_id,
        of.hardware if isinstance(of, Cell) or of.choice is None else f"{of.hardware}:{of.choice}",
        of.batch_size,
        of.sequence_length,
        of.precision,
        of.weights_sha256,
        getattr(of, "mode", None) or "inference",
        getattr(of, "processes", None) or 1,
    )
