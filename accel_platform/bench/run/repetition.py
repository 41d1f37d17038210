"""Repeated measurement of cells of earlier runs, with the options of those runs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from accel_platform.backends.detect import detect
from accel_platform.bench.plan.plan import CellKey, cell_key, host_fingerprints
from accel_platform.bench.plan.resume import cells_from_plan, effort_from_plan
from accel_platform.bench.plan.run_options import RunOptions
from accel_platform.bench.run.recorder import Progress, RunContext
from accel_platform.bench.run.runner import measure_cells
from accel_platform.events import EventLog
from accel_platform.settings import Settings


def remeasure_cells(
    plans: Sequence[Mapping[str, Any]],
    wanted: Collection[CellKey],
    times: int,
    settings: Settings,
    *,
    labels: Mapping[str, str],
    on_progress: Progress,
) -> list[str]:
    """Measure the `wanted` cells of recorded plans in `times` new runs; return the run ids.

    At least one plan is needed, and the last plan gives the options. A key holds a fingerprint, so only cells of this
    host's own fingerprints are measured: there may be none. Each run gives every cell a new process. On
    KeyboardInterrupt what was measured is kept.
    """
    cells = [cell for plan in plans for cell in cells_from_plan(plan)]
    inventory = detect({cell.hardware for cell in cells})
    here = host_fingerprints(inventory)
    keys = {cell_key(cell, here.get(cell.hardware, "")): cell for cell in cells}
    chosen = [cell for key, cell in keys.items() if key in wanted]
    effort, options = effort_from_plan(plans[-1]), replace(RunOptions(**plans[-1]["how"]), work="all", operators=False)
    context = RunContext(settings, EventLog.open(settings), inventory, effort, options, on_progress, labels=labels)
    runs = []
    for _ in range(times if chosen else 0):
        summary = measure_cells(chosen, context)
        runs += [summary.run_id] if summary.run_id else []
    return runs
