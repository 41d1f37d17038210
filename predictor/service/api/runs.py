"""Routes for runs: benchmarks, imports and trainings."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, Field

from accel_platform.analysis.query.filters import equality_condition, require_recorded_if_empty
from accel_platform.errors import NotFound
from accel_platform.warehouse.reader import Reader
from predictor.advisor.advisor import Advisor
from predictor.schemas.queries import RunsQuery
from predictor.schemas.rows import Run, RunPage, SnapshotId
from predictor.service.http.conditional import NOT_MODIFIED, parse_json_columns, table_response
from predictor.service.http.paging import PagedTable
from predictor.service.http.problems import problem_responses

_COLUMNS = ", ".join(f'r."{name}"' for name in Run.model_fields)
_STARTED = "coalesce(r.started_at, TIMESTAMPTZ '1970-01-01 00:00:00+00')"
_RUNS = PagedTable("runs", _COLUMNS, ((_STARTED, "TIMESTAMPTZ"), ("r.run_id", "VARCHAR")))
_ONE = f"SELECT {_COLUMNS} FROM runs AS r WHERE run_id = $id"
_CELLS = """
SELECT model_id, hardware, mode, status, count(*) AS results
FROM results WHERE run_id = $id GROUP BY ALL ORDER BY ALL LIMIT 1000
"""


class RunCell(BaseModel):
    """Results of a run for one model on one hardware name."""

    model_id: str
    hardware: str
    mode: str
    status: str
    results: int


class OneRun(BaseModel):
    """A run and a summary of its results."""

    run: Run = Field(description="Row of the runs table.")
    cells: list[RunCell] = Field(description="By model, hardware, mode and status; at most 1,000.")
    events: dict[str, int] = Field(description="How many events of each type it recorded.")
    snapshot_id: SnapshotId


def router(advisor: Advisor) -> APIRouter:
    routes = APIRouter(tags=["runs"])
    reader = advisor.reader

    @routes.get("/runs", response_model=RunPage, responses=problem_responses(404, 422, 503) | NOT_MODIFIED)
    def runs(request: Request, query: Annotated[RunsQuery, Query()]) -> Response:
        """List runs, the latest start first; those known by their results only come last."""

        def read(tables: Reader) -> dict[str, Any]:
            filters = query.model_dump(include={"kind", "status", "host_id", "commit"})
            rows, more = _RUNS.page(tables, query, *equality_condition(**filters))
            # A commit that was never measured is no mistake.
            require_recorded_if_empty(rows, tables, "runs", query.model_dump(include={"kind", "status", "host_id"}))
            found = parse_json_columns(rows, "plan", "software", "labels")
            return {"runs": found, "next_cursor": more}

        return table_response(reader, request, read)

    @routes.get("/runs/{run_id:name}", response_model=OneRun, responses=problem_responses(404, 422, 503) | NOT_MODIFIED)
    def run(request: Request, run_id: str) -> Response:
        """Return one run: its plan, environment, end and results."""

        def read(tables: Reader) -> dict[str, Any]:
            rows = parse_json_columns(tables.rows(_ONE, {"id": run_id}), "plan", "software", "labels")
            if not rows:
                raise NotFound(f"There is no run {run_id!r}: GET /runs has them.")
            types = "SELECT type, count(*) AS events FROM events WHERE run_id = $id GROUP BY type ORDER BY type"
            return {
                "run": rows[0],
                "cells": tables.rows(_CELLS, {"id": run_id}),
                "events": {row["type"]: row["events"] for row in tables.rows(types, {"id": run_id})},
            }

        return table_response(reader, request, read)

    return routes
