"""What changed since a snapshot, over tables of the past made for one asker at a time; `analysis.changes` judges."""

from __future__ import annotations

import threading

from accel_platform.analysis.query.filters import Selection
from accel_platform.analysis.regressions.cell_changes import Changes, changes
from accel_platform.errors import Busy
from accel_platform.settings import Settings
from accel_platform.warehouse.reader import Reader
from accel_platform.warehouse.time_travel import tables_as_of


class PastTables:
    """Tables of snapshots are made where there are none, which takes seconds."""

    def __init__(self, settings: Settings, reader: Reader) -> None:
        self._settings, self._reader = settings, reader
        self._making = threading.Lock()

    def changed(self, before: str, after: str | None, selection: Selection, min_change_percent: float) -> Changes:
        """Between two snapshots, each a name, an id or a date; without the second, up to what is in service.

        Raises Busy while somebody else asks, NotFound or InvalidInput for what is no snapshot.
        """
        if not self._making.acquire(blocking=False):
            raise Busy("Tables of the past are being read for somebody else: ask again in a few seconds.")
        try:
            old = Reader(tables_as_of(self._settings, before))
            new = self._reader.pinned() if after is None else Reader(tables_as_of(self._settings, after))
            return changes(old, new, selection, min_change_percent=min_change_percent)
        finally:
            self._making.release()
