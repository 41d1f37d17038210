"""Routes for probes of the service: health, readiness and metrics."""

from __future__ import annotations

import logging
import time

from fastapi import APIRouter, Response
from fastapi.responses import PlainTextResponse

from accel_platform import pipeline_progress
from accel_platform.errors import AccelError, WarehouseEmpty
from accel_platform.knowledge.packs import Refusal, shipped_packs
from accel_platform.settings import Settings
from accel_platform.warehouse.publish import require_complete
from predictor.advisor.advisor import Advisor
from predictor.schemas.queries import Health, Ready
from predictor.service.http.problems import problem_responses
from predictor.service.middleware import metrics

_log = logging.getLogger("accel.service")


def router(advisor: Advisor, settings: Settings, version: str) -> APIRouter:
    routes = APIRouter(tags=["service"])
    log_problem = _log_problem(settings)
    if log_problem is not None:
        _log.error("%s", log_problem)
    refused = {pack.name: pack.reason for pack in shipped_packs() if isinstance(pack, Refusal)}
    for name, reason in refused.items():
        _log.error("The knowledge pack %s is not used: %s", name, reason)

    @routes.get("/health", responses=problem_responses(503))
    def health() -> Health:
        """Return 200 while the service can answer; 503, with the command to run, before anything was measured."""
        state = advisor.state()
        predictor = state.predictor
        [row] = advisor.reader.rows("SELECT count(*) AS results FROM results")
        return Health(
            status="ok",
            version=version,
            snapshot_id=state.evidence.snapshot_id,
            predictor_id=state.predictor_id,
            predictor_missing=None if predictor else state.no_predictor,
            log_problem=log_problem,
            knowledge_problems=refused,
            results=row["results"],
            cells=len(state.evidence.summaries),
            pipeline=pipeline_progress.read(settings),
        )

    @routes.get("/ready", responses=problem_responses(503))
    def ready() -> Ready:
        """Return 200 once a state is loaded and queries are answered from it; else 503 with the reason."""
        return Ready(status="ready", snapshot_id=advisor.state().evidence.snapshot_id)

    @routes.get("/metrics", name="metrics", response_class=PlainTextResponse, responses=problem_responses(503))
    def figures() -> Response:
        """Return metrics in the Prometheus text format."""
        return Response(
            metrics.render_metrics(_gauges(advisor, settings)), headers={"Content-Type": metrics.CONTENT_TYPE}
        )

    return routes


def _log_problem(settings: Settings) -> str | None:
    """Return a message about published segments that the log has lost, None where it is complete."""
    try:
        require_complete(settings)
    except AccelError as error:
        return str(error)
    return None


def _gauges(advisor: Advisor, settings: Settings) -> dict[str, tuple[str, float]]:
    """Return the number of results and the age of the tables; nothing before the first publication."""
    try:
        [row] = advisor.reader.rows("SELECT count(*) AS results FROM results")
        published_at = (settings.warehouse_dir / "CURRENT").stat().st_mtime
    except (WarehouseEmpty, FileNotFoundError):
        return {}
    return {
        "accel_results": ("Rows of the results table.", row["results"]),
        "accel_snapshot_age_seconds": ("Since the tables in service were published.", time.time() - published_at),
    }
