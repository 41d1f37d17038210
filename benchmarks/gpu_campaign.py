"""The campaign of `gpu_campaign.json`: models, precisions, batch sizes and ways of running, cut by time, resumable."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from accel_platform.backends.detect import detect
from accel_platform.backends.registry import runtime_for
from accel_platform.bench.plan.plan import Cell, done_cells, host_fingerprints, missing_cells, plan_cells, result_key
from accel_platform.bench.plan.presets import EFFORTS
from accel_platform.bench.plan.run_options import RunOptions
from accel_platform.bench.run.campaign import export_campaign
from accel_platform.bench.run.runner import measure_cells
from accel_platform.errors import NotFound
from accel_platform.events import EventLog
from accel_platform.events.types import ResultRecorded
from accel_platform.settings import Settings
from accel_platform.workloads.custom_models import custom_models
from accel_platform.workloads.model_catalog import ModelSpec, resolve_model

SPEC = Path(__file__).with_name("gpu_campaign.json")
LABEL = {"campaign": "gpu"}
_MIN_ROOM_S = 45.0
"""No further model is begun with less time than this left."""


@dataclass(frozen=True)
class Pass:
    """One way of running in one precision, over all models."""

    hardware: str
    precision: str


def models() -> list[ModelSpec]:
    """Return the models of the campaign: of the catalog, and its own."""
    spec = _spec()
    own = custom_models(spec["own"], where=str(SPEC), folder=SPEC.parent)
    return [*map(resolve_model, spec["catalog"]), *own.values()]


def catalog_names() -> list[str]:
    """Return the names of the campaign's models that the catalog knows."""
    names: list[str] = _spec()["catalog"]
    return names


def passes(hardware: str) -> list[Pass]:
    """Return the passes that the hardware name has, most telling first."""
    runtime = runtime_for(hardware)
    found = []
    for entry in _spec()["passes"]:
        way, precision = entry["hardware"], entry["precision"]
        if precision in runtime.precisions and (not way or way in runtime.ways):
            found.append(Pass(f"{hardware}:{way}" if way else hardware, precision))
    return found


def cells(hardware: str, chosen: list[ModelSpec] | None = None) -> Iterator[tuple[Cell, ...]]:
    """Yield the cells of each model in each pass, small batches first."""
    all_models = models() if chosen is None else chosen
    for one in passes(hardware):
        for model in all_models:
            yield plan_cells([model], [one.hardware], _spec()["batch_sizes"], precisions=[one.precision])


def run(
    home: Path, hardware: str, until: float, report: Callable[[str], None], chosen: list[ModelSpec] | None = None
) -> dict[str, Any]:
    """Measure what is missing until the monotonic time `until`; return counts. Measured cells are in the log."""
    settings = Settings(home=home)
    log = EventLog.open(settings)
    groups = list(cells(hardware, chosen))
    inventory = detect({group[0].hardware for group in groups})
    fingerprints = host_fingerprints(inventory)
    effort = replace(EFFORTS["quick"], timeout_s=120.0, prepare_timeout_s=180.0)
    tried = _tried(log)
    begun = finished = 0
    for group in groups:
        known = done_cells(log)
        missing = [c for c in missing_cells(group, known, fingerprints) if _name(c) not in tried]
        if not missing:
            finished += 1
            continue
        if time.monotonic() + _MIN_ROOM_S > until:
            break
        begun += 1
        measure_cells(
            missing,
            settings,
            log,
            effort=effort,
            options=RunOptions("all", fix=False),
            on_progress=report,
            inventory=inventory,
            labels=LABEL,
        )
        tried |= {_name(cell) for cell in missing}
        finished += 1
    return {"groups": len(groups), "finished": finished, "measured_now": begun, "complete": finished == len(groups)}


def export(home: Path, path: Path) -> int:
    """Write all measured events to a file; return its size in bytes, 0 where nothing was measured."""
    log = EventLog.open(Settings(home=home))
    try:
        return export_campaign(log, path).size_bytes
    except NotFound:
        return 0


def results(home: Path) -> list[ResultRecorded]:
    """Return the newest result of each cell of the campaign, failures among them."""
    newest = {}
    for event in EventLog.open(Settings(home=home)).read(types={"ResultRecorded"}):
        payload = event.payload
        assert isinstance(payload, ResultRecorded)
        newest[result_key(payload)] = payload
    return list(newest.values())


def _tried(log: EventLog) -> set[tuple[Any, ...]]:
    """Return the cells with a result, failed ones among them: a campaign does not repeat failures."""
    found = set()
    for event in log.read(types={"ResultRecorded"}):
        r = event.payload
        assert isinstance(r, ResultRecorded)
        hardware = r.hardware if r.choice is None else f"{r.hardware}:{r.choice}"
        found.add((r.model_id, hardware, r.precision, r.batch_size, r.sequence_length))
    return found


def _name(cell: Cell) -> tuple[Any, ...]:
    return (cell.model.model_id, cell.hardware, cell.precision, cell.batch_size, cell.sequence_length)


def _spec() -> dict[str, Any]:
    spec: dict[str, Any] = json.loads(SPEC.read_text(encoding="utf-8"))
    return spec
