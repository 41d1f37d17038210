"""Pages of runs: the list, and one run with its plan, software and results."""

from __future__ import annotations

import json
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from accel_platform.analysis.query.filters import require_recorded_if_empty
from accel_platform.errors import NotFound
from predictor.service.dashboard.pages.results import newest_results
from predictor.service.dashboard.rendering import DashboardSite
from predictor.service.http.query_strings import FilledForm, PageForm

_SHOWN = 50
_MOST_RESULTS = 200
_RUNS = """
SELECT run_id, kind, source, host_id, status, started_at, finished_at, duration_s, results, cells_ok, cells_failed,
    cells_skipped, "commit"
FROM runs WHERE ($kind IS NULL OR kind = $kind) AND ($status IS NULL OR status = $status)
    AND ($host_id IS NULL OR host_id = $host_id)
    AND ($commit IS NULL OR starts_with("commit", $commit))
ORDER BY coalesce(started_at, finished_at) DESC NULLS LAST, run_id DESC LIMIT $limit OFFSET $first
"""


class RunsPageParams(BaseModel):
    """Filters and page of the runs page."""

    model_config = ConfigDict(extra="forbid")
    kind: str | None = Field(default=None, max_length=200)
    status: str | None = Field(default=None, max_length=200)
    host_id: str | None = Field(default=None, max_length=200)
    commit: str | None = Field(default=None, max_length=200)
    page: int = Field(default=1, ge=1, le=100_000)


def router(site: DashboardSite) -> APIRouter:
    routes = APIRouter(include_in_schema=False, prefix="/runs")

    @routes.get("")
    def runs(
        request: Request, form: Annotated[FilledForm[RunsPageParams], Depends(PageForm(RunsPageParams))]
    ) -> Response:
        return site.form_page(request, "runs.html", form, lambda query: _list(site, query))

    @routes.get("/{run_id:name}")
    def run(request: Request, run_id: str) -> Response:
        return site.page(request, "run.html", lambda: _one(site, run_id))

    return routes


def _list(site: DashboardSite, query: RunsPageParams) -> dict[str, Any]:
    given = query.model_dump(exclude={"page"})
    rows = site.reader.rows(_RUNS, {**given, "limit": _SHOWN + 1, "first": (query.page - 1) * _SHOWN})
    require_recorded_if_empty(rows, site.reader, "runs", query.model_dump(include={"kind", "status", "host_id"}))
    choices = site.choices("runs", "kind", "status", "host_id")
    return {"query": query, "runs": rows[:_SHOWN], "more": len(rows) > _SHOWN, "choices": choices}


def _one(site: DashboardSite, run_id: str) -> dict[str, Any]:
    found = site.reader.rows("SELECT * FROM runs WHERE run_id = ?", (run_id,))
    if not found:
        raise NotFound(f"No run has the id {run_id!r}: the list of runs shows all there are")
    [run] = found
    limit = _MOST_RESULTS
    return {
        "run": {**run, **{name: json.loads(run[name] or "{}") for name in ("plan", "software", "labels")}},
        "hosts": site.reader.rows("SELECT * FROM hosts WHERE host_id = ?", (run["host_id"],)),
        "results": newest_results(site.reader, "r.run_id = $run", {"run": run_id}, limit),
        "limit": limit,
    }
