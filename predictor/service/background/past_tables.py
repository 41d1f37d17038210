"""Comparison of past snapshots, with their tables built on demand for one client at a time."""

from __future__ import annotations

import threading

from accel_platform.analysis.query.filters import Selection
from accel_platform.analysis.regressions.snapshot_comparison import CellChanges, compare_cells
from accel_platform.errors import Busy
from accel_platform.settings import Settings
from accel_platform.warehouse.reader import Reader
from accel_platform.warehouse.time_travel import tables_as_of


class PastTables:
    """Changes between snapshots; building the tables of one takes seconds."""

    def __init__(self, settings: Settings, reader: Reader) -> None:
        self._settings, self._reader = settings, reader
        self._building = threading.Lock()

    def compare(self, before: str, after: str | None, selection: Selection, min_change_percent: float) -> CellChanges:
        """Return the changes between two snapshots, each a name, an id or a date; None is the one in service.

        Raises Busy while another client's tables are built, NotFound or InvalidInput for an unknown snapshot.
        """
        if not self._building.acquire(blocking=False):
            raise Busy("Tables of the past are being read for somebody else: ask again in a few seconds.")
        try:
            old = Reader(tables_as_of(self._settings, before))
            new = self._reader.pinned() if after is None else Reader(tables_as_of(self._settings, after))
            return compare_cells(old, new, selection, min_change_percent=min_change_percent)
        finally:
            self._building.release()
