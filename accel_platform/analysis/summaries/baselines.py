"""Baselines: which of several cells another one is compared with, for ratios and speedups alike."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

Cell = Mapping[str, Any]
C = TypeVar("C", bound=Cell)
_CLOSENESS = (
    ("device_id", "backend", "setup", "threads"),
    ("device_id", "backend"),
    ("device_id",),
    ("backend",),
    (),
)
"""Fields in which a baseline agrees with a cell, the closest first."""


class Baselines(Generic[C]):
    """Cells that others are compared with.

    The closest of them is of the same device and backend, else of the same device, else of the same backend, else any.
    Of several it is the fastest whose outputs are right and that no other process disturbed, as in the matrix.
    """

    def __init__(self, cells: Iterable[C], same: Sequence[str]) -> None:
        """Take the cells; `same` are the fields in which a cell and its baseline must be equal."""
        self._same = tuple(same)
        self._best: list[dict[tuple[Any, ...], C]] = [{} for _ in _CLOSENESS]
        for cell in cells:
            for best, fields in zip(self._best, _CLOSENESS, strict=True):
                key = self._key(cell, fields)
                best[key] = min(best.get(key, cell), cell, key=_preference)

    def closest(self, cell: Cell) -> list[C]:
        """Return the cells that a cell may be compared with, the closest first.

        One without a device is on none of theirs.
        """
        return [
            best[key]
            for best, fields in zip(self._best, _CLOSENESS, strict=True)
            if (key := self._key(cell, fields)) in best and ("device_id" not in fields or cell["device_id"] is not None)
        ]

    def _key(self, cell: Cell, fields: Sequence[str]) -> tuple[Any, ...]:
        return tuple(cell[name] for name in (*self._same, *fields))


def _preference(cell: Cell) -> tuple[bool, float]:
    doubtful = cell["verified"] is False or bool(cell["disturbed"])
    return doubtful, cell["latency_ms"] or math.inf
