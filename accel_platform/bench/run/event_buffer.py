"""Buffer for the events of one run: each flush appends a segment named after the run.

A run's segments sort in the order they were written. Thread-safe.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable

from accel_platform.events import Event, EventLog
from accel_platform.events.types import Payload


class EventBuffer:
    """The events of one run that are not yet stored."""

    def __init__(self, log: EventLog, *, prefix: str, source: str, host_id: str, run_id: str) -> None:
        self._log, self._prefix, self._source = log, prefix, source
        self._host_id, self._run_id = host_id, run_id
        self._pending: list[Event] = []
        self._segments = 0
        self._flushed = time.monotonic()
        self._lock = threading.Lock()

    def record(self, *payloads: Payload) -> None:
        """Wrap the payloads as events of this run that happen now."""
        made = (Event.of(p, source=self._source, host_id=self._host_id, run_id=self._run_id) for p in payloads)
        self.add(made)

    def add(self, events: Iterable[Event]) -> None:
        with self._lock:
            self._pending += events

    def flush(self, *, after_s: float = 0.0) -> None:
        """Store what is pending as one segment, unless the last flush was less than `after_s` ago.

        Raises LogUnavailable; what could not be stored stays pending.
        """
        with self._lock:
            if time.monotonic() - self._flushed < after_s:
                return
            if self._pending:
                self._log.append(self._pending, key=f"{self._prefix}{self._run_id}-{self._segments:04d}")
                self._segments += 1
                self._pending = []
            self._flushed = time.monotonic()
