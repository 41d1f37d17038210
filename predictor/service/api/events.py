"""Routes for the events of the log, as the tables have them, and for its snapshots."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, Field

from accel_platform.analysis.query.filters import require_recorded_if_empty
from accel_platform.errors import NotFound
from accel_platform.events import EventLog
from accel_platform.events.snapshots import read_snapshot_events
from accel_platform.events.types import SnapshotTaken
from accel_platform.warehouse.reader import Reader
from predictor.advisor.advisor import Advisor
from predictor.schemas.queries import EventsQuery
from predictor.schemas.rows import EventPage, SnapshotId, StoredEvent
from predictor.service.background.intake import PENDING, pending_response
from predictor.service.http.conditional import NOT_MODIFIED, parse_json_columns, table_response
from predictor.service.http.paging import NEWEST_EVENTS, PagedTable
from predictor.service.http.problems import problem_responses

_COLUMNS = ", ".join(f"r.{name}" for name in StoredEvent.model_fields)
_EVENTS = PagedTable("events", _COLUMNS, NEWEST_EVENTS, row_id="event_id")
_ONE = f"SELECT {_COLUMNS} FROM events AS r WHERE event_id = $id"


class OneEvent(BaseModel):
    """An event as the tables have it."""

    event: StoredEvent = Field(description="Envelope, payload and raw samples of the event.")
    snapshot_id: SnapshotId


class NewSnapshot(BaseModel):
    """A snapshot taken for later reference."""

    snapshot_id: str = Field(description="Id of the snapshot.")
    name: str | None = Field(description="Name that it was given; null without one.")
    taken_at: datetime = Field(description="When it was taken.")
    segments: int = Field(description="Number of the log's segments in it.")
    events: int = Field(description="Number of events in it.")


class Snapshots(BaseModel):
    """Present snapshots of log and tables, and the snapshots taken, oldest first."""

    log: str = Field(description="Snapshot of the log as it is now.")
    tables: str | None = Field(description="Snapshot in service; null before the first.")
    taken: list[NewSnapshot] = Field(description="Snapshots that users took, oldest first.")


def router(advisor: Advisor, log: EventLog) -> APIRouter:
    routes = APIRouter(tags=["events"])
    reader = advisor.reader

    @routes.get("/events", response_model=EventPage, responses=problem_responses(404, 422, 503) | NOT_MODIFIED)
    def events(request: Request, query: Annotated[EventsQuery, Query()]) -> Response:
        """List events as the tables have them, the latest recorded first."""

        def read(tables: Reader) -> dict[str, Any]:
            rows, more = _EVENTS.page(tables, query, *query.where())
            require_recorded_if_empty(rows, tables, "events", query.names())
            return {"events": parse_json_columns(rows, "payload"), "next_cursor": more}

        return table_response(reader, request, read)

    @routes.get(
        "/events/{event_id}",
        response_model=OneEvent,
        responses=PENDING | problem_responses(404, 422, 503) | NOT_MODIFIED,
    )
    def event(request: Request, event_id: UUID) -> Response:
        """Return one event; 202 for an event that was just written, until the tables have it."""

        def read(tables: Reader) -> dict[str, Any] | Response:
            rows = parse_json_columns(tables.rows(_ONE, {"id": event_id}), "payload")
            if not rows:
                if (waiting := pending_response(log, event_id, tables)) is not None:
                    return waiting
                raise NotFound(f"There is no event {event_id}.")
            return {"event": rows[0]}

        return table_response(reader, request, read)

    @routes.get("/snapshots", responses=problem_responses(503))
    def snapshots() -> Snapshots:
        """Return the snapshot of the log, that of the tables, and those taken by users."""
        found = []
        for event in read_snapshot_events(log):
            payload = event.payload
            assert isinstance(payload, SnapshotTaken)
            found.append(NewSnapshot(taken_at=event.recorded_at, **payload.model_dump()))
        return Snapshots(log=log.snapshot().id, tables=reader.snapshot_id, taken=found)

    return routes
