"""Speedup of cells over the `cpu` cell that differs in nothing but the hardware."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from accel_platform.analysis.query.cells import SHAPE

_ALIKE = ("model_id", *SHAPE, "provenance", "verified")
BASELINE = "cpu"
_USUAL_BACKEND = "pytorch"
"""Backend of `cpu` that needs no mention."""


def speedups(cells: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a row per cell of other hardware that has a matching `cpu` cell, with the cell's own fields.

    Cells that other processes disturbed have none.

    The baseline is a `cpu` cell of the same device if there is one, else of any. Of these it is one of the same backend
    if there is one, and the fastest of several. `speedup` is the baseline's latency over the cell's. Its limits are the
    extremes over the results of both sides, None if either side has one result.
    """
    baselines: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    cells = [cell for cell in cells if not cell["disturbed"]]
    for cell in cells:
        if cell["hardware"] == BASELINE and cell["latency_ms"]:
            baselines.setdefault(_key(cell), []).append(cell)
    pairs = []
    for cell in cells:
        if cell["hardware"] == BASELINE or not cell["latency_ms"]:
            continue
        found = baselines.get(_key(cell), [])
        own = [b for b in found if b["device_id"] is not None and b["device_id"] == cell["device_id"]]
        if found:
            alike = [b for b in own or found if b["backend"] == cell["backend"]]
            pairs.append(_pair(cell, min(alike or own or found, key=lambda baseline: float(baseline["latency_ms"]))))
    return pairs


def _pair(cell: Mapping[str, Any], baseline: Mapping[str, Any]) -> dict[str, Any]:
    several = min(cell["results"], baseline["results"]) > 1
    usual = baseline["backend"] == _USUAL_BACKEND
    place = (
        "the same device"
        if baseline["device_id"] is not None and baseline["device_id"] == cell["device_id"]
        else baseline["device_name"] or baseline["device_id"] or "a device not named"
    )
    return {
        **cell,
        "baseline": f"{BASELINE} on {place}" if usual else f"{BASELINE} with {baseline['backend']} on {place}",
        "baseline_backend": baseline["backend"],
        "baseline_device_id": baseline["device_id"],
        "baseline_latency_ms": baseline["latency_ms"],
        "baseline_results": baseline["results"],
        "speedup": baseline["latency_ms"] / cell["latency_ms"],
        "speedup_low": baseline["latency_low_ms"] / cell["latency_high_ms"] if several else None,
        "speedup_high": baseline["latency_high_ms"] / cell["latency_low_ms"] if several else None,
        "spread": f"extremes over {cell['results']} and {baseline['results']} results"
        if several
        else "spread unknown: one result on a side",
    }


def _key(cell: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(cell[name] for name in _ALIKE)
