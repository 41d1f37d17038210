"""Pages of models: the list, and one model with its results."""

from __future__ import annotations

import json
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from accel_platform.analysis.query.cells import read_cells
from accel_platform.analysis.query.filters import (
    Selection,
    canonical_model_id,
    require_known_unless_found,
    require_recorded_if_empty,
)
from accel_platform.analysis.query.setups import with_distinct_runtimes
from accel_platform.errors import NotFound
from accel_platform.events.types import TRUST_ORDER, MeasuredSeries
from accel_platform.reports.regressions import with_cells
from accel_platform.workloads.model_catalog import resolve_model, with_catalog_facts
from predictor.data.traced_models import with_shipped_cost
from predictor.schemas.queries import selection_of
from predictor.service.dashboard.pages.results import newest_results
from predictor.service.dashboard.rendering import DashboardSite, distinct_values
from predictor.service.dashboard.urls import sort_rows
from predictor.service.http.query_strings import FilledForm, PageForm

_SHOWN = 100
_MOST_CELLS = 100
_SORTS = ("model_id", "family", "parameters", "flops_per_item", "results", "newest_at")
_CELL_SORTS = (
    "hardware",
    "batch_size",
    "latency_ms",
    "throughput_items_per_s",
    "memory_peak_mib",
    "results",
    "precision",
)
_FILTERS = ("hardware", "backend", "mode", "precision", "batch_size", "provenance")
_IDENTITY = ", ".join(f"r.{name}" for name in MeasuredSeries.model_fields)

_MODELS = """
WITH newest AS (SELECT model_id, max(occurred_at) AS newest_at FROM results GROUP BY model_id),
hardware AS (
    SELECT model_id, list({hardware: hardware, mode: mode, state: state, rating: rating} ORDER BY hardware) AS hardware
    FROM (
        SELECT model_id, hardware, mode, min(state) AS state, max_by(rating, relative_speed) AS rating
        FROM compat_matrix GROUP BY model_id, hardware, mode
        QUALIFY row_number() OVER (PARTITION BY model_id, hardware ORDER BY mode <> 'inference', mode) = 1
    ) GROUP BY model_id
)
SELECT m.model_id, m.family, m.modality, m.parameters, m.flops_per_item, m.results, n.newest_at, h.hardware
FROM models AS m LEFT JOIN newest AS n USING (model_id) LEFT JOIN hardware AS h USING (model_id)
WHERE m.results > 0
ORDER BY m.results DESC, m.model_id
"""
_COMPATIBILITY = """
SELECT * EXCLUDE (evidence), len(evidence) AS evidence FROM compat_matrix WHERE model_id = $model
ORDER BY mode, relative_speed DESC NULLS LAST, hardware, device_name LIMIT 100
"""
# Ids of measured results sort by time, because they begin with it.
_SERIES = f"""
SELECT {_IDENTITY}, u.labels->>'$.branch' AS branch, list(r.latency_p50_ms ORDER BY r.result_id) AS medians,
    max(r.result_id) AS newest
FROM judged_results AS r
LEFT JOIN runs AS u USING (run_id)
WHERE r.provenance = 'measured' AND r.status = 'ok' AND r.verified IS NOT FALSE AND r.latency_p50_ms IS NOT NULL
    AND r.precision IS NOT NULL AND r.batch_size IS NOT NULL AND {{condition}}
GROUP BY {_IDENTITY}, branch HAVING count(*) > 1 ORDER BY count(*) DESC, {_IDENTITY}, branch LIMIT 12
"""
_REGRESSIONS = "SELECT * FROM regressions WHERE model_id = $model ORDER BY found_at DESC, regression_id LIMIT 10"


class ModelsPageParams(BaseModel):
    """Query of the models page: filters, order and page."""

    model_config = ConfigDict(extra="forbid")
    q: str | None = Field(default=None, max_length=200)
    family: str | None = Field(default=None, max_length=200)
    modality: str | None = Field(default=None, max_length=200)
    hardware: str | None = Field(default=None, max_length=200)
    sort: str | None = Field(default=None, max_length=40)
    page: int = Field(default=1, ge=1, le=100_000)


