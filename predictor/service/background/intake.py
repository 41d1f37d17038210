"""Writing to the log for clients.

Items are validated, stored once however often they are sent, and readable within seconds.

All items of a request are stored or none; the error lists the reason for each item.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
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
from accel_platform.warehouse.rules import RULES

SOURCE = "api"
SEGMENT_PREFIX = "api-"
"""Prefix of the names of segments stored for clients."""
READABLE = "within seconds: GET /events/{event_id} answers 202 until the tables have followed; GET /progress tells"
MarkSuspicious = Callable[[Sequence[Event]], Sequence[Event]]
"""Return the events with the suspicions of their results, by the rules of imports."""
ItemErrors = list[tuple[int, str]]


class InvalidItems(InvalidInput):
    """Some items of a request cannot be used; nothing was stored."""

    def __init__(self, errors: ItemErrors) -> None:
        self.errors = [{"field": str(index), "message": message} for index, message in errors]
        listed = "; ".join(f"{index}: {message}" for index, message in errors[:5])
        more = f"; and {len(errors) - 5} more" if len(errors) > 5 else ""
        super().__init__(f"{listed}{more}. Nothing was stored.")


class StoredResponse(BaseModel):
    """Receipt of durably stored events; the tables follow within seconds."""

    event_ids: list[UUID] = Field(description="In the order of the request.")
    segment: str = Field(description="The log's segment that holds them.")
    suspects: list[UUID] = Field(
        default=[], description="Results that count nowhere, because a rule doubts them: GET /results/{id} says why."
    )
    readable: str = Field(default=READABLE, description="When what was stored can be read.")


class PendingResponse(BaseModel):
    """Receipt of stored events that the tables do not hold yet."""

    event_id: UUID = Field(description="Id of the stored event.")
    readable: str = Field(default=READABLE, description="When what was stored can be read.")


PENDING: dict[int | str, dict[str, Any]] = {
    202: {"model": PendingResponse, "description": "Stored; the tables follow."}
}


@dataclass(frozen=True)
class StoredEvents:
    """The events of a request in the log."""

    segment: str
    events: tuple[Event, ...]
    replayed: bool
    """True if an earlier request with the same key stored them."""


def request_id(path: str, body: Any) -> UUID:
    """Return a UUID of version 8 from a request's path and body: the `causation_id` of its events."""
    digest = hashlib.sha256(path.encode() + b"\0" + to_json(body)).digest()
    return UUID(int=int.from_bytes(digest[:16]) & ~(0xF << 76) & ~(0x3 << 62) | 8 << 76 | 2 << 62)


def store_once(
    log: AuditedLog, events: Sequence[Event], *, key: str | None, prefix: str = SEGMENT_PREFIX
) -> StoredEvents:
    """Append the events as one segment, unless an earlier request with the same idempotency `key` stored them.

    Keys are separate for each client and path. Raises InvalidInput where the key was used for another request (by its
    `causation_id`), LogUnavailable where the log cannot be written.
    """
    segment = f"{prefix}{events[0].event_id}" if key is None else _keyed_segment(log, key, prefix)
    if log.append(events, key=segment).new:
        return StoredEvents(segment, tuple(events), replayed=False)
    cause = events[0].causation_id
    earlier = tuple(event for event in log.read(Snapshot(frozenset((segment,)))) if event.causation_id == cause)
    if not earlier:
        raise InvalidInput(f"The Idempotency-Key {key!r} was used for another request: choose a new one.")
    return StoredEvents(segment, earlier, replayed=True)


def is_stored(log: AuditedLog, key: str | None) -> bool:
    """Return whether an earlier request has stored events under this idempotency key."""
    return key is not None and _keyed_segment(log, key, SEGMENT_PREFIX) in log.snapshot().segments


def _keyed_segment(log: AuditedLog, key: str, prefix: str) -> str:
    writer = log.writer
    digest = hashlib.sha256("\0".join((writer.key_id or "", writer.path, key)).encode()).hexdigest()[:40]
    return f"{prefix}{digest}"


def is_pending(log: EventLog, event_id: UUID, *, tables: str) -> bool:
    """Return whether an event was stored for a client after the tables' snapshot."""
    try:
        published = log.load_snapshot(tables).segments
    except NotFound:  # because the tables are of another log
        return False
    new = Snapshot(log.snapshot().beginning(SEGMENT_PREFIX).segments - published)
    return any(event.event_id == event_id for event in log.read(new))


def pending_response(log: EventLog, event_id: UUID, reader: Reader) -> Response | None:
    """Return a 202 for an event that the tables do not hold yet; None for one that was never stored."""
    if not is_pending(log, event_id, tables=reader.snapshot_id):
        return None
    body = PendingResponse(event_id=event_id).model_dump_json()
    return Response(body, status_code=202, media_type="application/json", headers={"Retry-After": "1"})


def require_data_rules(events: Sequence[Event]) -> None:
    """Raise InvalidItems for results that break a data rule, because the tables would set them aside later."""
    broken = broken_rules(events)
    rules = {rule.name: f"the data rule {rule.name}: {rule.describe().removesuffix('.')}" for rule in RULES}
    errors = [
        (index, f"breaks {' and '.join(rules[name] for name in broken[event.event_id])}")
        for index, event in enumerate(events)
        if event.event_id in broken
    ]
    if errors:
        raise InvalidItems(errors)
