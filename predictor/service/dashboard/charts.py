"""Charts for pages, in light and dark. What they show and how they are drawn is decided in `reports/drawing`."""

from __future__ import annotations

import textwrap
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Request, Response
from markupsafe import escape

from accel_platform.analysis.query.cells import read_cells
from accel_platform.analysis.query.filters import Selection
from accel_platform.errors import InvalidInput
from accel_platform.reports.charts.parts import NothingToDraw
from accel_platform.reports.charts.registry import Drawable, fit_to_draw
from accel_platform.reports.charts.render import render
from predictor.service.background.charts import chart_version, draw_chart
from predictor.service.dashboard.rendering import DashboardSite, release
from predictor.service.dashboard.urls import asked
from predictor.service.http.conditional import cache_headers, conditional_response

_MEDIA = {"svg": "image/svg+xml", "png": "image/png"}
_NONE = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="600" height="{height}"><text font-size="13" fill="#808080" '
    'font-family="system-ui, sans-serif">{lines}</text></svg>'
)
_LINE = '<tspan x="4" y="{y}">{text}</tspan>'


class ChartPageParams(Selection):
    """What to draw, and for which ground."""

    theme: Literal["light", "dark"] = "light"


def router(site: DashboardSite) -> APIRouter:
    routes = APIRouter(include_in_schema=False, prefix="/charts")

    @routes.get("/{name}.{kind}")
    def one(
        request: Request,
        name: str,
        kind: Literal["svg", "png"],
        query: Annotated[ChartPageParams, Depends(asked(ChartPageParams))],
    ) -> Response:
        form = f"{release()}{chart_version(name, site.settings)}"
        headers = cache_headers(site.reader, request, form, media_type=_MEDIA[kind])

        def made() -> Response:
            selection = Selection(**query.model_dump(exclude={"theme"}))
            try:
                # All cells are read once for all charts without a filter.
                everything = None if selection != Selection() else site.once("drawable", lambda: _everything(site))
                drawing = draw_chart(name, site.reader, site.settings, selection, drawable=everything)
            except (NothingToDraw, InvalidInput) as nothing:
                return Response(_said(str(nothing)), headers=headers | {"Content-Type": _MEDIA["svg"]})
            return Response(render(drawing, kind, query.theme), headers=headers)

        return conditional_response(request, headers, made)

    return routes


def _everything(site: DashboardSite) -> Drawable:
    return fit_to_draw(read_cells(site.reader, Selection(), evidence=False), Selection())


def _said(words: str) -> str:
    """Why there is no chart, in place of one."""
    lines = textwrap.wrap(words, 85)
    told = "".join(_LINE.format(y=22 + 20 * number, text=escape(line)) for number, line in enumerate(lines))
    return _NONE.format(height=20 * len(lines) + 14, lines=told)
