"""Routes for results: pages of them, one with its evidence, and all of them as a stream."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field

from accel_platform.analysis.query.filters import Selection, require_known, require_known_unless_found
from accel_platform.errors import NotFound
from accel_platform.events import EventLog
from accel_platform.warehouse.layers import SAME_OUTPUT
from accel_platform.warehouse.reader import Reader
from predictor.advisor.advisor import Advisor
from predictor.schemas.queries import ResultsQuery
from predictor.schemas.rows import Result, ResultPage, ResultSuspicion, SnapshotId, StoredEvent, Verification
from predictor.service.background.intake import PENDING, pending_response
from predictor.service.http import streaming
from predictor.service.http.conditional import (
    NOT_MODIFIED,
    cache_headers,
    conditional_response,
    parse_json_columns,
    table_response,
)
from predictor.service.http.paging import NEWEST_RESULTS, PagedTable
from predictor.service.http.problems import problem_responses

_COLUMNS = ", ".join(f"r.{name}" for name in Result.model_fields)
_RESULTS = PagedTable("results", _COLUMNS, NEWEST_RESULTS, row_id="result_id")
_ONE = f"SELECT {_COLUMNS} FROM results AS r WHERE r.result_id = $id"
# Verifications of the same run only, because another run's says nothing of this result.
_VERIFICATIONS = f"""
SELECT {", ".join(f"v.{name}" for name in Verification.model_fields)}
FROM verifications AS v JOIN results AS r ON {SAME_OUTPUT} WHERE r.result_id = $id ORDER BY v.event_id
"""
_SUSPICIONS = """
SELECT s.event_id, s.rule, s.verdict, s.evidence, s.confidence, min(o.overruled_by) AS overruled_by
FROM suspicions AS s LEFT JOIN suspicion_overrides AS o USING (result_id, rule)
WHERE s.result_id = $id
GROUP BY ALL ORDER BY s.rule, s.evidence
"""
_EVENT = f"SELECT {', '.join(StoredEvent.model_fields)} FROM events WHERE event_id = $id"


class OneResult(BaseModel):
    """A result with its samples, verifications, suspicions and event."""

    result: Result = Field(description="Row of the results table.")
    samples_ms: list[float] = Field(description="Raw samples in order, each of one whole batch; none for claims.")
    verifications: list[Verification] = Field(description="Of its own run; empty where outputs were never compared.")
    suspicions: list[ResultSuspicion] = Field(
        description="Doubts about it, with their evidence; empty where there are none."
    )
    event: StoredEvent = Field(description="Event that it comes from.")
    snapshot_id: SnapshotId


def router(advisor: Advisor, log: EventLog) -> APIRouter:
    routes = APIRouter(tags=["results"])
    reader = advisor.reader

    @routes.get("/results", response_model=ResultPage, responses=problem_responses(404, 422, 503) | NOT_MODIFIED)
    def results(request: Request, query: Annotated[ResultsQuery, Query()]) -> Response:
        """List rows of the results table, newest first by `occurred_at`; those of unknown time come last."""

        def read(tables: Reader) -> dict[str, Any]:
            rows, more = _RESULTS.page(tables, query, *query.where())
            require_known_unless_found(rows, tables, query)
            return {"results": rows, "next_cursor": more}

        return table_response(reader, request, read)

    @routes.get(
        "/results.{form}",
        responses=_streams() | problem_responses(404, 422, 503) | NOT_MODIFIED,
        response_class=Response,
    )
    def export(request: Request, form: streaming.Form, query: Annotated[Selection, Query()]) -> Response:
        """Stream all selected results, in no order, as Arrow IPC, CSV or a JSON object per line.

        In CSV, text that a spreadsheet would take for a formula gets an apostrophe before it.
        """
        tables = reader.pinned()
        require_known(tables, query)
        headers = cache_headers(tables, request, form, media_type=streaming.TYPES[form])
        headers["Content-Disposition"] = f'attachment; filename="results.{form}"'

        def streamed() -> Response:
            condition, values = query.where()
            rows = tables.stream(f"SELECT {streaming.select_list(form)} FROM results AS r WHERE {condition}", values)
            return StreamingResponse(streaming.encode_rows(form, rows), headers=headers)

        return conditional_response(request, headers, streamed)

    @routes.get(
        "/results/{result_id}",
        response_model=OneResult,
        responses=PENDING | problem_responses(404, 422, 503) | NOT_MODIFIED,
    )
    def result(request: Request, result_id: UUID) -> Response:
        """Return one result with its raw samples, the verifications of its run, its suspicions and its event."""

        def read(tables: Reader) -> dict[str, Any] | Response:
            values = {"id": result_id}
            found = tables.rows(_ONE, values)
            if not found:
                if (waiting := pending_response(log, result_id, tables)) is not None:
                    return waiting
                raise NotFound(f"There is no result {result_id}.")
            [event] = parse_json_columns(tables.rows(_EVENT, values), "payload")
            return {
                "result": found[0],
                "samples_ms": [sample / 1e6 for sample in event["samples_ns"] or ()],
                "verifications": tables.rows(_VERIFICATIONS, values),
                "suspicions": tables.rows(_SUSPICIONS, values),
                "event": event,
            }

        return table_response(reader, request, read)

    return routes


def _streams() -> dict[int | str, dict[str, Any]]:
    kinds = (kind.partition(";")[0] for kind in streaming.TYPES.values())
    content = {kind: {"schema": {"type": "string", "format": "binary"}} for kind in kinds}
    return {200: {"description": "The rows.", "content": content}}
