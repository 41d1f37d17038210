"""Choice of the baseline that a cell is compared with, for ratios and speed-ups alike, and the speed-ups."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar, cast

from accel_platform.analysis.query.cells import SHAPE, PooledCell

CellRow = Mapping[str, Any]
"""A `PooledCell`, with whatever fields others added."""
C = TypeVar("C", bound=CellRow)
_CLOSENESS = (
    ("device_id", "backend", "setup", "threads"),
    ("device_id", "backend"),
    ("device_id",),
    ("backend",),
    (),
)
"""Sets of fields in which a baseline may agree with a cell, the closest agreement first."""


class Baselines(Generic[C]):
    """Candidates for baselines, to be looked up for cells.

    The closest baseline has the same device and software setup, else the same device and backend, else the same device,
    else the same backend, else any. Among equally close ones it is the fastest that has right outputs and was not
    disturbed by other processes, as in the matrix.
    """

    def __init__(self, cells: Iterable[C], same: Sequence[str]) -> None:
        """Index the candidates; `same` are the fields in which a cell and its baseline must be equal."""
        self._same = tuple(same)
        self._best: list[dict[tuple[Any, ...], C]] = [{} for _ in _CLOSENESS]
        for cell in cells:
            for best, fields in zip(self._best, _CLOSENESS, strict=True):
                key = self._key(cell, fields)
                best[key] = min(best.get(key, cell), cell, key=_preference)

    def closest(self, cell: CellRow) -> list[C]:
        """Return the best baseline of each closeness, the closest first.

        A cell without a device id agrees with no baseline on the device.
        """
        return [
            best[key]
            for best, fields in zip(self._best, _CLOSENESS, strict=True)
            if (key := self._key(cell, fields)) in best and ("device_id" not in fields or cell["device_id"] is not None)
        ]

    def _key(self, cell: CellRow, fields: Sequence[str]) -> tuple[Any, ...]:
        return tuple(cell[name] for name in (*self._same, *fields))


def _preference(cell: CellRow) -> tuple[bool, float]:
    """Return the sort key that puts the preferred baseline first."""
    doubtful = cell["verified"] is False or bool(cell["disturbed"])
    return doubtful, cell["latency_ms"] or math.inf


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
