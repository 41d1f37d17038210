"""Benchmark requests for routes and pages, read from the log at each look-up."""

from __future__ import annotations

import threading
from uuid import UUID

from accel_platform.bench.requests.lifecycle import Request, Requests
from accel_platform.events import EventLog


class RequestLookup:
    """The requests of the log, refreshed by each look-up; safe to share between threads."""

    def __init__(self, log: EventLog) -> None:
        self._requests = Requests(log)
        self._lock = threading.Lock()

    def all(self) -> list[Request]:
        """Return all requests, the newest first."""
        with self._lock:
            self._requests.refresh()
            return self._requests.all()[::-1]

    def get(self, request_id: UUID) -> Request:
        """Return one request. Raises NotFound."""
        with self._lock:
            self._requests.refresh()
            return self._requests[request_id]
