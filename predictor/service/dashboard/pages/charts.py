"""Chart images of the pages, in a light and a dark theme."""

from __future__ import annotations

import textwrap
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Request, Response
from markupsafe import escape

from accel_platform.analysis.query.cells import read_cells
from accel_platform.analysis.query.filters import Selection
from accel_platform.errors import InvalidInput, NotFound
from accel_platform.reports.charts.registry import Drawable, select_drawable
from accel_platform.reports.charts.render import render
from predictor.service.background.charts import chart_version, draw_chart
from predictor.service.dashboard.rendering import DashboardSite, release
from predictor.service.http.conditional import cache_headers, conditional_response
from predictor.service.http.query_strings import FormQuery

_MEDIA = {"svg": "image/svg+xml", "png": "image/png"}
_MESSAGE_SVG = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="600" height="{height}"><text font-size="13" fill="#808080" '
    'font-family="system-ui, sans-serif">{lines}</text></svg>'
)
_MESSAGE_LINE = '<tspan x="4" y="{y}">{text}</tspan>'


class ChartPageParams(Selection):
    """Filters and theme of a chart."""

    theme: Literal["light", "dark"] = "light"


def router(site: DashboardSite) -> APIRouter:
    routes = APIRouter(include_in_schema=False, prefix="/charts")

    @routes.get("/{name}.{kind}")
    def one(
        request: Request,
        name: str,
        kind: Literal["svg", "png"],
        query: Annotated[ChartPageParams, Depends(FormQuery(ChartPageParams))],
    ) -> Response:
        form = f"{release()}{chart_version(name, site.settings)}"
        headers = cache_headers(site.reader, request, form, media_type=_MEDIA[kind])

        def build() -> Response:
            selection = query.filters()
            try:
                # Charts without a filter share one read of all cells.
                drawable = None if selection != Selection() else site.cached("drawable", lambda: _drawable(site))
                drawing = draw_chart(name, site.reader, site.settings, selection, drawable=drawable)
            except (NotFound, InvalidInput) as error:
                return Response(_message_svg(str(error)), headers=headers | {"Content-Type": _MEDIA["svg"]})
            return Response(render(drawing, kind, query.theme), headers=headers)

        return conditional_response(request, headers, build)

    return routes


def _drawable(site: DashboardSite) -> Drawable:
    return select_drawable(read_cells(site.reader, Selection(), evidence=False), Selection())


def _message_svg(text: str) -> str:
    """Return an SVG that shows the reason in place of a chart."""
    lines = textwrap.wrap(text, 85)
    spans = "".join(_MESSAGE_LINE.format(y=22 + 20 * number, text=escape(line)) for number, line in enumerate(lines))
    return _MESSAGE_SVG.format(height=20 * len(lines) + 14, lines=spans)
