"""Routes that ask the advisor: recommend, predict, and many cells at once."""

from __future__ import annotations

from fastapi import APIRouter, Response
from fastapi.concurrency import run_in_threadpool

from predictor.advisor.advisor import Advisor
from predictor.schemas.requests import BatchQuery, PredictQuery, RecommendQuery
from predictor.schemas.responses import Answer, BatchAnswer, PredictAnswer
from predictor.service.http.problems import documented


def router(advisor: Advisor) -> APIRouter:
    routes = APIRouter(tags=["advice"])

    @routes.post("/recommend", response_model=Answer, responses=documented(400, 404, 413, 422, 503))
    async def recommend(query: RecommendQuery) -> Response:
        """Rank the hardware for a model, with limits, provenance and evidence for every figure."""
        content = advisor.kept(query) or advisor.answer_at_once(query)
        if content is None:
            content = await run_in_threadpool(advisor.answer, query)
        return Response(content, media_type="application/json")

    @routes.post("/predict", responses=documented(400, 404, 413, 422, 503))
    def predict(query: PredictQuery) -> PredictAnswer:
        """The figures of one model on one piece of hardware. 404, with what to measure, where nothing supports any."""
        return advisor.predict(query)

    @routes.post("/predict/batch", responses=documented(400, 413, 422, 503))
    def predict_many(query: BatchQuery) -> BatchAnswer:
        """Up to 1,000 cells at once. What cannot be answered says so in its place and stops no other."""
        return advisor.predict_many(query)

    return routes
