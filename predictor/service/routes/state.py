"""Routes about the service itself: whether it can answer, and from what."""

from __future__ import annotations

from fastapi import APIRouter

from predictor.advisor import Advisor
from predictor.service.problems import documented
from predictor.service.schemas import Health


def router(advisor: Advisor, version: str) -> APIRouter:
    routes = APIRouter(tags=["service"])

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
            results=row["results"],
            cells=len(knowledge.evidence.pooled),
        )

    return routes
