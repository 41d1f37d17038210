"""Tables of past snapshots of the log, built in the cache beside those in service."""

from __future__ import annotations

import os
import shutil
import time

from accel_platform.events import EventLog, Snapshot
from accel_platform.events.snapshots import find_snapshot
from accel_platform.settings import Settings, SnapshotSettings
from accel_platform.warehouse import build_layer, publish
from accel_platform.warehouse.layers import Projection, WarehouseDamaged, current

_MAX_SNAPSHOTS = 5
"""Number of snapshots whose tables stay; the least recently used are removed."""


def tables_as_of(settings: Settings, ref: str, *, progress: publish.Progress | None = None) -> SnapshotSettings:
    """Return settings of the installation at the snapshot that `ref` names, without a change to what is in service.

    `ref` is as for `find_snapshot`, whose NotFound and InvalidInput are raised. Raises ChecksFailed if those tables
    break a data rule.
    """
    return tables_at(settings, find_snapshot(EventLog.open(settings), ref), progress=progress)


def tables_at(settings: Settings, snapshot: Snapshot, *, progress: publish.Progress | None = None) -> SnapshotSettings:
    """Return settings of the installation at a snapshot, whose tables are built unless they exist.

    Raises ChecksFailed if they break a data rule.
    """
    past = SnapshotSettings(**settings.model_dump(), snapshot_id=snapshot.id)
    existing = _existing_tables(past)
    if existing is None:
        staged = publish.stage(past, snapshot=snapshot)
        if progress:
            progress(f"made the tables of snapshot {snapshot.id[:12]} ({staged.seconds:.2f} s)")
        publish.check(staged)
        publish.publish(past, staged)
        _remove_least_recent(past)
    else:
        # To the nanosecond, because the file system's own clock ticks only every few milliseconds.
        now = time.time_ns()
        os.utime(past.warehouse_dir, ns=(now, now))
    return past


def _existing_tables(past: SnapshotSettings) -> Projection | None:
    """Return the tables of a past snapshot; None if there are none, or another version of the platform built them."""
    try:
        existing = current(past)
    except WarehouseDamaged:
        return None
    return existing if existing and existing.schema_id == build_layer.schema_id() else None


def _remove_least_recent(past: SnapshotSettings) -> None:
    """Remove the least recently used tables; processes that read them have the files open."""
    by_use = sorted(past.warehouse_dir.parent.iterdir(), key=lambda path: path.stat().st_mtime_ns)
    for directory in by_use[:-_MAX_SNAPSHOTS]:
        if directory != past.warehouse_dir:
            shutil.rmtree(directory, ignore_errors=True)
