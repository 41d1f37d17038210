"""Choice of the baseline that a cell is compared with, for ratios and speedups alike."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

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