class CellsQuery(Selection):
    """Query of a model page: filters and order of its cells."""

    sort: str | None = Field(default=None, max_length=40)


def router(site: DashboardSite) -> APIRouter:
    routes = APIRouter(include_in_schema=False, prefix="/models")

    @routes.get("")
    def models(
        request: Request, form: Annotated[FilledForm[ModelsPageParams], Depends(PageForm(ModelsPageParams))]
    ) -> Response:
        return site.form_page(request, "models.html", form, lambda query: _list(site, query))

    @routes.get("/{name:name}")
    def model(
        request: Request, name: str, form: Annotated[FilledForm[CellsQuery], Depends(PageForm(CellsQuery))]
    ) -> Response:
        return site.form_page(request, "model.html", form, lambda query: _one(site, name, query))

    return routes


def known_models(site: DashboardSite) -> list[dict[str, Any]]:
    """Return every model with results, most results first."""
    return site.cached("models", lambda: [_with_known_facts(row) for row in site.reader.rows(_MODELS)])


def _with_known_facts(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of the table `models`, completed by the platform's catalog if nobody described the model."""
    return with_shipped_cost(with_catalog_facts(row))


def _list(site: DashboardSite, query: ModelsPageParams) -> dict[str, Any]:
    rows = known_models(site)
    wanted = (query.q or "").casefold()
    found = [
        row
        for row in rows
        if wanted in f"{row['model_id']} {row['family']}".casefold()
        and query.family in (None, row["family"])
        and query.modality in (None, row["modality"])
        and (query.hardware is None or any(h["hardware"] == query.hardware for h in row["hardware"] or ()))
    ]
    require_recorded_if_empty(found, site.reader, "models", {"family": query.family, "modality": query.modality})
    require_known_unless_found(found, site.reader, selection_of(None, query.hardware, None))
    found = sort_rows(found, query.sort, _SORTS)
    first = (query.page - 1) * _SHOWN
    return {
        "query": query,
        "models": found[first : first + _SHOWN],
        "found": len(found),
        "first": first,
        "more": len(found) > first + _SHOWN,
        "families": sorted({row["family"] for row in rows if row["family"]}),
        "modalities": sorted({row["modality"] for row in rows if row["modality"]}),
        "hardware": sorted({h["hardware"] for row in rows for h in row["hardware"] or ()}),
    }


def _one(site: DashboardSite, name: str, query: CellsQuery) -> dict[str, Any]:
    reader, model_id = site.reader, canonical_model_id(name)
    described = reader.rows("SELECT * EXCLUDE (operators) FROM models WHERE model_id = ?", (model_id,))
    if not described:
        spec = resolve_model(name)
        raise NotFound(
            f"Nothing of {spec.model_id} was measured or imported yet: `accel bench run --models {spec.model_id}` "
            "measures it. The page Recommend answers for it already."
        )
    [model] = map(_with_known_facts, described)
    selection = query.filters().model_copy(update={"model": (model_id,)})
    condition, values = selection.where()
    cells = sorted(read_cells(reader, selection, evidence=False), key=lambda row: TRUST_ORDER.index(row["provenance"]))
    require_known_unless_found(cells, site.reader, selection)
    rows = with_distinct_runtimes(sort_rows(cells, query.sort, _CELL_SORTS))
    about = {"model": model_id}
    return {
        "model": {**model, "aliases": json.loads(model["aliases"] or "[]")},
        "query": query,
        "filters": selection.model_dump(exclude_defaults=True, mode="json"),
        "cells": rows[:_MOST_CELLS],
        "cells_found": len(rows),
        "series": _series(site, condition, values),
        "compatibility": reader.rows(_COMPATIBILITY, about),
        "regressions": reader.rows(_REGRESSIONS, about),
        "recent": newest_results(reader, condition, values, 15),
        "choices": distinct_values(reader, "results WHERE model_id = ?", _FILTERS, (model_id,)),
    }


def _series(site: DashboardSite, condition: str, values: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the medians of measured series in order of time, longest series first."""
    return with_cells(site.reader.rows(_SERIES.format(condition=condition), values))
