"""Recommendation page: a query form and the explained answer."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from fastapi import APIRouter, Depends, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from accel_platform.hardware.device_names import distinct_name
from predictor.advisor import batch_tables
from predictor.advisor.answers import empty_reason, excluded_by_reason
from predictor.advisor.device_labels import device_labels, shared_devices
from predictor.advisor.objectives import gain_elsewhere
from predictor.schemas.requests import Constraints, Objective, RecommendQuery, validate_query
from predictor.schemas.responses import Figures, Interval, Recommendation
from predictor.service.dashboard.pages.models import known_models
from predictor.service.dashboard.rendering import DashboardSite
from predictor.service.http.query_strings import FilledForm, PageForm

_MOST_ROWS = 30
_LIMITS = {
    "max_latency_ms": "Latency at most, ms",
    "max_memory_mib": "Memory at most, MiB",
    "max_usd_per_hour": "Price at most, USD/h",
    "max_watts": "Power at most, W",
}
assert _LIMITS.keys() == Constraints.model_fields.keys()
_FIGURES: dict[Objective, tuple[str, str]] = {
    "latency": ("latency of a batch", "ms"),
    "throughput": ("throughput", "items/s"),
    "memory": ("peak memory", "MiB"),
    "cost": ("cost", "USD per million items"),
    "energy": ("energy", "J per item"),
}


class RecommendForm(BaseModel):
    """A recommendation query as a form sends it, with numbers as text."""

    model_config = ConfigDict(extra="forbid")
    model: str | None = Field(default=None, max_length=200)
    batch_size: int = 1
    sequence_length: int | None = None
    precision: str | None = None
    mode: Literal["inference", "generation", "training"] = "inference"
    objective: Objective = "latency"
    where: Literal["here", "mine", "anywhere"] = "anywhere"
    hardware: tuple[str, ...] = ()
    max_latency_ms: float | None = None
    max_memory_mib: float | None = None
    max_usd_per_hour: float | None = None
    max_watts: float | None = None


def router(site: DashboardSite) -> APIRouter:
    routes = APIRouter(include_in_schema=False, prefix="/recommend")

    @routes.get("")
    def recommend(
        request: Request, form: Annotated[FilledForm[RecommendForm], Depends(PageForm(RecommendForm))]
    ) -> Response:
        predictor = site.advisor.state().predictor
        also = predictor.predictor_id if predictor else ""
        return site.form_page(request, "recommend.html", form, lambda query: _content(site, query), also=also)

    return routes


def _content(site: DashboardSite, form: RecommendForm) -> dict[str, Any]:
    evidence = site.advisor.state().evidence
    content: dict[str, Any] = {
        "query": form,
        "models": [row["model_id"] for row in known_models(site)],
        "known_hardware": batch_tables.known_hardware(evidence),
        "objectives": get_args(Objective),
        "limits": _LIMITS,
        "most": _MOST_ROWS,
        "answer": None,
    }
    if form.model is None:
        return content
    answer = site.advisor.recommend(_build_query(form))
    label, unit = _FIGURES[form.objective]
    ranked = answer.recommendations
    shown = [
        {"is": r, "device": device, "figure": _figure(r, form.objective)}
        for r, device in zip(ranked, device_labels(ranked), strict=True)
    ]
    shared = shared_devices([*ranked, *answer.excluded])
    return {
        **content,
        "answer": answer,
        "shown": shown,
        "label": label,
        "unit": unit,
        "nothing": empty_reason(answer.excluded),
        "gain": gain_elsewhere(form.objective, ranked),
        "excluded": [
            (reason, group, [*dict.fromkeys(distinct_name(e.device, e.device_id, shared) for e in group if e.device)])
            for reason, group in excluded_by_reason(answer.excluded).items()
        ],
    }


def _build_query(form: RecommendForm) -> RecommendQuery:
    given = {name: value for name, value in form.model_dump(exclude_defaults=True).items() if name not in _LIMITS}
    limits = {name: getattr(form, name) for name in _LIMITS if getattr(form, name) is not None}
    if form.hardware:
        given["hardware"] = list(form.hardware)
    return validate_query(RecommendQuery, {**given, "constraints": limits, "limit": None}, name=_label)


def _label(path: str) -> str:
    """Return the label of a query's field, as the form shows it."""
    return _LIMITS.get(path.removeprefix("constraints."), path)


def _figure(of: Recommendation, objective: Objective) -> Interval | None:
    """Return the figure of the objective; None if unknown."""
    figures: Figures = of
    found: dict[Objective, Interval | None] = {
        "latency": figures.latency_ms,
        "throughput": figures.items_per_s,
        "memory": figures.memory_peak_mib,
        "cost": figures.cost.usd_per_million_items if figures.cost else None,
        "energy": figures.energy.j_per_item if figures.energy else None,
    }
    return found[objective]
