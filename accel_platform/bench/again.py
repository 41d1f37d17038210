"""Measuring cells of an earlier run once more, as that run planned them. Whether that is worth it is not known here."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from accel_platform.bench.plan import CellKey, cell_key, fingerprints
from accel_platform.bench.resume import cells_of, effort_of
from accel_platform.bench.runner import Tell, measure_cells
from accel_platform.bench.work import How
from accel_platform.events import EventLog
from accel_platform.hardware.detect import detect
from accel_platform.settings import Settings


def measure_again(
    plan: Mapping[str, Any],
    wanted: Collection[CellKey],
    times: int,
    settings: Settings,
    *,
    labels: Mapping[str, str],
    on_progress: Tell | None = None,
) -> list[str]:
    """Measure those cells of a run's recorded plan that are `wanted`, in `times` new runs; the ids of the runs.

    A key holds a fingerprint, so only what this host would measure under the same one is measured: there may be none.
    Each run gives every cell a new process. On KeyboardInterrupt what was measured is kept.
    """
    cells = cells_of(plan)
    inventory = detect({cell.hardware for cell in cells})
    here = fingerprints(inventory)
    chosen = [cell for cell in cells if cell_key(cell, here.get(cell.hardware, "")) in wanted]
    how = replace(How(**plan["how"]), work="all", operators=False)
    log, runs = EventLog.open(settings), []
    for _ in range(times if chosen else 0):
        summary = measure_cells(
            chosen,
            settings,
            log,
            effort=effort_of(plan),
            how=how,
            on_progress=on_progress,
            inventory=inventory,
            labels=labels,
        )
        runs += [summary.run_id] if summary.run_id else []
    return runs
