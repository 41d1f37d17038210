"""Serving page: devices that serve a language model under a load, their memory, and the best trade-offs of cost."""

from __future__ import annotations

from typing import Annotated, Any, get_args

from fastapi import APIRouter, Depends, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from accel_platform.errors import InvalidInput
from predictor.schemas.messages import name_fields
from predictor.schemas.requests import validate_query
from predictor.schemas.serving import (
    CacheType,
    EngineName,
    NotServed,
    Percentile,
    ServingAnswer,
    ServingGoals,
    ServingObjective,
    ServingQuery,
)
from predictor.service.dashboard.rendering import DashboardSite
from predictor.service.http.query_strings import FilledForm, PageForm
from predictor.serving.models import served_models
from predictor.serving.quantization import QUANTIZATIONS

_MOST_ROWS = 30
_GOALS = {
    "max_first_token_ms": "First token at most, ms",
    "max_output_token_ms": "Each further token at most, ms",
    "max_end_to_end_ms": "Last token at most, ms",
    "max_usd_per_hour": "Price at most, USD/h",
    "max_watts": "Power at most, W",
    "max_devices": "Devices at most",
}
_LABELS = _GOALS | {
    "model": "Model",
    "quantization": "Quantization",
    "input_tokens": "Tokens of a prompt",
    "output_tokens": "Tokens of an answer",
    "input_tokens_p99": "99th percentile of prompts",
    "output_tokens_p99": "99th percentile of answers",
    "kv_cache": "Keys and values",
    "prefix_cached_share": "Share of prompts in the prefix cache",
    "users": "Users at once",
    "requests_per_s": "Requests per second",
    "engine": "Engine",
    "engine_version": "Version of the engine",
    "disaggregated": "Prompts are computed",
    "objective": "Rank by",
    "percentile": "Goals of time hold for",
}
"""Labels of the form, by field of the query."""
_CAUSES = {
    "goal": "may miss a goal",
    "does_not_fit": "too little memory",
    "overloaded": "cannot keep up",
    "unsupported": "not supported",
}


class ServingForm(BaseModel):
    """A serving query as a form sends it, with numbers as text."""

    model_config = ConfigDict(extra="forbid")
    model: str | None = Field(default=None, max_length=200)
    quantization: str | None = Field(default=None, max_length=32)
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_p99: int | None = None
    output_tokens_p99: int | None = None
    kv_cache: CacheType = "auto"
    prefix_cached_share: float | None = None
    users: int | None = None
    requests_per_s: float | None = None
    engine: str | None = Field(default=None, max_length=32)
    engine_version: str | None = Field(default=None, max_length=200)
    disaggregated: bool = False
    hardware: tuple[str, ...] = ()
    objective: ServingObjective = "cost"
    percentile: int | None = None
    max_first_token_ms: float | None = None
    max_output_token_ms: float | None = None
    max_end_to_end_ms: float | None = None
    max_usd_per_hour: float | None = None
    max_watts: float | None = None
    max_devices: int | None = None


def router(site: DashboardSite) -> APIRouter:
    routes = APIRouter(include_in_schema=False, prefix="/serving")

    @routes.get("")
    def serving(request: Request, form: Annotated[FilledForm[ServingForm], Depends(PageForm(ServingForm))]) -> Response:
        return site.form_page(request, "serving.html", form, lambda query: _content(site, query))

    return routes


def _content(site: DashboardSite, form: ServingForm) -> dict[str, Any]:
    content: dict[str, Any] = {
        "query": form,
        "models": served_models(),
        "quantizations": list(QUANTIZATIONS),
        "engines": get_args(EngineName),
        "objectives": get_args(ServingObjective),
        "percentiles": get_args(Percentile),
        "cache_types": get_args(CacheType),
        "labels": _LABELS,
        "goals": _GOALS,
        "most": _MOST_ROWS,
        "answer": None,
    }
    if form.model is None:
        return content
    query = _build_query(form)
    try:
        answer = _in_words(site.advisor.recommend_serving(query))
    except InvalidInput as error:
        raise InvalidInput(name_fields(str(error), _quoted)) from error
    return {**content, "answer": answer, "excluded": _by_cause(answer.excluded)}


def _in_words(answer: ServingAnswer) -> ServingAnswer:
    """Return an answer whose texts name fields of the query by their labels on the page."""
    options = [
        option.model_copy(update={"cautions": [name_fields(text, _quoted) for text in option.cautions]})
        for option in answer.options
    ]
    excluded = [item.model_copy(update={"reason": name_fields(item.reason, _quoted)}) for item in answer.excluded]
    warnings = [name_fields(text, _quoted) for text in answer.warnings]
    return answer.model_copy(update={"options": options, "excluded": excluded, "warnings": warnings})


def _quoted(field: str) -> str:
    """Return the label of a field in quotation marks; of a trace, which the page does not take, who takes it."""
    if field == "trace":
        return "a trace of requests (accel serving --trace)"
    return f"“{_LABELS[field]}”" if field in _LABELS else f"`{field}`"


def _build_query(form: ServingForm) -> ServingQuery:
    given = {
        name: value
        for name, value in form.model_dump(exclude_none=True).items()
        if name not in ServingGoals.model_fields
    }
    goals = {name: getattr(form, name) for name in ServingGoals.model_fields if getattr(form, name) is not None}
    return validate_query(
        ServingQuery,
        {**given, "mode": "serving", "hardware": list(form.hardware) or None, "goals": goals, "limit": None},
        name=lambda path: _LABELS.get(path.removeprefix("goals."), path),
    )


def _by_cause(excluded: list[NotServed]) -> list[tuple[str, list[NotServed]]]:
    """Return the deployments that were left out, by their cause in words."""
    groups = ((words, [item for item in excluded if item.cause == cause]) for cause, words in _CAUSES.items())
    return [(words, items) for words, items in groups if items]
