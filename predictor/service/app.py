"""The HTTP service put together: routers, problems and what runs beside them. Of routes only the first is here."""

from __future__ import annotations

import gc
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import cache, partial
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import RedirectResponse
from fastapi_offline import FastAPIOffline

from accel_platform.errors import AccelError
from accel_platform.events import EventLog
from accel_platform.events.audited import AuditedLog
from accel_platform.settings import Settings
from accel_platform.warehouse.sandbox import Sandbox
from accel_platform.workloads.model_catalog import resolve_model
from predictor.advisor.advisor import Advisor
from predictor.data.model_resolution import lookup_item_cost
from predictor.service import middleware
from predictor.service.api import (
    charts,
    compare,
    events,
    hardware,
    health,
    ingest,
    legacy,
    matrix,
    models,
    query,
    recommend,
    regressions,
    requests,
    results,
    runs,
    sse,
)
from predictor.service.background.change_feed import ChangeFeed, on_leaving
from predictor.service.background.past_tables import PastTables
from predictor.service.background.warehouse_updates import WarehouseUpdater
from predictor.service.dashboard import routes as pages
from predictor.service.dashboard.errors import page_for
from predictor.service.http import problems
from predictor.service.http.openapi import plain
from predictor.service.middleware import metrics
from predictor.service.middleware.identity import log_of

_VERSION = version("accel-platform")
# FastAPI would trace into whatever OpenTelemetry provider the process or its environment sets up.
_NO_TELEMETRY = {"tracing": False, "metrics": False, "logs": False, "operation_spans": False, "auto_configure": False}


def create_app(settings: Settings, *, host: str | None = None) -> FastAPI:
    """The service over one installation. It follows new snapshots and predictors without a restart.

    `host` is the address it listens on: where others than this machine can connect, nobody comes in without a key.
    """
    advisor = Advisor(settings, swapped=metrics.SWAPS.inc)
    projecting, sandbox, log = WarehouseUpdater(settings), Sandbox(settings), EventLog.open(settings)
    telling, past = ChangeFeed(advisor.reader, log), PastTables(settings, advisor.reader)
    # FastAPI's own /docs fetches its scripts from a CDN; this one serves them itself.
    app = FastAPIOffline(
        title="Accel advisor",
        summary="Which hardware for this model? Answers from measurements first, from a learned model second.",
        version=_VERSION,
        redoc_url=None,
        lifespan=partial(_beside, advisor, projecting, telling, sandbox),
        telemetry=_NO_TELEMETRY,
    )
    problems.install(app, page_for)
    middleware.install(app, settings, host)

    def log_for(request: Request) -> AuditedLog:
        return log_of(request, settings)

    # Routes are tried in their order, so those that are asked most come first.
    app.include_router(recommend.router(advisor))
    app.include_router(health.router(advisor, settings, _VERSION))
    app.include_router(results.router(advisor, log))
    app.include_router(events.router(advisor, log))
    for noun in (models, hardware, runs, matrix, legacy):
        app.include_router(noun.router(advisor))
    app.include_router(charts.router(advisor, settings))
    app.include_router(compare.router(advisor, past))
    app.include_router(regressions.router(advisor, log_for, projecting.written))
    app.include_router(ingest.router(log_for, projecting.written))
    app.include_router(requests.router(log, log_for, projecting.written))
    app.include_router(sse.router(telling))
    app.include_router(query.router(sandbox))
    pages.install(app, advisor, settings, past)

    documented = app.openapi
    app.openapi = cache(lambda: plain(documented()))  # type: ignore[method-assign]  # as FastAPI says to extend it

    @app.get("/", include_in_schema=False, response_model=None)
    def index(request: Request) -> dict[str, Any] | Response:
        if "text/html" in request.headers.get("accept", ""):
            return RedirectResponse("/dashboard")
        base = str(request.base_url).removesuffix("/")
        opened = {"GET": [f"{base}/{page}" for page in ("dashboard", "docs", "openapi.json")]}
        for path, operations in app.openapi()["paths"].items():
            for method in operations:
                if "{" not in path:
                    opened.setdefault(method.upper(), []).append(base + path)
        return {"name": app.title, "open": opened}

    return app


@asynccontextmanager
async def _beside(
    advisor: Advisor, projecting: WarehouseUpdater, telling: ChangeFeed, sandbox: Sandbox, _: FastAPI
) -> AsyncIterator[None]:
    """Beside the requests: put what is published into service, project what is written, import what costs models."""
    stop = threading.Event()
    threading.Thread(target=_warm, args=(advisor, stop), name="warm", daemon=True).start()
    on_leaving(telling.ending)
    beside = [
        threading.Thread(target=advisor.follow, args=(stop,), name="follow", daemon=True),
        threading.Thread(target=projecting.run, name="project", daemon=True),
        threading.Thread(target=telling.watch, name="tell", daemon=True),
    ]
    for thread in beside:
        thread.start()
    yield
    stop.set()
    sandbox.close()
    projecting.stop()
    telling.ending.set()
    for thread in beside:
        thread.join()
    gc.unfreeze()


def _warm(advisor: Advisor, stop: threading.Event) -> None:
    """Trace a small model: the first takes seconds, for its imports. What is there then, and what is known, stays, and
    is not looked through for garbage again, which would stop every request for a quarter of a second now and then."""
    smallest = resolve_model("bert-tiny")
    lookup_item_cost(smallest.model_id, smallest, smallest.sequence_length, {})
    # Where nothing can be read yet, every question says so.
    with suppress(AccelError):
        advisor.make_ready()
    gc.collect()
    if not stop.is_set():
        gc.freeze()
