"""Routes for models: those that were described or have results, by any of their names."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, Field

from accel_platform.analysis.query.filters import (
    Selection,
    canonical_model_id,
    equality_condition,
    require_known,
    require_recorded_if_empty,
)
from accel_platform.errors import NotFound
from accel_platform.warehouse.reader import Reader
from accel_platform.workloads.model_catalog import find_model, sets_of
from predictor.advisor.advisor import Advisor
from predictor.schemas.queries import ModelsQuery
from predictor.schemas.rows import MatrixCell, Model, ModelPage, SnapshotId
from predictor.service.http.conditional import NOT_MODIFIED, parse_json_columns, table_response
from predictor.service.http.paging import PagedTable
from predictor.service.http.problems import problem_responses

_MODELS = PagedTable("models", ", ".join(Model.model_fields), (("r.model_id", "VARCHAR"),), descending=False)
_ONE = f"SELECT {', '.join(Model.model_fields)} FROM models WHERE model_id = $model"
_COUNTS = """
SELECT hardware, mode, provenance, status, count(*) AS results, count(DISTINCT run_id) AS runs
FROM results WHERE model_id = $model GROUP BY ALL ORDER BY ALL
"""
_CELLS = f"SELECT {', '.join(MatrixCell.model_fields)} FROM compat_matrix WHERE model_id = $model ORDER BY ALL"


class ResultCount(BaseModel):
    """Number of results of one kind."""

    hardware: str
    mode: str
    provenance: str
    status: str
    results: int
    runs: int = Field(description="Different runs that the results are of.")


class OneModel(BaseModel):
    """A model, where it runs, and how often it was measured or imported."""

    model: Model = Field(description="What is known of the model itself, with its cost for one item.")
    sets: list[str] = Field(description="The named sets of the catalogue that hold it.")
    matrix: list[MatrixCell] = Field(description="Cells of the compatibility matrix that the model has.")
    results: list[ResultCount] = Field(description="Numbers of results, one per kind.")
    snapshot_id: SnapshotId


def router(advisor: Advisor) -> APIRouter:
    routes = APIRouter(tags=["models"])
    reader = advisor.reader

    @routes.get("/models", response_model=ModelPage, responses=problem_responses(404, 422, 503) | NOT_MODIFIED)
    def models(request: Request, query: Annotated[ModelsQuery, Query()]) -> Response:
        """List models by id: those that were described, and those that have results."""

        def read(tables: Reader) -> dict[str, Any]:
            condition, values = equality_condition(family=query.family, modality=query.modality)
            rows, more = _MODELS.page(tables, query, condition, values)
            require_recorded_if_empty(rows, tables, "models", query.model_dump(include={"family", "modality"}))
            return {"models": parse_json_columns(rows, "aliases", "config"), "next_cursor": more}

        return table_response(reader, request, read)

    # A model's id may have slashes in it.
    @routes.get(
        "/models/{model_id:name}", response_model=OneModel, responses=problem_responses(404, 422, 503) | NOT_MODIFIED
    )
    def model(request: Request, model_id: str) -> Response:
        """Return one model, by its id or another name that the catalogue has for it."""

        def read(tables: Reader) -> dict[str, Any]:
            values = {"model": canonical_model_id(model_id)}
            rows = parse_json_columns(tables.rows(_ONE, values), "aliases", "config")
            if not rows:
                known = find_model(model_id)
                hint = f"`accel bench run --models {known.model_id}` measures it" if known else "GET /models has them"
                require_known(tables, Selection(model=(model_id,)))
                raise NotFound(f"Nothing is recorded of a model {model_id!r}: {hint}.")
            return {
                "model": rows[0],
                "sets": sets_of(known) if (known := find_model(rows[0]["model_id"])) else [],
                "matrix": tables.rows(_CELLS, values),
                "results": tables.rows(_COUNTS, values),
            }

        return table_response(reader, request, read)

    return routes
