"""Speedup of cells over the `cpu` cell that differs in nothing but the hardware."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from accel_platform.analysis.query.cells import SHAPE, PooledCell
from accel_platform.analysis.summaries.baselines import Baselines

_ALIKE = ("model_id", *SHAPE, "provenance", "verified")
BASELINE = "cpu"
_USUAL_BACKEND = "pytorch"
"""Backend of `cpu` that needs no mention."""


class SpeedupCell(PooledCell):
    """A cell with its baseline, the closest `cpu` cell by the rule of `Baselines`, and its speedup over it."""

    baseline: str
    """Hardware name and device of the baseline in words."""
    baseline_backend: str | None
    baseline_device_id: str | None
    baseline_latency_ms: float
    baseline_results: int
    speedup: float
    """The baseline's latency over the cell's."""
    speedup_low: float | None
    speedup_high: float | None
    """Both limits are extremes over the results of both sides, None if either side has one result."""
    spread: str
    """Meaning of the limits, in words."""


def speedups(cells: Sequence[Mapping[str, Any]]) -> list[SpeedupCell]:
    """Return each cell of other hardware that has a matching `cpu` cell, with its speedup.

    Cells that other processes disturbed have none.
    """
    timed = [cell for cell in cells if not cell["disturbed"] and cell["latency_ms"]]
    baselines = Baselines((cell for cell in timed if cell["hardware"] == BASELINE), _ALIKE)
    pairs = ((cell, baselines.closest(cell)) for cell in timed if cell["hardware"] != BASELINE)
    return [_pair(cell, closest[0]) for cell, closest in pairs if closest]


def _pair(cell: Mapping[str, Any], baseline: Mapping[str, Any]) -> SpeedupCell:
    several = min(cell["results"], baseline["results"]) > 1
    usual = baseline["backend"] == _USUAL_BACKEND
    place = (
        "the same device"
        if baseline["device_id"] is not None and baseline["device_id"] == cell["device_id"]
        else baseline["device_name"] or baseline["device_id"] or "a device not named"
    )
    fields = {
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
    return cast("SpeedupCell", fields)
