"""Routes that add to the log: results that somebody states, and events of measurements made elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Body, Header, Request, Response

from accel_platform.events import Event
from accel_platform.events.audited import AuditedLog
from predictor.service.background.intake import SOURCE, ItemsRefused, StoredResponse, refuse_broken, request_id, store
from predictor.service.http.bodies import LinesRoute, or_lines, strictly
from predictor.service.http.problems import documented
from predictor.service.schemas.ingest import ClaimedResult, Claims, Posted, PostedEvents, unbelievable

Key = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=200,
        pattern=r"^[!-~]+$",
        description="Names this request among those of one API key: sent again with the same body it stores nothing"
        " more and answers the same.",
    ),
]
LogFor = Callable[[Request], AuditedLog]
"""The log in the name of whoever asks."""


def router(log_for: LogFor, written: Callable[[], None]) -> APIRouter:
    routes = APIRouter(route_class=LinesRoute)
    problems = documented(400, 413, 415, 422, 503)

    @routes.post(
        "/results",
        status_code=202,
        response_model=StoredResponse,
        responses=problems,
        openapi_extra=or_lines("ClaimedResult"),
        dependencies=[strictly(Claims)],
        tags=["results"],
    )
    def post_results(
        request: Request, response: Response, claims: Annotated[Claims, Body()], idempotency_key: Key = None
    ) -> StoredResponse:
        """Add one result or several that somebody states; all are stored or none.

        They are `imported` and count like those of an imported file. What a process of this platform measured, with its
        samples and its verification, goes to `/events`.
        """
        items: Sequence[ClaimedResult] = claims if isinstance(claims, list) else [claims]
        cause = request_id(request.url.path, items)
        events = [_event(claim, cause) for claim in items]
        return _answered(request, response, events, idempotency_key)

    @routes.post(
        "/events",
        status_code=202,
        response_model=StoredResponse,
        responses=problems,
        openapi_extra=or_lines("Posted"),
        dependencies=[strictly(PostedEvents)],
        tags=["events"],
    )
    def post_events(
        request: Request, response: Response, posted: Annotated[PostedEvents, Body()], idempotency_key: Key = None
    ) -> StoredResponse:
        """Add events of measurements made where the log is not; all are stored or none.

        A result brings samples, device and fingerprint, and in the same request the verification of its cell, by which
        alone it may count as compatible. The service cannot repeat the measurement: it takes the writer's word for it,
        and `source` says that it came this way.
        """
        items: Sequence[Posted] = posted if isinstance(posted, list) else [posted]
        if wrong := unbelievable(items):
            raise ItemsRefused(wrong)
        cause = request_id(request.url.path, items)
        events = [_event(item, cause, event_id=item.event_id) for item in items]
        return _answered(request, response, events, idempotency_key)

    def _answered(request: Request, response: Response, events: list[Event], key: str | None) -> StoredResponse:
        refuse_broken(events)
        stored = store(log_for(request), events, key=key)
        written()
        ids = [event.event_id for event in stored.events]
        if stored.replayed:
            response.headers["Idempotency-Replayed"] = "true"
        response.headers["Location"] = f"{request.url.path}/{ids[0]}"
        return StoredResponse(event_ids=ids, segment=stored.segment)

    return routes


def _event(item: ClaimedResult | Posted, cause: UUID, event_id: UUID | None = None) -> Event:
    return Event.of(
        item.recorded(),
        source=SOURCE,
        occurred_at=item.occurred_at,
        host_id=item.host_id,
        run_id=item.run_id,
        causation_id=cause,
        event_id=event_id,
    )
