"""Pages of the event log: the list of events, and one event."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Depends, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from accel_platform.analysis.query.filters import require_recorded_if_empty
from accel_platform.errors import NotFound
from predictor.schemas.queries import Moment
from predictor.service.dashboard.rendering import DashboardSite
from predictor.service.dashboard.urls import query_params

_SHOWN = 50
_TYPES = """
SELECT type, count(*) AS events, max(recorded_at) AS newest_at FROM events GROUP BY type ORDER BY events DESC, type
"""
_EVENTS = """
SELECT event_id, type, occurred_at, recorded_at, source, host_id, run_id FROM events
WHERE ($type IS NULL OR type = $type) AND ($source IS NULL OR source = $source)
    AND ($host_id IS NULL OR host_id = $host_id) AND ($run_id IS NULL OR run_id = $run_id)
    AND ($since IS NULL OR recorded_at >= $since) AND ($until IS NULL OR recorded_at < $until)
    AND ($before IS NULL OR event_id < $before)
ORDER BY event_id DESC LIMIT $limit
"""
# Events caused by an event.
_CAUSED = "SELECT event_id, type, recorded_at FROM events WHERE causation_id = ? ORDER BY event_id LIMIT 20"


class EventsPageParams(BaseModel):
    """Query of the events page: filters and the id to continue before."""

    model_config = ConfigDict(extra="forbid")
    type: str | None = Field(default=None, max_length=200)
    source: str | None = Field(default=None, max_length=200)
    host_id: str | None = Field(default=None, max_length=200)
    run_id: str | None = Field(default=None, max_length=200)
    since: Moment = None
    until: Moment = None
    before: UUID | None = None


def router(site: DashboardSite) -> APIRouter:
    routes = APIRouter(include_in_schema=False, prefix="/events")

    @routes.get("")
    def events(
        request: Request, query: Annotated[EventsPageParams, Depends(query_params(EventsPageParams))]
    ) -> Response:
        return site.page(request, "events.html", lambda: _list(site, query))

    @routes.get("/{event_id}")
    def event(request: Request, event_id: UUID) -> Response:
        return site.page(request, "event.html", lambda: _one(site, event_id))

    return routes


def _list(site: DashboardSite, query: EventsPageParams) -> dict[str, Any]:
    rows = site.reader.rows(_EVENTS, {**query.model_dump(), "limit": _SHOWN + 1})
    given = query.model_dump(include={"type", "source", "host_id", "run_id"})
    require_recorded_if_empty(rows, site.reader, "events", given)
    more = rows[_SHOWN - 1]["event_id"] if len(rows) > _SHOWN else None
    lists = "list_sort(list(DISTINCT source)) AS source, list_sort(list(DISTINCT host_id)) AS host_id"
    [choices] = site.cached("event choices", lambda: site.reader.rows(f"SELECT {lists} FROM events"))
    types = site.cached("event types", lambda: site.reader.rows(_TYPES))
    return {"query": query, "events": rows[:_SHOWN], "more": more, "types": types, "choices": choices}


def _one(site: DashboardSite, event_id: UUID) -> dict[str, Any]:
    found = site.reader.rows(
        "SELECT * EXCLUDE (samples_ns), len(samples_ns) AS samples FROM events WHERE event_id = ?", (event_id,)
    )
    if not found:
        raise NotFound(f"No event has the id {event_id}: the list of events shows all there are")
    return {"event": found[0], "caused": site.reader.rows(_CAUSED, (event_id,))}
