"""Writing to the log for somebody: judged first, stored once however often it is sent, told when it can be read.

All or nothing: where one item cannot be used none is stored, and every item's reason is told.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from pydantic import BaseModel, Field
from pydantic_core import to_json

from accel_platform.errors import InvalidInput
from accel_platform.events import Event, EventLog, Snapshot
from accel_platform.warehouse.project import broken_rules

SOURCE = "api"
Wrong = list[tuple[int, str]]


class ItemsRefused(InvalidInput):
    """Some items of a request cannot be used; nothing was stored."""

    def __init__(self, wrong: Wrong) -> None:
        self.errors = [{"field": str(place), "message": message} for place, message in wrong]
        told = "; ".join(f"{place}: {message}" for place, message in wrong[:5])
        more = f"; and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        super().__init__(f"{told}{more}. Nothing was stored.")


class Written(BaseModel):
    """What was stored, durably. The tables follow within seconds; until then reading an id answers 404."""

    event_ids: list[UUID] = Field(description="In the order of the request.")
    segment: str = Field(description="The log's segment that holds them.")
    readable: str = Field(
        default="within seconds: GET /events/{event_id} answers 404 until the tables have followed, and GET /progress"
        " tells each time they have",
        description="When what was stored can be read.",
    )


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


def store(log: EventLog, events: Sequence[Event], *, path: str, key: str | None, prefix: str = "api-") -> Stored:
    """Append the events as one segment. The `key` of a client names it, so that sending again stores nothing more.

    The events' `causation_id` says what was asked. Raises InvalidInput where the key was used for something else,
    LogUnavailable.
    """
    digest = hashlib.sha256(f"{path}\0{key}".encode()).hexdigest()[:40]
    segment = f"{prefix}{digest}" if key is not None else f"{prefix}{events[0].event_id}"
    if log.append(events, key=segment).new:
        return Stored(segment, tuple(events), replayed=False)
    asked = events[0].causation_id
    there = tuple(event for event in log.read(Snapshot(frozenset((segment,)))) if event.causation_id == asked)
    if not there:
        raise InvalidInput(f"The Idempotency-Key {key!r} was used for another request: choose a new one.")
    return Stored(segment, there, replayed=True)


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
