"""The HTTP application: routers, middleware, error handling, and the threads that run beside the requests."""

from __future__ import annotations

import gc
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import cache, partial
from importlib.metadata import version
from typing import Any

from fastapi import Depends, FastAPI, Request, Response
from fastapi.responses import RedirectResponse
from fastapi_offline import FastAPIOffline

from accel_platform.errors import AccelError
from accel_platform.events import EventLog
from accel_platform.events.audited import AuditedLog
from accel_platform.settings import Settings
from accel_platform.warehouse.sandbox import Sandbox
from accel_platform.workloads.model_catalog import resolve_model
from predictor.advisor.advisor import Advisor
from predictor.data.traced_models import lookup_item_cost
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
from predictor.service.background.change_feed import ChangeFeed, set_on_shutdown
from predictor.service.background.intake import MarkSuspicious
from predictor.service.background.past_tables import PastTables
from predictor.service.background.request_lookup import RequestLookup
from predictor.service.background.warehouse_updates import WarehouseUpdater
from predictor.service.dashboard import routes as pages
from predictor.service.dashboard.rendering import problem_page
from predictor.service.http import problems
from predictor.service.http.openapi import (
    describe_fields,
    describe_keys,
    describe_problems,
    simplify_nullable,
    summarize_operations,
)
from predictor.service.http.query_strings import reject_unknown_parameters
from predictor.service.middleware import metrics
from predictor.service.middleware.auth import OPEN_PATHS
from predictor.service.middleware.identity import audited_log_for

_VERSION = version("accel-platform")
# FastAPI would trace into whatever OpenTelemetry provider the process or its environment sets up.
_NO_TELEMETRY = {"tracing": False, "metrics": False, "logs": False, "operation_spans": False, "auto_configure": False}


def create_app(
    settings: Settings, *, host: str | None = None, mark_suspicious: MarkSuspicious | None = None
) -> FastAPI:
    """Return the service over one installation; it follows new snapshots and predictors without a restart.

    `host` is the address it listens on: every request needs an API key where other machines can connect.
    `mark_suspicious` checks posted results; without it no result is marked.
    """
    advisor = Advisor(settings, swapped=metrics.SWAPS.inc)
    updater, sandbox, log = WarehouseUpdater(settings), Sandbox(settings), EventLog.open(settings)
    feed, past_tables = ChangeFeed(advisor.reader, log), PastTables(settings, advisor.reader)
    lookup = RequestLookup(log)
    # FastAPI's own /docs fetches its scripts from a CDN; this one serves them itself.
    app = FastAPIOffline(
        title="Accel advisor",
        summary="Which hardware for this model? Answers from measurements first, from a learned model second.",
        version=_VERSION,
        redoc_url=None,
        dependencies=[Depends(reject_unknown_parameters)],
        responses=problems.problem_responses(422),
        lifespan=partial(_run_beside, advisor, updater, feed, sandbox),
        generate_unique_id_function=lambda route: route.name,
        telemetry=_NO_TELEMETRY,
    )
    problems.install(app, problem_page)
    middleware.install(app, settings, host)

    def log_for(request: Request) -> AuditedLog:
        return audited_log_for(request, settings)

    # The busiest routes come first, because they are tried in order.
    app.include_router(recommend.router(advisor))
    app.include_router(health.router(advisor, settings, _VERSION))
    app.include_router(results.router(advisor, log))
    app.include_router(events.router(advisor, log))
    for noun in (models, hardware, runs, matrix, legacy):
        app.include_router(noun.router(advisor))
    app.include_router(charts.router(advisor, settings))
    app.include_router(compare.router(advisor, past_tables))
    app.include_router(regressions.router(advisor, log_for, updater.request_update))
    app.include_router(ingest.router(log_for, updater.request_update, mark_suspicious or list))
    app.include_router(requests.router(lookup, log_for, updater.request_update))
    app.include_router(sse.router(feed))
    app.include_router(query.router(sandbox))
    pages.install(app, advisor, settings, past_tables, lookup, updater.request_update)

    build_openapi = app.openapi

    @cache
    def openapi() -> dict[str, Any]:
        document = describe_keys(describe_problems(summarize_operations(build_openapi())), OPEN_PATHS)
        described: dict[str, Any] = simplify_nullable(describe_fields(document))
        return described

    app.openapi = openapi  # type: ignore[method-assign]  # as FastAPI says to extend it

    @app.get("/", include_in_schema=False, response_model=None)
    def index(request: Request) -> dict[str, Any] | Response:
        if "text/html" in request.headers.get("accept", ""):
            return RedirectResponse("/dashboard")
        base = str(request.base_url).removesuffix("/")
        urls = {"GET": [f"{base}/{page}" for page in ("dashboard", "docs", "openapi.json")]}
        for path, operations in app.openapi()["paths"].items():
            for method in operations:
                if "{" not in path:
                    urls.setdefault(method.upper(), []).append(base + path)
        return {"name": app.title, "open": urls}

    return app


COLLECT_AFTER = 5_000, 400, 20
"""New objects after which Python looks for cycles while it serves, and how many such looks include older objects.

A look after each 100,000 objects, as the command line has it, stops all requests for 0.1 s, and takes twice the time in
all, because the objects have left the processor's caches by then.
"""


@asynccontextmanager
async def _run_beside(
    advisor: Advisor, updater: WarehouseUpdater, feed: ChangeFeed, sandbox: Sandbox, _: FastAPI
) -> AsyncIterator[None]:
    """Run the threads beside the requests: warm up, follow publications, update the warehouse, feed listeners."""
    stop, thresholds = threading.Event(), gc.get_threshold()
    threading.Thread(target=_warm_up, args=(advisor, stop), name="warm", daemon=True).start()
    set_on_shutdown(feed.closing)
    threads = [
        threading.Thread(target=advisor.follow, args=(stop,), name="follow", daemon=True),
        threading.Thread(target=updater.run, name="warehouse", daemon=True),
        threading.Thread(target=feed.watch, name="feed", daemon=True),
    ]
    for thread in threads:
        thread.start()
    yield
    stop.set()
    sandbox.close()
    updater.stop()
    feed.closing.set()
    for thread in threads:
        thread.join()
    gc.unfreeze()
    gc.set_threshold(*thresholds)


def _warm_up(advisor: Advisor, stop: threading.Event) -> None:
    """Trace a small model, because the first trace imports for seconds, and load the newest state.

    Objects that exist then are frozen out of garbage collection, because a pass over them stops every request for a
    quarter of a second.
    """
    model = resolve_model("bert-tiny")
    lookup_item_cost(model.model_id, model, model.sequence_length, {})
    # Without tables there is nothing to load, and every query gets the error.
    with suppress(AccelError):
        advisor.warm_up()
    gc.collect()
    if not stop.is_set():
        gc.freeze()
        gc.set_threshold(*COLLECT_AFTER)
