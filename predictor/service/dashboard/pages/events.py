"""Pages of the event log: the list of events, and one event."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Depends, Request, Response
from pydantic import Field

from accel_platform.analysis.query.filters import require_recorded_if_empty
from accel_platform.errors import NotFound
from predictor.schemas.queries import EventsQuery
from predictor.service.dashboard.rendering import DashboardSite
from predictor.service.http.paging import NEWEST_EVENTS, PagedTable
from predictor.service.http.query_strings import FilledForm, PageForm

_TYPES = """
SELECT type, count(*) AS events, max(recorded_at) AS newest_at FROM events GROUP BY type ORDER BY events DESC, type
"""
_COLUMNS = "r.event_id, r.type, r.occurred_at, r.recorded_at, r.source, r.host_id, r.run_id"
_EVENTS = PagedTable("events", _COLUMNS, NEWEST_EVENTS)
# Events caused by an event.
_CAUSED = "SELECT event_id, type, recorded_at FROM events WHERE causation_id = ? ORDER BY event_id LIMIT 20"


class EventsPageParams(EventsQuery):
    """Filters and page of events."""

    limit: int = Field(default=50, ge=1, le=1000)


def router(site: DashboardSite) -> APIRouter:
    routes = APIRouter(include_in_schema=False, prefix="/events")

    @routes.get("")
    def events(
        request: Request, form: Annotated[FilledForm[EventsPageParams], Depends(PageForm(EventsPageParams))]
    ) -> Response:
        return site.form_page(request, "events.html", form, lambda query: _list(site, query))

    @routes.get("/{event_id}")
    def event(request: Request, event_id: UUID) -> Response:
        return site.page(request, "event.html", lambda: _one(site, event_id))

    return routes


def _list(site: DashboardSite, query: EventsPageParams) -> dict[str, Any]:
    rows, more = _EVENTS.page(site.reader, query, *query.where())
    require_recorded_if_empty(rows, site.reader, "events", query.names())
    choices = site.choices("events", "source", "host_id")
    types = site.cached("event types", lambda: site.reader.rows(_TYPES))
    return {"query": query, "events": rows, "more": more, "types": types, "choices": choices}


def _one(site: DashboardSite, event_id: UUID) -> dict[str, Any]:
    found = site.reader.rows(
        "SELECT * EXCLUDE (samples_ns), len(samples_ns) AS samples FROM events WHERE event_id = ?", (event_id,)
    )
    if not found:
        raise NotFound(f"No event has the id {event_id}: the list of events shows all there are")
    return {"event": found[0], "caused": site.reader.rows(_CAUSED, (event_id,))}
