"""Routes for the advisor: recommend, predict, and many predictions at once."""

from __future__ import annotations

from typing import Annotated, Any, get_args

from fastapi import APIRouter, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from pydantic import Discriminator, Tag

from predictor.advisor.advisor import Advisor
from predictor.schemas.requests import BatchQuery, PredictQuery, RecommendQuery
from predictor.schemas.responses import Answer, BatchAnswer, PredictAnswer
from predictor.schemas.serving import ServingAnswer, ServingQuery
from predictor.service.http.bodies import JsonRoute
from predictor.service.http.problems import problem_responses

_MODES = (*get_args(RecommendQuery.model_fields["mode"].annotation), "serving")


def _kind(body: Any) -> str:
    """Return which query a body is. Raises RequestValidationError for a mode of neither, because each names its own."""
    mode = body.get("mode") if isinstance(body, dict) else getattr(body, "mode", None)
    if isinstance(mode, str) and mode not in _MODES:
        expected = f"{', '.join(map(repr, _MODES[:-1]))} or {_MODES[-1]!r}"
        problem = {"type": "literal_error", "loc": ("body", "mode"), "msg": "", "ctx": {"expected": expected}}
        raise RequestValidationError([{**problem, "input": mode}])
    return "<serving>" if mode == "serving" else "<model>"


AnyQuery = Annotated[
    Annotated[RecommendQuery, Tag("<model>")] | Annotated[ServingQuery, Tag("<serving>")], Discriminator(_kind)
]


def router(advisor: Advisor) -> APIRouter:
    routes = APIRouter(tags=["advice"], route_class=JsonRoute)

    @routes.post(
        "/recommend", response_model=Answer | ServingAnswer, responses=problem_responses(400, 404, 413, 415, 422, 503)
    )
    async def recommend(query: AnyQuery) -> Response:
        """Rank the hardware for a model, with limits, provenance and evidence for every figure.

        In mode `serving` rank deployments of a language model under a load.
        """
        if isinstance(query, ServingQuery):
            answer = await run_in_threadpool(advisor.recommend_serving, query)
            return Response(answer.model_dump_json(), media_type="application/json")
        content = advisor.try_answer(query)
        if content is None:
            content = await run_in_threadpool(advisor.answer, query)
        return Response(content, media_type="application/json")

    @routes.post("/predict", responses=problem_responses(400, 404, 413, 415, 422, 503))
    def predict(query: PredictQuery) -> PredictAnswer:
        """Return the figures of one model on one piece of hardware; 404, with what to measure, where there are none."""
        return advisor.predict(query)

    @routes.post("/predict/batch", responses=problem_responses(400, 413, 415, 422, 503))
    def predict_many(query: BatchQuery) -> BatchAnswer:
        """Predict up to 1,000 cells at once; a cell without an answer has the reason in its place."""
        return advisor.predict_many(query)

    return routes
