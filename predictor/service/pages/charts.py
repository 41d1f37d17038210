"""Charts for pages, in light and dark. What they show and how they are drawn is decided in `reports/drawing`."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Request, Response
from markupsafe import escape

from accel_platform.analysis.selection import Selection
from accel_platform.reports.drawing.parts import NothingToDraw
from accel_platform.reports.drawing.render import render
from predictor.service.answering import unless_kept, validators
from predictor.service.drawn import drawn, made_of
from predictor.service.pages.links import asked
from predictor.service.pages.site import Site, release

_MEDIA = {"svg": "image/svg+xml", "png": "image/png"}
_NONE = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="600" height="48"><text x="4" y="28" font-size="13" fill="#808080" '
    'font-family="system-ui, sans-serif">{}</text></svg>'
)


class ChartQuery(Selection):
    """What to draw, and for which ground."""

    theme: Literal["light", "dark"] = "light"


def router(site: Site) -> APIRouter:
    routes = APIRouter(include_in_schema=False, prefix="/charts")

    @routes.get("/{name}.{kind}")
    def one(
        request: Request,
        name: str,
        kind: Literal["svg", "png"],
        query: Annotated[ChartQuery, Depends(asked(ChartQuery))],
    ) -> Response:
        headers = validators(site.reader, request, f"{release()}{made_of(name, site.settings)}")

        def made() -> Response:
            try:
                drawing = drawn(name, site.reader, site.settings, Selection(**query.model_dump(exclude={"theme"})))
            except NothingToDraw as nothing:
                return Response(_NONE.format(escape(str(nothing))), media_type=_MEDIA["svg"], headers=headers)
            return Response(render(drawing, kind, query.theme), media_type=_MEDIA[kind], headers=headers)

        return unless_kept(request, headers, made)

    return routes
