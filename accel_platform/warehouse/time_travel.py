"""Tables of the log as it once was, beside those in service. They lie in the cache and are made like any others."""

from __future__ import annotations

import os
import shutil
import time

from accel_platform.events import EventLog, Snapshot
from accel_platform.events.snapshots import find_snapshot
from accel_platform.settings import Settings, SnapshotSettings
from accel_platform.warehouse import build_layer, publish
from accel_platform.warehouse.layers import Projection, WarehouseDamaged, current

_KEPT = 5
"""Snapshots whose tables stay; one that was looked at longest ago goes."""


def tables_as_of(settings: Settings, ref: str, *, progress: publish.Progress | None = None) -> SnapshotSettings:
    """The installation as it was at the snapshot that `ref` means (`events.snapshots.find`); what is in service is not
    touched.

    Raises NotFound or InvalidInput for the reference, ChecksFailed where those tables break a data rule.
    """
    return tables_at(settings, find_snapshot(EventLog.open(settings), ref), progress=progress)


def tables_at(settings: Settings, snapshot: Snapshot, *, progress: publish.Progress | None = None) -> SnapshotSettings:
    """The installation as it was at a snapshot, its tables made now unless they are there. Raises ChecksFailed."""
    past = SnapshotSettings(**settings.model_dump(), snapshot_id=snapshot.id)
    made = _made(past)
    if made is None:
        staged = publish.stage(past, snapshot=snapshot)
        if progress:
            progress(f"made the tables of snapshot {snapshot.id[:12]} ({staged.seconds:.2f} s)")
        publish.check(staged)
        publish.publish(past, staged)
        _forget(past)
    else:
        # To the nanosecond: the file system's own clock ticks every few milliseconds.
        now = time.time_ns()
        os.utime(past.warehouse_dir, ns=(now, now))
    return past


def _made(past: SnapshotSettings) -> Projection | None:
    """Its tables, None where there are none, or not of this version of the platform."""
    try:
        made = current(past)
    except WarehouseDamaged:
        return None
    return made if made and made.schema_id == build_layer.schema_id() else None


def _forget(past: SnapshotSettings) -> None:
    """Who still reads what goes has it open."""
    by_use = sorted(past.warehouse_dir.parent.iterdir(), key=lambda path: path.stat().st_mtime_ns)
    for directory in by_use[:-_KEPT]:
        if directory != past.warehouse_dir:
            shutil.rmtree(directory, ignore_errors=True)
