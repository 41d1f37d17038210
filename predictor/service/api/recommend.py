"""Routes for the advisor: recommend, predict, and many predictions at once."""

from __future__ import annotations

from fastapi import APIRouter, Response
from fastapi.concurrency import run_in_threadpool

from predictor.advisor.advisor import Advisor
from predictor.schemas.requests import BatchQuery, PredictQuery, RecommendQuery
from predictor.schemas.responses import Answer, BatchAnswer, PredictAnswer
from predictor.service.http.problems import problem_responses


def router(advisor: Advisor) -> APIRouter:
    routes = APIRouter(tags=["advice"])

    @routes.post("/recommend", response_model=Answer, responses=problem_responses(400, 404, 413, 422, 503))
    async def recommend(query: RecommendQuery) -> Response:
        """Rank the hardware for a model, with limits, provenance and evidence for every figure."""
        content = advisor.cached_answer(query) or advisor.try_answer(query)
        if content is None:
            content = await run_in_threadpool(advisor.answer, query)
        return Response(content, media_type="application/json")

    @routes.post("/predict", responses=problem_responses(400, 404, 413, 422, 503))
    def predict(query: PredictQuery) -> PredictAnswer:
        """Return the figures of one model on one piece of hardware; 404, with what to measure, where there are none."""
        return advisor.predict(query)

    @routes.post("/predict/batch", responses=problem_responses(400, 413, 422, 503))
    def predict_many(query: BatchQuery) -> BatchAnswer:
        """Predict up to 1,000 cells at once; a cell without an answer has the reason in its place."""
        return advisor.predict_many(query)

    return routes
