"""Routes for regressions: shifts found in series of measurements, and decisions about them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from accel_platform.analysis.query.filters import canonical_model_id, equality_condition, require_known_unless_found
from accel_platform.analysis.regressions.triage import (
    append_decision,
    build_acceptance,
    build_rejection,
    build_reopening,
    decision_key,
)
from accel_platform.errors import NotFound
from accel_platform.events import Event
from accel_platform.events.audited import AuditedLog
from accel_platform.events.types import DecidedShift
from accel_platform.warehouse.reader import Reader
from predictor.advisor.advisor import Advisor
from predictor.schemas.queries import RegressionsQuery, selection_of
from predictor.schemas.rows import Regression, RegressionPage, SnapshotId
from predictor.service.api.ingest import Key, LogFor
from predictor.service.background.intake import (
    SEGMENT_PREFIX,
    SOURCE,
    StoredEvents,
    StoredResponse,
    is_stored,
    request_id,
    store_once,
)
from predictor.service.http.bodies import JsonRoute, require_strict_body
from predictor.service.http.conditional import NOT_MODIFIED, table_response
from predictor.service.http.paging import PagedTable
from predictor.service.http.problems import problem_responses
from predictor.service.middleware.identity import decision_author

_COLUMNS = ", ".join(f"r.{name}" for name in Regression.model_fields)
_FOUND = "coalesce(r.found_at, TIMESTAMPTZ '1970-01-01 00:00:00+00')"
_REGRESSIONS = PagedTable("regressions", _COLUMNS, ((_FOUND, "TIMESTAMPTZ"), ("r.regression_id", "VARCHAR")))
_ONE = f"SELECT {_COLUMNS} FROM regressions AS r WHERE regression_id = $id"


class OneRegression(BaseModel):
    """A regression as the tables have it."""

    regression: Regression = Field(description="The shift, and the decision about it.")
    snapshot_id: SnapshotId


class ShiftDecision(BaseModel):
    """A person's decision about a shift, with its reason; kept for ever."""

    model_config = ConfigDict(
        extra="forbid",
        str_strip_whitespace=True,
        json_schema_extra={"examples": [{"by": "ada", "reason": "the machine was throttled that night"}]},
    )
    by: str | None = Field(
        default=None,
        min_length=1,
        max_length=200,
        description="Needed where no API keys are asked for. Else it is the key's name, and nobody else's will do.",
    )
    reason: str = Field(min_length=1, max_length=2000)


def router(advisor: Advisor, log_for: LogFor, request_update: Callable[[], None]) -> APIRouter:
    routes = APIRouter(tags=["regressions"], route_class=JsonRoute)
    reader = advisor.reader
    problems = problem_responses(400, 404, 409, 413, 415, 422, 503)
    body = [require_strict_body(ShiftDecision)]

    @routes.get(
        "/regressions", response_model=RegressionPage, responses=problem_responses(404, 422, 503) | NOT_MODIFIED
    )
    def regressions(request: Request, query: Annotated[RegressionsQuery, Query()]) -> Response:
        """List shifts found in series of measurements, the latest found first."""

        def read(tables: Reader) -> dict[str, Any]:
            filters = query.model_dump(include={"mode", "state", "direction"})
            condition, values = equality_condition(**filters, model_id=query.model and canonical_model_id(query.model))
            if query.hardware is not None:
                condition += " AND $hardware IN (r.hardware, r.hardware || ':' || r.choice)"
                values["hardware"] = query.hardware
            rows, more = _REGRESSIONS.page(tables, query, condition, values)
            require_known_unless_found(rows, tables, selection_of(query.model, query.hardware, query.mode))
            return {"regressions": rows, "next_cursor": more}

        return table_response(reader, request, read)

    @routes.get(
        "/regressions/{regression_id}",
        response_model=OneRegression,
        responses=problem_responses(404, 422, 503) | NOT_MODIFIED,
    )
    def regression(request: Request, regression_id: str) -> Response:
        """Return one regression by its whole id."""

        def read(tables: Reader) -> dict[str, Any]:
            return {"regression": _row(tables, regression_id)}

        return table_response(reader, request, read)

    @routes.post("/regressions/{regression_id}/accept", status_code=202, responses=problems, dependencies=body)
    def accept(
        request: Request, response: Response, regression_id: str, decision: ShiftDecision, idempotency_key: Key = None
    ) -> StoredResponse:
        """Accept a regression: its level is the new baseline of its series, and the history stays.

        The last decision counts.
        """
        return _store_decision(request, response, regression_id, decision, idempotency_key, build_acceptance)

    @routes.post("/regressions/{regression_id}/reject", status_code=202, responses=problems, dependencies=body)
    def reject(
        request: Request, response: Response, regression_id: str, decision: ShiftDecision, idempotency_key: Key = None
    ) -> StoredResponse:
        """Reject a regression: its results no longer count in their series, and the baseline stays.

        The same level measured again is a regression again. The last decision counts.
        """
        return _store_decision(request, response, regression_id, decision, idempotency_key, build_rejection)

    @routes.post("/regressions/{regression_id}/reopen", status_code=202, responses=problems, dependencies=body)
    def reopen(
        request: Request, response: Response, regression_id: str, decision: ShiftDecision, idempotency_key: Key = None
    ) -> StoredResponse:
        """Withdraw the last decision about a regression, as if nobody had decided. The last decision counts."""
        return _store_decision(request, response, regression_id, decision, idempotency_key, build_reopening)

    def _store_decision(
        request: Request,
        response: Response,
        regression_id: str,
        decision: ShiftDecision,
        key: str | None,
        make: Callable[..., DecidedShift],
    ) -> StoredResponse:
        by = decision_author(request, decision.by)
        tables, log = reader.pinned(), log_for(request)
        _row(tables, regression_id)
        payload = make(tables, regression_id, by=by, reason=decision.reason)
        event = Event.of(payload, source=SOURCE, causation_id=request_id(request.url.path, decision))
        stored = _append_once(tables, log, payload, event, key)
        request_update()
        if stored.replayed:
            response.headers["Idempotency-Replayed"] = "true"
        response.headers["Location"] = f"/events/{stored.events[0].event_id}"
        return StoredResponse(event_ids=[stored.events[0].event_id], segment=stored.segment)

    return routes


def _append_once(tables: Reader, log: AuditedLog, payload: DecidedShift, event: Event, key: str | None) -> StoredEvents:
    """Append a decision once per idempotency key. Raises Conflict if it equals the last decision."""
    if key is None:
        return StoredEvents(append_decision(tables, log, event, prefix=SEGMENT_PREFIX), (event,), replayed=False)
    if not is_stored(log, key):
        decision_key(tables, log, payload)
    return store_once(log, [event], key=key)


def _row(tables: Reader, regression_id: str) -> dict[str, Any]:
    rows = tables.rows(_ONE, {"id": regression_id})
    if not rows:
        raise NotFound(f"No regression {regression_id!r} is recorded: GET /regressions has them.")
    return rows[0]
