"""Pages of the compatibility matrix: the heat map, and one cell with its evidence and history."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from accel_platform.analysis.query.filters import (
    Selection,
    require_known,
    require_known_unless_found,
    require_recorded_if_empty,
)
from accel_platform.analysis.summaries.matrix import Matrix, compatibility_matrix
from accel_platform.analysis.summaries.matrix_history import MAX_DAYS, matrix_history
from predictor.schemas.queries import selection_of
from predictor.service.dashboard.rendering import DashboardSite
from predictor.service.http.query_strings import FilledForm, FormQuery, PageForm

_SHOWN = 100
_MODES = "SELECT DISTINCT mode FROM compat_matrix ORDER BY mode"
_CELL = """
SELECT * FROM compat_matrix WHERE model_id = $model AND hardware = $hardware AND mode = $mode
ORDER BY state, relative_speed DESC NULLS LAST, device_id
"""
_EVIDENCE = """
SELECT result_id, run_id, device_id, device_name, mode, precision, batch_size, sequence_length, output_tokens,
    processes, coalesce(latency_p50_ms, latency_mean_ms) AS latency_ms, samples, noisy, provenance, status, reason,
    occurred_at, source_path
FROM results WHERE result_id IN (SELECT unnest($ids))
ORDER BY batch_size, sequence_length, output_tokens, precision, result_id
"""
_MOST_EVIDENCE = 200


class MatrixPageParams(Selection):
    """Filters and page of the matrix. `q` is a part of a model's name."""

    q: str | None = Field(default=None, max_length=200)
    family: str | None = Field(default=None, max_length=200)
    mode: str = Field(default="inference", max_length=40)
    page: int = Field(default=1, ge=1, le=100_000)


class CellQuery(BaseModel):
    """Key of a matrix cell."""

    model_config = ConfigDict(extra="forbid")
    model: str = Field(max_length=500)
    hardware: str = Field(max_length=200)
    mode: str = Field(default="inference", max_length=40)


def router(site: DashboardSite) -> APIRouter:
    routes = APIRouter(include_in_schema=False, prefix="/matrix")

    @routes.get("")
    def matrix(
        request: Request, form: Annotated[FilledForm[MatrixPageParams], Depends(PageForm(MatrixPageParams))]
    ) -> Response:
        return site.form_page(request, "matrix.html", form, lambda query: _heat(site, query))

    @routes.get("/cell")
    def cell(request: Request, query: Annotated[CellQuery, Depends(FormQuery(CellQuery))]) -> Response:
        return site.page(request, "matrix_cell.html", lambda: _cell(site, query))

    @routes.get("/history")
    def history(request: Request, query: Annotated[CellQuery, Depends(FormQuery(CellQuery))]) -> Response:
        return site.page(request, "matrix_history.html", lambda: _history(site, query))

    return routes


def _heat(site: DashboardSite, query: MatrixPageParams) -> dict[str, Any]:
    modes = [row["mode"] for row in site.cached("matrix modes", lambda: site.reader.rows(_MODES))]
    matrix: Matrix
    selection = query.filters()
    require_known(site.reader, selection)

    def compute() -> Matrix:
        return compatibility_matrix(site.reader, selection, mode=query.mode)

    if query.mode in modes:
        # Only answers for a mode and a device are cached, because there are few of these.
        few = not selection.model_dump(exclude_defaults=True).keys() - {"mode", "device"}
        matrix = site.cached(("matrix", selection), compute) if few else compute()
    else:
        matrix = Matrix(snapshot_id="", hardware=[], devices={}, shapes={}, models={})
    families = site.cached("families", lambda: _families(site))
    wanted = (query.q or "").casefold()
    names = [
        name for name in matrix["models"] if wanted in name.casefold() and query.family in (None, families.get(name))
    ]
    require_recorded_if_empty(names, site.reader, "models", {"family": query.family})
    names.sort(key=lambda name: sum(cell["state"] == "untested" for cell in matrix["models"][name].values()))
    tried = {name for one in names for name, cell in matrix["models"][one].items() if cell["state"] != "untested"}
    first = (query.page - 1) * _SHOWN
    shown = names[first : first + _SHOWN]
    return {
        "query": query,
        "modes": modes,
        "families": sorted({family for family in families.values() if family}),
        "hardware": [name for name in matrix["hardware"] if name in tried or selection.hardware],
        "mixed": {name: count for name, count in matrix["devices"].items() if count > 1},
        "rows": [(name, matrix["shapes"][name], matrix["models"][name]) for name in shown],
        "found": len(names),
        "first": first,
        "more": len(names) > first + _SHOWN,
    }


def _families(site: DashboardSite) -> dict[str, str | None]:
    return {row["model_id"]: row["family"] for row in site.reader.rows("SELECT model_id, family FROM models")}


def _cell(site: DashboardSite, query: CellQuery) -> dict[str, Any]:
    devices = site.reader.rows(_CELL, query.model_dump())
    require_known_unless_found(devices, site.reader, selection_of(query.model, query.hardware, query.mode))
    ids = [event_id for row in devices for event_id in row["evidence"]]
    evidence = site.reader.rows(_EVIDENCE, {"ids": ids[:_MOST_EVIDENCE]}) if ids else []
    return {"query": query, "devices": devices, "evidence": evidence, "evidence_found": len(ids)}


def _history(site: DashboardSite, query: CellQuery) -> dict[str, Any]:
    require_known(site.reader, selection_of(query.model, query.hardware, query.mode))
    selection = Selection(model=(query.model,), hardware=(query.hardware,))
    changes = [
        change for change in matrix_history(site.reader, selection, mode=query.mode) if change.model_id == query.model
    ]
    return {"query": query, "changes": changes[::-1], "days": MAX_DAYS}
