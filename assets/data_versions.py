"""Snapshots behind assets, passed down the graph as metadata and data versions."""

from __future__ import annotations

from typing import Any

import dagster as dg

from accel_platform.errors import NotFound
from accel_platform.events import EventLog

_KEY = "snapshot_id"


def snapshot_metadata(snapshot_id: str) -> dict[str, Any]:
    """Return the metadata by which `require_snapshot_id` finds the snapshot again."""
    return {_KEY: dg.MetadataValue.text(snapshot_id)}


def require_snapshot_id(context: dg.AssetExecutionContext | dg.AssetCheckExecutionContext, asset: str) -> str:
    """Return the snapshot of the asset's latest materialization. Fails with what to do before the first."""
    snapshot_id = last_snapshot_id(context, asset)
    if snapshot_id is None:
        raise dg.Failure(f"{asset} was never materialized here: materialize it first, or together with this.")
    return snapshot_id


def last_snapshot_id(
    context: dg.AssetExecutionContext
    | dg.AssetCheckExecutionContext
    | dg.SensorEvaluationContext
    | dg.ScheduleEvaluationContext,
    asset: str,
) -> str | None:
    """Return the snapshot of the asset's latest materialization, None before the first."""
    event = context.instance.get_latest_materialization_event(dg.AssetKey(asset))
    if event is None or event.asset_materialization is None:
        return None
    return str(event.asset_materialization.metadata[_KEY].value)


def segments_of(log: EventLog, snapshot_id: str | None) -> frozenset[str]:
    """Return the segments of a snapshot; none for a missing snapshot or one of another log."""
    try:
        return log.load_snapshot(snapshot_id).segments if snapshot_id else frozenset()
    except NotFound:
        return frozenset()


def checked_at(check: dg.AssetCheckEvaluation) -> str:
    """Return the snapshot that an asset check evaluated."""
    return str(check.metadata[_KEY].value)
