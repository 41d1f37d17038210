"""The campaign of `gpu_campaign.json`: models, precisions, batch sizes and ways of running, cut by time, resumable."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from accel_platform.backends.detect import detect
from accel_platform.backends.registry import runtime_for
from accel_platform.bench.measure.sampling import Sampling
from accel_platform.bench.measure.verification import spread_items
from accel_platform.bench.plan.plan import Cell, plan_cells, result_key
from accel_platform.bench.plan.run_options import Effort, RunOptions
from accel_platform.bench.prepare.artifacts import Artifacts
from accel_platform.bench.prepare.preparation import prepare_models
from accel_platform.bench.run.campaign import export_campaign
from accel_platform.bench.run.recorder import RunContext
from accel_platform.bench.run.runner import measure_cells
from accel_platform.errors import NotFound
from accel_platform.events import EventLog
from accel_platform.events.types import ResultRecorded
from accel_platform.hardware.cpu import usable_cores
from accel_platform.settings import Settings
from accel_platform.workloads.cost import cost_of
from accel_platform.workloads.custom_models import custom_models
from accel_platform.workloads.inputs import make_inputs
from accel_platform.workloads.model_catalog import ModelSpec, resolve_model

SPEC = Path(__file__).with_name("gpu_campaign.json")
LABEL = {"campaign": "gpu"}
_REFERENCE_FLOPS = 6e11
"""Work of a float32 reference on a processor, about a second of one with many cores: 217 of 273 shapes have one."""
_MOST_FLOPS = {"float32": 1.2e13, "tf32": 4e13, "float16": 4e13, "bfloat16": 4e13}
"""Work of the largest batch by precision: a fifth of a second of a large GPU, which larger ones do not fill better."""
_AT_ONCE = 6
"""Workers in flight: one measures, the others start and load. On virtual machines a worker loaded for 12 s (H100)
and 17 s (H200), and the next model began 3.6 and 5.3 s after the one before."""
_GROUPS = 40
"""Groups of a run at most. The next run begins when this one's last worker has ended."""
_GROUP_S = 6.0
"""Time of a group before one was measured; no run is begun that would end too late."""
_EFFORT = Effort(
    "campaign",
    Sampling(min_time_s=0.15, max_time_s=0.6, limit_s=10.0, warmup_max_s=0.4, max_attempts=1),
    timeout_s=120.0,
    prepare_timeout_s=180.0,
)


@dataclass(frozen=True)
class Pass:
    """One way of running in one precision, over all models."""

    hardware: str
    precision: str
    batch_sizes: tuple[int, ...]


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


def passes(hardware: str) -> list[Pass]:
    """Return the passes that the hardware name has, most telling first."""
    runtime = runtime_for(hardware)
    found = []
    for entry in _spec()["passes"]:
        way, precision = entry["hardware"], entry["precision"]
        if precision in runtime.precisions and (not way or way in runtime.choice_backends):
            sizes = tuple(entry["batch_sizes"])
            found.append(Pass(f"{hardware}:{way}" if way else hardware, precision, sizes))
    return found


def cells(hardware: str) -> Iterator[tuple[Cell, ...]]:
    """Yield the cells of each model in each pass, small batches first, as far as a batch ends in time."""
    for one in passes(hardware):
        for model in models():
            most = _MOST_FLOPS[one.precision] / _flops(model)
            sizes = [size for size in one.batch_sizes if size <= most]
            if sizes:
                yield plan_cells([model], [one.hardware], sizes, precisions=[one.precision])


def few_cells(hardware: str) -> Iterator[tuple[Cell, ...]]:
    """Yield what a stand-in measures to try the campaign: one small model, eager, in two batch sizes."""
    for one in passes(hardware):
        if one.hardware == hardware:
            yield plan_cells([resolve_model("bert-tiny")], [hardware], one.batch_sizes[:2], precisions=[one.precision])


