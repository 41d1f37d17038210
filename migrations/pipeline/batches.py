"""Events gathered into few large segments: they compress far better, and cost one wait for the disk, not hundreds."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence

import pyarrow as pa

from accel_platform.events import EventLog
from accel_platform.events.codec import COLUMN, Row

SEGMENT_PREFIX = "import-"
"""Names of the segments that hold imported documents begin with it."""
MOST_EVENTS = 100_000
MOST_BYTES = 16 << 20
"""Of payload, before compression."""
SECONDS = 5.0
"""So much work a kill may cost: the next run does it again."""

_ID, _TYPE, _PAYLOAD, _SAMPLES = (COLUMN[name] for name in ("event_id", "type", "payload", "samples_ns"))
_BYTES_OF_A_SAMPLE = 8


class Batches:
    """The rows of one run on their way into the log. Nothing is kept in a dry run."""

    def __init__(self, log: EventLog, *, dry_run: bool) -> None:
        self._log = log
        self._dry_run = dry_run
        self._rows: list[Row] = []
        self._bytes = 0
        self._since = 0.0
        self.events = 0
        """Stored so far."""
        self.segments: set[str] = set()
        """Names of the segments stored so far."""

    def add(self, rows: Sequence[Row]) -> None:
        """Take these rows; stores what has gathered when it is much, or old. Raises LogUnavailable."""
        if self._dry_run:
            return
        if not self._rows:
            self._since = time.monotonic()
        self._rows += rows
        self._bytes += sum(len(row[_PAYLOAD]) + _BYTES_OF_A_SAMPLE * len(row[_SAMPLES] or ()) for row in rows)
        if len(self._rows) >= MOST_EVENTS or self._bytes >= MOST_BYTES or time.monotonic() - self._since >= SECONDS:
            self.flush()

    def flush(self) -> None:
        """Store what has gathered, as a segment named after the ids in it, which follow from content: the same batch
        stored again, or by another process, is the same segment. Raises LogUnavailable."""
        if not self._rows:
            return
        # Rows of one type lie together, ledger entries first: the next run reads them alone.
        rows = sorted(self._rows, key=lambda row: row[_TYPE])
        key = hashlib.sha256(b"".join(row[_ID] for row in rows)).hexdigest()[:32]
        appended = self._log.append_rows(rows, key=f"{SEGMENT_PREFIX}{key}")
        self.segments.add(appended.segment)
        self.events += appended.events if appended.new else 0
        self._rows, self._bytes = [], 0
        pa.default_memory_pool().release_unused()  # compressing took several times the batch
