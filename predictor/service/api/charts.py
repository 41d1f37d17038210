"""Routes for charts of selected results, as a specification, an image or a page."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, Field

from accel_platform.analysis.query.filters import Selection
from accel_platform.reports.charts.registry import CHARTS
from accel_platform.reports.charts.render import Kind, render
from accel_platform.reports.charts.theme import Theme
from accel_platform.settings import Settings
from predictor.advisor.advisor import Advisor
from predictor.service.background.charts import chart_version, draw_chart
from predictor.service.http.conditional import NOT_MODIFIED, cache_headers, conditional_response
from predictor.service.http.problems import problem_responses
from predictor.service.middleware.security_headers import SANDBOX

_TYPES: dict[Kind, str] = {
    "json": "application/json",
    "svg": "image/svg+xml",
    "png": "image/png",
    "html": "text/html; charset=utf-8",
}


class ChartQuery(Selection):
    """Filters of the results, and the theme."""

    theme: Theme = "light"


class Chart(BaseModel):
    """A kind of chart."""

    name: str = Field(description="Name of the kind, as in `/charts/{name}.{kind}`.")
    shows: str = Field(description="What is drawn, in words.")
    needs: str = Field(description="Which figures it is made of.")


class Charts(BaseModel):
    """The kinds of charts that `/charts/{name}.{kind}` draws."""

    charts: list[Chart] = Field(description="One per kind of chart.")


def router(advisor: Advisor, settings: Settings) -> APIRouter:
    routes = APIRouter(tags=["charts"])
    reader = advisor.reader
    picture = {"schema": {"type": "string", "format": "binary"}}
    media_types = {kind.partition(";")[0]: picture for kind in _TYPES.values()} | {"application/json": {"schema": {}}}
    answers: dict[int | str, dict[str, Any]] = {200: {"description": "The chart.", "content": media_types}}

    @routes.get("/charts")
    def charts() -> Charts:
        """List the kinds of charts."""
        return Charts(charts=[Chart(name=n, shows=d.shows, needs=d.needs) for n, d in CHARTS.items()])

    @routes.get(
        "/charts/{name}.{kind}",
        responses={**answers, **problem_responses(404, 422, 503), **NOT_MODIFIED},
        response_class=Response,
    )
    def chart(request: Request, name: str, kind: Kind, query: Annotated[ChartQuery, Query()]) -> Response:
        """Draw a chart as Vega-Lite, SVG, PNG, or a page with everything in it; 404 where there is nothing to draw."""
        tables = reader.pinned()
        headers = cache_headers(tables, request, f"{kind}{chart_version(name, settings)}", media_type=_TYPES[kind])
        if kind == "html":
            headers["Content-Security-Policy"] = SANDBOX

        def respond() -> Response:
            content = render(draw_chart(name, tables, settings, query.filters()), kind, query.theme)
            return Response(content, headers=headers)

        return conditional_response(request, headers, respond)

    return routes
