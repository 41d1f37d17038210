"""What happens, for those who listen: new snapshots in service, and requests that change. How it is sent is a route's.

One thread looks, however many listen. It keeps what it told last, so that a listener who comes back misses nothing.
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

from accel_platform.bench.requests.requests import Requests, State
from accel_platform.errors import AccelError
from accel_platform.events import EventLog
from accel_platform.warehouse.reader import Reader

LOOK_EVERY_S = 0.5
_KEPT = 1_000
_COUNT = "SELECT count(*) AS results FROM results"


@dataclass(frozen=True)
class ChangeNotice:
    """One thing that happened. Ids sort as it was told, within one process."""

    number: int
    kind: str
    """`snapshot` or `request`."""
    data: dict[str, Any]


class ChangeFeed:
    """Looks at pointer and log while anybody listens; safe to share between threads."""

    def __init__(self, reader: Reader, log: EventLog) -> None:
        self._reader = reader
        self._requests = Requests(log)
        self._states: dict[UUID, State] = {}
        self._looked = False
        self._process = token_hex(4)
        self._kept: deque[ChangeNotice] = deque(maxlen=_KEPT)
        self._present: ChangeNotice | None = None
        self._listeners = 0
        self.ending = threading.Event()
        """Listeners are to go home."""

    def watch(self) -> None:
        """Until `ending` is set."""
        while not self.ending.wait(LOOK_EVERY_S):
            if self._listeners:
                self._look()

    @contextmanager
    def listening(self) -> Iterator[None]:
        self._listeners += 1
        try:
            yield
        finally:
            self._listeners -= 1

    def after(self, last_id: str | None) -> list[ChangeNotice]:
        """What was told after that id; for one that is not known here, how things are."""
        kept = list(self._kept)
        process, _, number = (last_id or "").partition("-")
        known = process == self._process and number.isdecimal() and len(number) < 20
        if known and (not kept or kept[0].number <= int(number) + 1):
            return [told for told in kept if told.number > int(number)]
        return [self._present] if self._present is not None else []

    def id_of(self, told: ChangeNotice) -> str:
        return f"{self._process}-{told.number}"

    def _look(self) -> None:
        try:
            self._look_at_tables()
            self._look_at_requests()
        except AccelError:
            return  # nothing to tell of where nothing can be read, and every other route says why

    def _look_at_tables(self) -> None:
        now = self._reader.pinned()
        before = self._present.data if self._present else None
        if before is not None and before["snapshot_id"] == now.snapshot_id:
            return
        [counted] = now.rows(_COUNT)
        new = counted["results"] - before["results"] if before else None
        self._present = self._tell("snapshot", {"snapshot_id": now.snapshot_id, **counted, "new_results": new})

    def _look_at_requests(self) -> None:
        if not self._requests.look() and self._looked:
            return
        first, self._looked = not self._looked, True
        for one in self._requests.all():
            if self._states.get(one.id) == one.state:
                continue
            self._states[one.id] = one.state
            if not first:
                closed = one.closed.reason if one.closed else None
                about = {"request_id": str(one.id), "state": one.state, "hardware": one.asked.hardware}
                self._tell("request", {**about, "claimed_by": one.claimed_by, "reason": closed})

    def _tell(self, kind: str, data: dict[str, Any]) -> ChangeNotice:
        told = ChangeNotice(self._kept[-1].number + 1 if self._kept else 1, kind, data)
        self._kept.append(told)
        return told


def on_leaving(end: threading.Event) -> None:
    """Set `end` when the process is told to stop, before the server waits for its streams to end."""
    if threading.current_thread() is not threading.main_thread():
        return  # signals are somebody else's
    for number in (signal.SIGTERM, signal.SIGINT):
        before = signal.getsignal(number)
        if callable(before):

            def both(received: int, frame: FrameType | None, before: Any = before) -> None:
                end.set()
                before(received, frame)

            signal.signal(number, both)
