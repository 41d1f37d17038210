"""The HTTP service put together: routers, problems and what runs beside them. Of routes only the first is here."""

from __future__ import annotations

import gc
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import RedirectResponse
from fastapi_offline import FastAPIOffline

from accel_platform.settings import Settings
from accel_platform.warehouse.sandbox import Sandbox
from accel_platform.workloads.families import resolve_model
from predictor.advisor import Advisor
from predictor.service import door, problems
from predictor.service.door import metrics
from predictor.service.pages import routes as pages
from predictor.service.routes import advice, query, results, state
from predictor.subject import item_cost

_VERSION = version("accel-platform")
# FastAPI would trace into whatever OpenTelemetry provider the process or its environment sets up.
_NO_TELEMETRY = {"tracing": False, "metrics": False, "logs": False, "operation_spans": False, "auto_configure": False}


def create_app(settings: Settings, *, host: str | None = None) -> FastAPI:
    """The service over one installation. It follows new snapshots and predictors without a restart.

    `host` is the address it listens on: where others than this machine can connect, nobody comes in without a key.
    """
    advisor = Advisor(settings, swapped=metrics.SWAPS.inc)
    sandbox = Sandbox(settings)
    # FastAPI's own /docs fetches its scripts from a CDN; this one serves them itself.
    app = FastAPIOffline(
        title="Accel advisor",
        summary="Which hardware for this model? Answers from measurements first, from a learned model second.",
        version=_VERSION,
        redoc_url=None,
        lifespan=partial(_following, advisor, sandbox),
        telemetry=_NO_TELEMETRY,
    )
    problems.install(app)
    door.install(app, settings, host)
    for router in (
        advice.router(advisor),
        state.router(advisor, settings, _VERSION),
        results.router(advisor),
        query.router(sandbox),
    ):
        app.include_router(router)
    pages.install(app, advisor, settings)

    @app.get("/", include_in_schema=False, response_model=None)
    def index(request: Request) -> dict[str, Any] | Response:
        if "text/html" in request.headers.get("accept", ""):
            return RedirectResponse("/dashboard")
        base = str(request.base_url)
        routes = {
            "GET": ["dashboard", "docs", "openapi.json", "health", "ready", "metrics", "results", "matrix"],
            "POST": ["recommend", "predict", "predict/batch", "query"],
        }
        return {
            "name": app.title,
            "open": {method: [base + path for path in paths] for method, paths in routes.items()},
        }

    return app


@asynccontextmanager
async def _following(advisor: Advisor, sandbox: Sandbox, _: FastAPI) -> AsyncIterator[None]:
    """Beside the requests: put new snapshots and predictors into service, and import what costing a model needs."""
    stop = threading.Event()
    threading.Thread(target=_warm, args=(stop,), name="warm", daemon=True).start()
    following = threading.Thread(target=advisor.follow, args=(stop,), name="follow", daemon=True)
    following.start()
    yield
    stop.set()
    sandbox.close()
    following.join()
    gc.unfreeze()


def _warm(stop: threading.Event) -> None:
    """Trace a small model: the first takes seconds, for its imports. What is there then stays, and is not looked
    through for garbage again, which would stop every request for a quarter of a second now and then."""
    smallest = resolve_model("bert-tiny")
    item_cost(smallest.model_id, smallest, smallest.sequence_length, {})
    gc.collect()
    if not stop.is_set():
        gc.freeze()
