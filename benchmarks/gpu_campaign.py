"""The campaign of `gpu_campaign.json`: models, precisions, batch sizes and ways of running, cut by time, resumable."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from accel_platform.backends.detect import detect
from accel_platform.backends.registry import runtime_for
from accel_platform.bench.plan.plan import Cell, plan_cells, result_key
from accel_platform.bench.plan.presets import EFFORTS
from accel_platform.bench.plan.run_options import RunOptions, RunScope
from accel_platform.bench.run.campaign import export_campaign
from accel_platform.bench.run.runner import measure_cells
from accel_platform.errors import NotFound
from accel_platform.events import EventLog
from accel_platform.events.types import ResultRecorded
from accel_platform.settings import Settings
from accel_platform.workloads.cost import cost_of
from accel_platform.workloads.custom_models import custom_models
from accel_platform.workloads.model_catalog import ModelSpec, resolve_model

SPEC = Path(__file__).with_name("gpu_campaign.json")
LABEL = {"campaign": "gpu"}
_REFERENCE_FLOPS = 4e12
"""Work of a float32 reference on a processor, a few seconds of one with many cores."""
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
    found = [*map(resolve_model, spec["catalog"]), *own.values()]
    # A campaign that is cut short has some of each modality.
    by_modality: dict[str, list[ModelSpec]] = {}
    for model in found:
        by_modality.setdefault(model.modality, []).append(model)
    in_turns = zip_longest(*by_modality.values())
    return [model for turn in in_turns for model in turn if model is not None]


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


def cells(hardware: str) -> Iterator[tuple[Cell, ...]]:
    """Yield the cells of each model in each pass, small batches first."""
    sizes = _spec()["batch_sizes"]
    for one in passes(hardware):
        for model in models():
            yield plan_cells([model], [one.hardware], sizes, precisions=[one.precision])


def few_cells(hardware: str) -> Iterator[tuple[Cell, ...]]:
    """Yield what a stand-in measures to try the campaign: one small model, eager, in two batch sizes."""
    for one in passes(hardware):
        if one.hardware == hardware:
            yield plan_cells(
                [resolve_model("bert-tiny")], [hardware], _spec()["batch_sizes"][:2], precisions=[one.precision]
            )


def run(
    home: Path, path: Path, groups: Sequence[tuple[Cell, ...]], until: float, report: Callable[[str], None]
) -> dict[str, Any]:
    """Measure what is missing until the monotonic time `until`; return counts.

    After each model all events are written to `path`, so that a call that is cut off brings back what it has.
    """
    settings = Settings(home=home)
    log = EventLog.open(settings)
    inventory = detect({group[0].hardware for group in groups})
    effort = replace(EFFORTS["quick"], timeout_s=120.0, prepare_timeout_s=180.0)
    tried = _tried(log)
    finished = 0
    for group in groups:
        missing = [cell for cell in group if _name(cell) not in tried]
        if missing and time.monotonic() + _MIN_ROOM_S > until:
            break
        for work, some in _by_reference(missing).items():
            options = RunOptions(work, fix=False)
            measure_cells(
                some,
                settings,
                log,
                effort=effort,
                options=options,
                on_progress=report,
                inventory=inventory,
                labels=LABEL,
            )
            export(home, path)
        tried |= {_name(cell) for cell in missing}
        finished += 1
    return {"groups": len(groups), "finished": finished, "complete": finished == len(groups)}


def _by_reference(missing: list[Cell]) -> dict[RunScope, list[Cell]]:
    """Return the cells by whether a processor computes their reference in time; the others stay unverified."""
    found: dict[RunScope, list[Cell]] = {}
    for cell in missing:
        flops = cost_of(cell.model, batch_size=1).flops * cell.batch_size
        found.setdefault("all" if flops <= _REFERENCE_FLOPS else "measure", []).append(cell)
    return found


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
