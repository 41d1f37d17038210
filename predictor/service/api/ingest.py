"""Routes that add to the log: stated results, and events of measurements made elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Body, Header, Request, Response

from accel_platform.events import Event
from accel_platform.events.audited import AuditedLog
from accel_platform.events.types import ResultRecorded
from predictor.schemas.ingest import ClaimedResult, Claims, Posted, PostedEvents, unsupported_claims, unusable_claims
from predictor.service.background.intake import (
    SOURCE,
    InvalidItems,
    MarkSuspicious,
    StoredResponse,
    request_id,
    require_data_rules,
    store_once,
)
from predictor.service.http.bodies import JsonOrNdjsonRoute, ndjson_body, require_strict_body
from predictor.service.http.problems import problem_responses

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
"""Return the log in the name of a request's caller."""


def router(log_for: LogFor, request_update: Callable[[], None], mark_suspicious: MarkSuspicious) -> APIRouter:
    """Return the routes. `mark_suspicious` is passed in, because the predictor must not import the migrations."""
    routes = APIRouter(route_class=JsonOrNdjsonRoute)
    problems = problem_responses(400, 413, 415, 422, 503)

    @routes.post(
        "/results",
        status_code=202,
        response_model=StoredResponse,
        responses=problems,
        openapi_extra=ndjson_body("ClaimedResult"),
        dependencies=[require_strict_body(Claims)],
        tags=["results"],
    )
    def add_results(
        request: Request, response: Response, claims: Annotated[Claims, Body()], idempotency_key: Key = None
    ) -> StoredResponse:
        """Add one or more stated results; all are stored or none.

        They are `imported` and count like those of an imported file: by the same rules contradictory ones are
        `suspect` and count nowhere. Measurements of a process of this platform, with samples and verification, go to
        `/events`.
        """
        items: Sequence[ClaimedResult] = claims if isinstance(claims, list) else [claims]
        if errors := unusable_claims(items):
            raise InvalidItems(errors)
        cause = request_id(request.url.path, items)
        events = mark_suspicious([_event(claim, cause) for claim in items])
        return _store(request, response, events, idempotency_key)

    @routes.post(
        "/events",
        status_code=202,
        response_model=StoredResponse,
        responses=problems,
        openapi_extra=ndjson_body("Posted"),
        dependencies=[require_strict_body(PostedEvents)],
        tags=["events"],
    )
    def add_events(
        request: Request, response: Response, posted: Annotated[PostedEvents, Body()], idempotency_key: Key = None
    ) -> StoredResponse:
        """Add events of measurements made on another machine; all are stored or none.

        A result needs samples, device and fingerprint, and in the same request the verification of its cell, without
        which it never counts as compatible. The service trusts the measurement; `source` marks it as sent this way.
        """
        items: Sequence[Posted] = posted if isinstance(posted, list) else [posted]
        if errors := unsupported_claims(items):
            raise InvalidItems(errors)
        cause = request_id(request.url.path, items)
        events = [_event(item, cause, event_id=item.event_id) for item in items]
        return _store(request, response, events, idempotency_key)

    def _store(request: Request, response: Response, events: Sequence[Event], key: str | None) -> StoredResponse:
        require_data_rules(events)
        stored = store_once(log_for(request), events, key=key)
        request_update()
        ids = [event.event_id for event in stored.events]
        if stored.replayed:
            response.headers["Idempotency-Replayed"] = "true"
        response.headers["Location"] = f"{request.url.path}/{ids[0]}"
        suspects = [
            event.event_id
            for event in stored.events
            if isinstance(event.payload, ResultRecorded) and event.payload.suspicions
        ]
        return StoredResponse(event_ids=ids, segment=stored.segment, suspects=suspects)

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
