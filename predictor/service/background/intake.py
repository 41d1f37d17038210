"""Writing to the log for somebody: judged first, stored once however often it is sent, told when it can be read.

All or nothing: where one item cannot be used none is stored, and every item's reason is told.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from fastapi import Response
from pydantic import BaseModel, Field
from pydantic_core import to_json

from accel_platform.errors import InvalidInput, NotFound
from accel_platform.events import Event, EventLog, Snapshot
from accel_platform.events.audited import AuditedLog
from accel_platform.warehouse.build_layer import broken_rules
from accel_platform.warehouse.reader import Reader

SOURCE = "api"
_PREFIX = "api-"
"""Names of segments that were stored for somebody begin with it."""
READABLE = "within seconds: GET /events/{event_id} answers 202 until the tables have followed; GET /progress tells"
Wrong = list[tuple[int, str]]


class ItemsRefused(InvalidInput):
    """Some items of a request cannot be used; nothing was stored."""

    def __init__(self, wrong: Wrong) -> None:
        self.errors = [{"field": str(place), "message": message} for place, message in wrong]
        told = "; ".join(f"{place}: {message}" for place, message in wrong[:5])
        more = f"; and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        super().__init__(f"{told}{more}. Nothing was stored.")


class StoredResponse(BaseModel):
    """What was stored, durably. The tables follow within seconds; until then reading an id answers 404."""

    event_ids: list[UUID] = Field(description="In the order of the request.")
    segment: str = Field(description="The log's segment that holds them.")
    readable: str = Field(default=READABLE, description="When what was stored can be read.")


class PendingResponse(BaseModel):
    """Stored, and not in the tables yet."""

    event_id: UUID
    readable: str = READABLE


PENDING: dict[int | str, dict[str, Any]] = {
    202: {"model": PendingResponse, "description": "Stored; the tables follow."}
}


@dataclass(frozen=True)
class Stored:
    """What is in the log for a request, now or already."""

    segment: str
    events: tuple[Event, ...]
    replayed: bool
    """Whether it had been stored by an earlier request with the same key."""


def request_id(path: str, body: Any) -> UUID:
    """A UUID of version 8 that follows from what was asked: the cause of the events that are stored for it."""
    digest = hashlib.sha256(path.encode() + b"\0" + to_json(body)).digest()
    return UUID(int=int.from_bytes(digest[:16]) & ~(0xF << 76) & ~(0x3 << 62) | 8 << 76 | 2 << 62)


def store(log: AuditedLog, events: Sequence[Event], *, key: str | None, prefix: str = _PREFIX) -> Stored:
    """Append the events as one segment. The `key` of a client names it, so that sending again stores nothing more.

    It means something to that client alone: what another one sent under the same key is neither told nor in its way.
    The events' `causation_id` says what was asked. Raises InvalidInput where the key was used for something else,
    LogUnavailable.
    """
    writer = log.writer
    digest = hashlib.sha256("\0".join((writer.key_id or "", writer.path, key or "")).encode()).hexdigest()[:40]
    segment = f"{prefix}{digest}" if key is not None else f"{prefix}{events[0].event_id}"
    if log.append(events, key=segment).new:
        return Stored(segment, tuple(events), replayed=False)
    asked = events[0].causation_id
    there = tuple(event for event in log.read(Snapshot(frozenset((segment,)))) if event.causation_id == asked)
    if not there:
        raise InvalidInput(f"The Idempotency-Key {key!r} was used for another request: choose a new one.")
    return Stored(segment, there, replayed=True)


def is_pending(log: EventLog, event_id: UUID, *, tables: str) -> bool:
    """Whether an event was stored for somebody since the snapshot that the tables are of."""
    try:
        known = log.load_snapshot(tables).segments
    except NotFound:  # tables of another log
        return False
    new = Snapshot(log.snapshot().beginning(_PREFIX).segments - known)
    return any(event.event_id == event_id for event in log.read(new))


def pending(log: EventLog, event_id: UUID, reader: Reader) -> Response | None:
    """The answer about an event that the tables will hold in a moment; None for one that nobody stored."""
    if not is_pending(log, event_id, tables=reader.snapshot_id):
        return None
    body = PendingResponse(event_id=event_id).model_dump_json()
    return Response(body, status_code=202, media_type="application/json", headers={"Retry-After": "1"})


def refuse_broken(events: Sequence[Event]) -> None:
    """Raises ItemsRefused where the tables would set a result aside: better said at once than found out later."""
    broken = broken_rules(events)
    wrong = [
        (place, f"breaks the data rule {', '.join(broken[event.event_id])}")
        for place, event in enumerate(events)
        if event.event_id in broken
    ]
    if wrong:
        raise ItemsRefused(wrong)
