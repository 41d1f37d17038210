"""Pages of recorded shifts, and the form that accepts, rejects or reopens one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal
from urllib.parse import parse_qsl

from fastapi import APIRouter, Depends, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import RedirectResponse
from pydantic import BaseModel, ConfigDict, Field

from accel_platform.analysis.query.filters import canonical_model_id, require_known_unless_found
from accel_platform.analysis.query.measured import read_measured_series
from accel_platform.analysis.regressions.triage import (
    AlreadyDecided,
    append_decision,
    build_acceptance,
    build_rejection,
    build_reopening,
    read_decisions,
)
from accel_platform.errors import Conflict, InvalidInput, NotFound
from accel_platform.events import Event, EventLog
from accel_platform.events.types import DecidedShift, Measure, MeasuredSeries
from accel_platform.reports.regressions import cell, measure_name, short_shift, with_cells
from accel_platform.settings import Settings
from accel_platform.warehouse.publish import bring_up_to_date
from predictor.schemas.queries import HardwareName, selection_of
from predictor.service.dashboard.rendering import DashboardSite
from predictor.service.dashboard.urls import link
from predictor.service.http.problems import status_of
from predictor.service.http.query_strings import FilledForm, PageForm, read_pairs
from predictor.service.middleware.identity import audited_log_for, decision_author, get_key_name

_SHOWN = 100
_LIST = """
SELECT * FROM regressions
WHERE ($state IS NULL OR state = $state) AND ($direction IS NULL OR direction = $direction)
    AND ($model IS NULL OR model_id = $model)
    AND ($hardware IS NULL OR $hardware IN (hardware, hardware || ':' || choice))
    AND ($mode IS NULL OR mode = $mode)
ORDER BY state = 'open' DESC, found_at DESC, regression_id LIMIT 100
"""
_DECISIONS = """
SELECT CASE type WHEN 'ShiftAccepted' THEN 'Accepted' WHEN 'ShiftRejected' THEN 'Rejected' ELSE 'Reopened' END AS word,
    occurred_at, payload->>'$.by' AS by, payload->>'$.reason' AS reason
FROM other_events
WHERE type IN ('ShiftAccepted', 'ShiftRejected', 'ShiftReopened') AND payload->>'$.regression_id' = ?
ORDER BY recorded_at DESC, event_id DESC
"""
_COUNTS = "SELECT state, direction, count(*) AS shifts FROM regressions GROUP BY state, direction"


class RegressionsPageParams(BaseModel):
    """Filters of the regressions page."""

    model_config = ConfigDict(extra="forbid")
    state: Literal["open", "accepted", "rejected", "gone"] | None = None
    direction: Literal["regressed", "improved"] | None = None
    model: str | None = Field(default=None, max_length=500)
    hardware: HardwareName = Field(default=None, max_length=200)
    mode: str | None = Field(default=None, max_length=200)


class ShiftDecisionForm(BaseModel):
    """A decision, its author (None if the API key names them) and reason, all stored permanently."""

    model_config = ConfigDict(extra="forbid")
    decision: Literal["accept", "reject", "reopen"]
    by: str | None = Field(default=None, max_length=200)
    reason: str = Field(default="", max_length=2000)


def router(site: DashboardSite, settings: Settings) -> APIRouter:
    routes = APIRouter(include_in_schema=False, prefix="/regressions")

    @routes.get("")
    def regressions(
        request: Request, form: Annotated[FilledForm[RegressionsPageParams], Depends(PageForm(RegressionsPageParams))]
    ) -> Response:
        return site.form_page(request, "regressions.html", form, lambda query: _list(site, query))

    @routes.get("/{regression_id}")
    def regression(request: Request, regression_id: str) -> Response:
        return site.page(request, "regression.html", lambda: _one(site, request, regression_id))

    # At the address of the page, so that the page of a refused decision can be loaded again.
    @routes.post("/{regression_id}")
    async def decide(request: Request, regression_id: str) -> Response:
        pairs = parse_qsl((await request.body()).decode("utf-8", "replace"), keep_blank_values=True)
        try:
            form = read_pairs(ShiftDecisionForm, pairs)
            by, log = decision_author(request, form.by), audited_log_for(request, settings)
            await run_in_threadpool(_decide, site, settings, log, regression_id, form.decision, by, form.reason)
        except (Conflict, InvalidInput) as error:
            given, problem, status = dict(pairs), str(error), status_of(error)
            return await run_in_threadpool(
                site.page,
                request,
                "regression.html",
                lambda: {
                    **_one(site, request, regression_id),
                    "given": given,
                    "problem": problem,
                    "status_code": status,
                },
            )
        return RedirectResponse(link("regressions", regression_id), status_code=303)

    return routes


def _list(site: DashboardSite, query: RegressionsPageParams) -> dict[str, Any]:
    model = query.model and canonical_model_id(query.model)
    rows = site.reader.rows(_LIST, {**query.model_dump(), "model": model})
    require_known_unless_found(rows, site.reader, selection_of(query.model, query.hardware, query.mode))
    counts = {(row["state"], row["direction"]): row["shifts"] for row in site.reader.rows(_COUNTS)}
    return {
        "query": query,
        "regressions": [{**row, **short_shift(row)} for row in with_cells(rows)],
        "counts": counts,
        "shown": _SHOWN,
    }


def _one(site: DashboardSite, request: Request, regression_id: str) -> dict[str, Any]:
    found = site.reader.rows("SELECT * FROM regressions WHERE regression_id = ?", (regression_id,))
    if not found:
        raise NotFound(f"No regression {regression_id!r} is recorded: the list of regressions shows all there are")
    [row] = found
    series = MeasuredSeries.model_validate({name: row[name] for name in MeasuredSeries.model_fields})
    processes = read_measured_series(site.reader, model=series.model_id, hardware=series.hardware).get(series, [])
    measure: Measure = row["measure"]
    drawn: Measure = "latency" if measure == "failures" else measure
    known = [process for process in processes if process.figure(drawn) is not None]
    # Code of other branches is neither before nor after the shift.
    commits = row["commits_before"] or ()
    branches = {p.branch for p in processes if p.result_id == row["first_result"] or p.commit in commits}
    points = [process for process in known if process.branch in branches] if branches else known
    return {
        "regression": {**row, **short_shift(row), "cell": cell(row)},
        "points": points,
        "of_other_branches": len(known) - len(points),
        "figures": [point.figure(drawn) for point in points],
        "figure_name": "Median latency" if drawn == "latency" else f"Peak of {measure_name(measure)}",
        "unit": "ms" if drawn == "latency" else "MiB",
        "first": sum(point.result_id < row["first_result"] for point in points),
        "rejected": read_decisions(site.reader)[measure].rejected,
        "decisions": site.reader.rows(_DECISIONS, (regression_id,)),
        "key_name": get_key_name(request),
        "given": {},
        "problem": None,
    }


def _decide(
    site: DashboardSite, settings: Settings, log: EventLog, regression_id: str, decision: str, by: str, reason: str
) -> None:
    """Record a decision, and bring the tables up to date. Raises AlreadyDecided if somebody else decided the same."""
    makers: dict[str, Callable[..., DecidedShift]] = {
        "accept": build_acceptance,
        "reject": build_rejection,
        "reopen": build_reopening,
    }
    event = Event.of(makers[decision](site.reader, regression_id, by=by, reason=reason), source="dashboard")
    try:
        append_decision(site.reader, log, event)
    except AlreadyDecided as error:
        bring_up_to_date(settings)
        if error.by == by:
            return  # because it is a second click, and the page shows the decision of the first
        raise
    bring_up_to_date(settings)
