"""Routes about the service itself: whether it can answer, and from what."""

from __future__ import annotations

import logging
import time

from fastapi import APIRouter, Response
from fastapi.responses import PlainTextResponse

from accel_platform.errors import AccelError, WarehouseEmpty
from accel_platform.settings import Settings
from accel_platform.warehouse.publish import require_complete
from predictor.advisor.advisor import Advisor
from predictor.service.http.problems import documented
from predictor.service.middleware import metrics
from predictor.service.schemas.queries import Health, Ready

_log = logging.getLogger("accel.service")


def router(advisor: Advisor, settings: Settings, version: str) -> APIRouter:
    routes = APIRouter(tags=["service"])
    log_problem = _log_problem(settings)
    if log_problem is not None:
        _log.error("%s", log_problem)

    @routes.get("/health", responses=documented(503))
    def health() -> Health:
        """200 while the service can answer; 503 with the command to run before anything was measured."""
        knowledge = advisor.knowledge()
        predictor = knowledge.predictor
        [row] = advisor.reader.rows("SELECT count(*) AS results FROM results")
        return Health(
            status="ok",
            version=version,
            snapshot_id=knowledge.evidence.snapshot_id,
            predictor_id=predictor.predictor_id if predictor else None,
            predictor_missing=None if predictor else knowledge.no_predictor,
            log_problem=log_problem,
            results=row["results"],
            cells=len(knowledge.evidence.summaries),
        )

    @routes.get("/ready", responses=documented(503))
    def ready() -> Ready:
        """200 once what is in service has been read and questions are answered from it; else 503 with the reason."""
        return Ready(status="ready", snapshot_id=advisor.knowledge().evidence.snapshot_id)

    @routes.get("/metrics", response_class=PlainTextResponse, responses=documented(503))
    def figures() -> Response:
        """Figures for Prometheus."""
        return Response(metrics.exposed(_gauges(advisor, settings)), headers={"Content-Type": metrics.CONTENT_TYPE})

    return routes


def _log_problem(settings: Settings) -> str | None:
    """Return what the log has lost of what was published, None where it is whole."""
    try:
        require_complete(settings)
    except AccelError as error:
        return str(error)
    return None


def _gauges(advisor: Advisor, settings: Settings) -> dict[str, tuple[str, float]]:
    """How much is known and how old it is; of what is not there, nothing."""
    try:
        [row] = advisor.reader.rows("SELECT count(*) AS results FROM results")
        published_at = (settings.warehouse_dir / "CURRENT").stat().st_mtime
    except (WarehouseEmpty, FileNotFoundError):
        return {}
    return {
        "accel_results": ("Rows of the results table.", row["results"]),
        "accel_snapshot_age_seconds": ("Since the tables in service were published.", time.time() - published_at),
    }