def prepare(home: Path, groups: Sequence[tuple[Cell, ...]], report: Callable[[str], None]) -> None:
    """Write the weights, inputs and references of all cells: work of the processor, while the device does other work.

    A cell whose reference would take long gets its inputs alone, and its result stays unverified.
    """
    settings = Settings(home=home)
    cells = [cell for group in groups for cell in group]
    small = [cell for cell in cells if _flops(cell.model) * _reference_items(cell) <= _REFERENCE_FLOPS]
    timeout_s = _EFFORT.prepare_timeout_s
    prepare_models(small, settings, threads=usable_cores(), timeout_s=timeout_s, report=report)
    shapes = {(cell.model, cell.batch_size, cell.sequence_length) for cell in set(cells) - set(small)}
    with ThreadPoolExecutor(usable_cores()) as pool:
        for done in [pool.submit(_write_inputs, settings, *shape) for shape in shapes]:
            done.result()


def _reference_items(cell: Cell) -> int:
    """Return how many items a cell's reference is of: likeness of texts and images takes the whole batch."""
    items = spread_items(cell.batch_size)
    return cell.batch_size if items is None or cell.model.modality == "multimodal" else len(items)


def _write_inputs(settings: Settings, model: ModelSpec, batch_size: int, length: int | None) -> None:
    path = Artifacts.of(model, settings).data((batch_size, length))
    if path.exists() or not path.parent.exists():
        return
    arrays = {
        f"{part}/{name}": array
        for seed, part in enumerate(("input", "other"))
        for name, array in make_inputs(model, batch_size=batch_size, sequence_length=length, seed=seed).items()
    }
    part_path = path.with_name(f".{path.name}")
    np.savez(part_path, allow_pickle=False, **arrays)
    part_path.replace(path)


def run(
    home: Path, path: Path, groups: Sequence[tuple[Cell, ...]], until: float, report: Callable[[str], None]
) -> dict[str, Any]:
    """Measure what is missing until the monotonic time `until`; return counts.

    After each run all events are written to `path`, so that a call that is cut off brings back what it has.
    """
    settings = Settings(home=home)
    log = EventLog.open(settings)
    options = RunOptions(fix=False, at_once=_AT_ONCE)
    inventory = detect({group[0].hardware for group in groups})
    context = RunContext(settings, log, inventory, _EFFORT, options, report, labels=LABEL)
    tried = _tried(log)
    missing = [cells for group in groups if (cells := tuple(cell for cell in group if _name(cell) not in tried))]
    finished, group_s = len(groups) - len(missing), _GROUP_S
    # A run begins with tracing its models. So the first one has few; those of the others are traced while it measures.
    count, ahead = 8, _Tracing([group[0].model for group in missing])
    while missing and (count := min(count, int((until - time.monotonic()) / group_s))) > 0:
        now, missing = missing[:count], missing[count:]
        began = time.monotonic()
        prepare(home, now, report)
        measure_cells([cell for group in now for cell in group], context, on_stored=ahead.begin)
        ahead.end()
        export(home, path)
        finished += count
        group_s = (time.monotonic() - began) / count
        report(f"{finished} of {len(groups)} groups, {group_s:.1f} s a group")
        count = _GROUPS
    return {"groups": len(groups), "finished": finished, "complete": not missing}


class _Tracing:
    """Tracing of the models' costs, which later runs reuse, in one thread."""

    def __init__(self, models: Sequence[ModelSpec]) -> None:
        self._models = tuple(dict.fromkeys(models))
        self._thread: threading.Thread | None = None

    def begin(self, _: object) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._trace, daemon=True)
            self._thread.start()

    def end(self) -> None:
        if self._thread is not None:
            self._thread.join()

    def _trace(self) -> None:
        for model in self._models:
            with suppress(Exception):  # the run that measures the model tells it
                cost_of(model, batch_size=1)


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


def _flops(model: ModelSpec) -> float:
    """Return the model's work for one item as written down, because tracing all models takes half a minute."""
    found: float = _spec()["flops_per_item"][model.model_id]
    return found


def _name(cell: Cell) -> tuple[Any, ...]:
    return (cell.model.model_id, cell.hardware, cell.precision, cell.batch_size, cell.sequence_length)


@cache
def _spec() -> dict[str, Any]:
    spec: dict[str, Any] = json.loads(SPEC.read_text(encoding="utf-8"))
    return spec
