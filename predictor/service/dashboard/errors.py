"""Error pages of the dashboard."""

from __future__ import annotations

from fastapi import Request
from fastapi.responses import HTMLResponse

from predictor.schemas.queries import Problem
from predictor.service.dashboard.rendering import ROOT, render


def problem_page(request: Request, problem: Problem) -> HTMLResponse | None:
    """Return the problem as a page of the dashboard; None for a request to another route.

    An empty installation gets a page with first steps and status 200, because nothing failed.
    """
    if request.url.path != ROOT and not request.url.path.startswith(f"{ROOT}/"):
        return None
    empty = problem.type.endswith("warehouse-empty")
    text = render("empty_home.html" if empty else "error.html", request, problem=problem)
    return HTMLResponse(text, status_code=200 if empty else problem.status, headers={"cache-control": "no-store"})
