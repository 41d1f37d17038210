"""A problem as a page, in the same style as the others. Which error means which status is `problems.py`."""

from __future__ import annotations

from fastapi import Request
from fastapi.responses import HTMLResponse

from predictor.service.dashboard.rendering import ROOT, render
from predictor.service.schemas.queries import Problem


def wants_page(request: Request) -> bool:
    """Whether a person asked, for a page of the dashboard."""
    return request.url.path == ROOT or request.url.path.startswith(f"{ROOT}/")


def page_of(request: Request, problem: Problem) -> HTMLResponse:
    """That nothing was measured yet is no failure of a page: it says how to begin."""
    empty = problem.type.endswith("warehouse-empty")
    text = render("empty_home.html" if empty else "error.html", request, problem=problem)
    return HTMLResponse(text, status_code=200 if empty else problem.status, headers={"cache-control": "no-store"})
