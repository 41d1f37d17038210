"""Routes about regressions: what was found to have moved, and taking one for granted. `analysis` judges."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from accel_platform.analysis.selection import recorded_id
from accel_platform.analysis.shifts import acceptance
from accel_platform.errors import Conflict, NotFound
from accel_platform.events import Event
from accel_platform.warehouse.query import Reader
from predictor.advisor import Advisor
from predictor.service.answering import NOT_MODIFIED, answer
from predictor.service.intake import SOURCE, Written, request_id, store
from predictor.service.lines import strictly
from predictor.service.paging import Listing, equal
from predictor.service.problems import documented
from predictor.service.routes.writing import Key, LogFor
from predictor.service.rows import Regression, RegressionPage
from predictor.service.schemas import RegressionsQuery

_COLUMNS = ", ".join(f"r.{name}" for name in Regression.model_fields)
_FOUND = "coalesce(r.found_at, TIMESTAMPTZ '1970-01-01 00:00:00+00')"
_REGRESSIONS = Listing("regressions", _COLUMNS, ((_FOUND, "TIMESTAMPTZ"), ("r.regression_id", "VARCHAR")))
_ONE = f"SELECT {_COLUMNS} FROM regressions AS r WHERE regression_id = $id"


class OneRegression(BaseModel):
    """A regression as the tables have it."""

    regression: Regression
    snapshot_id: str


class Acceptance(BaseModel):
    """Who takes the new level of a series for granted, and why: kept for ever."""

    model_config = ConfigDict(extra="forbid", str_strip_whitespace=True)
    by: str = Field(min_length=1, max_length=200)
    reason: str = Field(min_length=1, max_length=2000)


def router(advisor: Advisor, log_for: LogFor, written: Callable[[], None]) -> APIRouter:
    routes = APIRouter(tags=["regressions"])
    reader = advisor.reader

    @routes.get("/regressions", response_model=RegressionPage, responses=documented(404, 422, 503) | NOT_MODIFIED)
    def regressions(request: Request, asked: Annotated[RegressionsQuery, Query()]) -> Response:
        """Shifts found in series of measurements, the latest found first."""

        def read(now: Reader) -> dict[str, Any]:
            filters = asked.model_dump(include={"hardware", "mode", "state", "direction"})
            condition, values = equal(**filters, model_id=asked.model and recorded_id(asked.model))
            rows, more = _REGRESSIONS.page(now, condition, values, limit=asked.limit, cursor=asked.cursor)
            return {"regressions": rows, "next_cursor": more, "snapshot_id": now.snapshot_id}

        return answer(reader, request, read)

    @routes.get(
        "/regressions/{regression_id}", response_model=OneRegression, responses=documented(404, 422, 503) | NOT_MODIFIED
    )
    def regression(request: Request, regression_id: str) -> Response:
        """One regression by its whole id."""

        def read(now: Reader) -> dict[str, Any]:
            rows = now.rows(_ONE, {"id": regression_id})
            if not rows:
                raise NotFound(f"No regression {regression_id!r} is recorded: GET /regressions has them.")
            return {"regression": rows[0], "snapshot_id": now.snapshot_id}

        return answer(reader, request, read)

    @routes.post(
        "/regressions/{regression_id}/accept",
        status_code=202,
        responses=documented(400, 404, 409, 413, 422, 503),
        dependencies=[strictly(Acceptance)],
    )
    def accept(
        request: Request,
        response: Response,
        regression_id: str,
        accepting: Acceptance,
        idempotency_key: Key = None,
    ) -> Written:
        """Take a regression for granted: its level is the new baseline of its series. The history stays."""
        now = reader.pinned()
        rows = now.rows(_ONE, {"id": regression_id})
        if not rows:
            raise NotFound(f"No regression {regression_id!r} is recorded: GET /regressions has them.")
        payload = acceptance(now, regression_id, by=accepting.by, reason=accepting.reason)
        event = Event.of(payload, source=SOURCE, causation_id=request_id(request.url.path, accepting))
        if idempotency_key is None and rows[0]["state"] == "accepted":
            raise Conflict(f"The regression {regression_id} was accepted already, by {rows[0]['accepted_by']}.")
        stored = store(log_for(request), [event], key=idempotency_key)
        written()
        if stored.replayed:
            response.headers["Idempotency-Replayed"] = "true"
        response.headers["Location"] = f"/events/{stored.events[0].event_id}"
        return Written(event_ids=[stored.events[0].event_id], segment=stored.segment)

    return routes
