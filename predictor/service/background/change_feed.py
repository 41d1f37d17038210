"""Feed of changes for listeners: new snapshots in service, and benchmark requests that change.

One thread polls for all listeners. The last notices are stored, so that a listener who reconnects misses nothing.
"""

from __future__ import annotations

import signal
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from secrets import token_hex
from types import FrameType
from typing import Any
from uuid import UUID

from accel_platform.bench.requests.lifecycle import Requests, State
from accel_platform.errors import AccelError
from accel_platform.events import EventLog
from accel_platform.warehouse.reader import Reader

POLL_INTERVAL_S = 0.5
_MAX_NOTICES = 1_000
_COUNT = "SELECT count(*) AS results FROM results"


@dataclass(frozen=True)
class ChangeNotice:
    """One change; numbers grow with time within one process."""

    number: int
    kind: str
    """`snapshot` or `request`."""
    data: dict[str, Any]


class ChangeFeed:
    """Notices from polling the published snapshot and the log while anybody listens; safe to share between threads."""

    def __init__(self, reader: Reader, log: EventLog) -> None:
        self._reader = reader
        self._requests = Requests(log)
        self._states: dict[UUID, State] = {}
        self._polled = False
        self._process = token_hex(4)
        self._notices: deque[ChangeNotice] = deque(maxlen=_MAX_NOTICES)
        self._latest_snapshot: ChangeNotice | None = None
        self._listeners = 0
        self.closing = threading.Event()
        """Set when the service stops; listeners then disconnect."""

    def watch(self) -> None:
        """Poll until `closing` is set."""
        while not self.closing.wait(POLL_INTERVAL_S):
            if self._listeners:
                self._poll()

    @contextmanager
    def listening(self) -> Iterator[None]:
        self._listeners += 1
        try:
            yield
        finally:
            self._listeners -= 1

    def after(self, last_id: str | None) -> list[ChangeNotice]:
        """Return the notices after an id; for an id of another process or too old, the present snapshot's."""
        notices = list(self._notices)
        process, _, number = (last_id or "").partition("-")
        known = process == self._process and number.isdecimal() and len(number) < 20
        if known and (not notices or notices[0].number <= int(number) + 1):
            return [notice for notice in notices if notice.number > int(number)]
        return [self._latest_snapshot] if self._latest_snapshot is not None else []

    def id_of(self, notice: ChangeNotice) -> str:
        return f"{self._process}-{notice.number}"

    def _poll(self) -> None:
        try:
            self._poll_tables()
            self._poll_requests()
        except AccelError:
            return  # because every other route reports the problem

    def _poll_tables(self) -> None:
        now = self._reader.pinned()
        previous = self._latest_snapshot.data if self._latest_snapshot else None
        if previous is not None and previous["snapshot_id"] == now.snapshot_id:
            return
        [counts] = now.rows(_COUNT)
        new = counts["results"] - previous["results"] if previous else None
        self._latest_snapshot = self._append("snapshot", {"snapshot_id": now.snapshot_id, **counts, "new_results": new})

    def _poll_requests(self) -> None:
        if not self._requests.refresh() and self._polled:
            return
        first, self._polled = not self._polled, True
        for request in self._requests.all():
            if self._states.get(request.id) == request.state:
                continue
            self._states[request.id] = request.state
            if not first:
                closed = request.closed.reason if request.closed else None
                about = {"request_id": str(request.id), "state": request.state, "hardware": request.payload.hardware}
                self._append("request", {**about, "claimed_by": request.claimed_by, "reason": closed})

    def _append(self, kind: str, data: dict[str, Any]) -> ChangeNotice:
        notice = ChangeNotice(self._notices[-1].number + 1 if self._notices else 1, kind, data)
        self._notices.append(notice)
        return notice


def set_on_shutdown(event: threading.Event) -> None:
    """Set `event` when the process is told to stop, before the server waits for its streams to end."""
    if threading.current_thread() is not threading.main_thread():
        return  # because only the main thread may set signal handlers
    received_before = False
    for number in (signal.SIGTERM, signal.SIGINT):
        previous = signal.getsignal(number)
        if callable(previous):

            def handler(received: int, frame: FrameType | None, previous: Any = previous) -> None:
                nonlocal received_before
                # A second signal may interrupt `set`, which holds a lock that this thread cannot take twice.
                if not received_before:
                    received_before = True
                    event.set()
                previous(received, frame)

            signal.signal(number, handler)
