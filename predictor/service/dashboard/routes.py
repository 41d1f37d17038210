"""Registration of all dashboard pages and their static files."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import FastAPI
from fastapi.staticfiles import StaticFiles

from accel_platform.settings import Settings
from predictor.advisor.advisor import Advisor
from predictor.service.background.past_tables import PastTables
from predictor.service.background.request_lookup import RequestLookup
from predictor.service.dashboard.pages import (
    changes,
    charts,
    compare,
    events,
    hardware,
    history,
    knowledge,
    matrix,
    models,
    overview,
    recommend,
    regressions,
    requests,
    results,
    runs,
    serving,
)
from predictor.service.dashboard.rendering import HERE, ROOT, DashboardSite


def install(
    app: FastAPI,
    advisor: Advisor,
    settings: Settings,
    past: PastTables,
    lookup: RequestLookup,
    request_update: Callable[[], None],
) -> None:
    """Add the dashboard to the app under /dashboard."""
    site = DashboardSite(advisor, settings)
    app.mount(f"{ROOT}/static", StaticFiles(directory=HERE / "static"))
    shown = (overview, charts, models, hardware, matrix, compare, recommend, serving)
    for noun in (*shown, history, knowledge, events, runs, results):
        app.include_router(noun.router(site), prefix=ROOT)
    app.include_router(changes.router(site, past), prefix=ROOT)
    app.include_router(regressions.router(site, settings), prefix=ROOT)
    app.include_router(requests.router(site, settings, lookup, request_update), prefix=ROOT)
