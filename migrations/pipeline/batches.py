"""Batching of imported events into few large segments, which compress better and need fewer disk syncs."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence

import pyarrow as pa

from accel_platform.events import EventLog
from accel_platform.events.codec import COLUMN, Row

SEGMENT_PREFIX = "import-"
"""Names of the segments that hold imported documents begin with it."""
MAX_EVENTS = 100_000
MAX_BYTES = 16 << 20
"""Largest payload of a batch in bytes, before compression."""
MAX_AGE_S = 5.0
"""Oldest batch in seconds; a killed import repeats at most this much work."""

_ID, _TYPE, _PAYLOAD, _SAMPLES = (COLUMN[name] for name in ("event_id", "type", "payload", "samples_ns"))
_SAMPLE_BYTES = 8


class EventBatcher:
    """Buffer of one run's rows before they are appended to the log. A dry run stores nothing."""

    def __init__(self, log: EventLog, *, dry_run: bool) -> None:
        self._log = log
        self._dry_run = dry_run
        self._rows: list[Row] = []
        self._bytes = 0
        self._since = 0.0
        self.events = 0
        """Number of events stored so far."""
        self.segments: set[str] = set()
        """Names of the segments stored so far."""

    def add(self, rows: Sequence[Row]) -> None:
        """Add rows; store the batch when it is large or old. Raises LogUnavailable."""
        if self._dry_run:
            return
        if not self._rows:
            self._since = time.monotonic()
        self._rows += rows
        self._bytes += sum(len(row[_PAYLOAD]) + _SAMPLE_BYTES * len(row[_SAMPLES] or ()) for row in rows)
        if len(self._rows) >= MAX_EVENTS or self._bytes >= MAX_BYTES or time.monotonic() - self._since >= MAX_AGE_S:
            self.flush()

    def flush(self) -> None:
        """Store the batch as a segment named after its event ids. Raises LogUnavailable.

        Ids follow from content, so a batch stored again, or by another process, is the same segment.
        """
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
