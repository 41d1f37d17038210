"""Routes for the compatibility matrix, its history, and the coverage of architectures."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from accel_platform.analysis.query.filters import (
    MAX_NAMES,
    Selection,
    equality_condition,
    reject_choices,
    require_known_unless_found,
    require_recorded_if_empty,
)
from accel_platform.analysis.summaries.matrix_history import MatrixChange, matrix_history
from accel_platform.warehouse.reader import Reader
from predictor.advisor.advisor import Advisor
from predictor.schemas.queries import CoverageQuery, MatrixQuery, selection_of
from predictor.schemas.rows import Coverage, CoveragePage, MatrixCell, MatrixPage, SnapshotId
from predictor.service.http.conditional import NOT_MODIFIED, parse_json_columns, table_response
from predictor.service.http.paging import BY_MATRIX_CELL, PagedTable
from predictor.service.http.problems import problem_responses

_MATRIX = PagedTable(
    "compat_matrix",
    ", ".join(f"r.{name}" for name in MatrixCell.model_fields),
    BY_MATRIX_CELL,
    descending=False,
)
_COVERAGE = PagedTable(
    "coverage",
    ", ".join(f"r.{name}" for name in Coverage.model_fields),
    (("r.model_type", "VARCHAR"), ("r.hardware", "VARCHAR"), ("coalesce(r.host_id, '')", "VARCHAR")),
    descending=False,
)


class MatrixHistoryQuery(BaseModel):
    """Filters of the matrix's history."""

    model_config = ConfigDict(extra="forbid")
    model: tuple[str, ...] = Field(
        min_length=1, max_length=MAX_NAMES, description=Selection.model_fields["model"].description
    )
    hardware: tuple[str, ...] = Field(
        default=(), max_length=MAX_NAMES, description=Selection.model_fields["hardware"].description
    )
    mode: str | None = Field(default=None, max_length=200)


class MatrixHistory(BaseModel):
    """Changes of verdicts, the oldest first."""

    changes: list[MatrixChange] = Field(description="One per device and changed verdict, the oldest first.")
    snapshot_id: SnapshotId


def router(advisor: Advisor) -> APIRouter:
    routes = APIRouter(tags=["matrix"])
    reader = advisor.reader

    @routes.get("/matrix", response_model=MatrixPage, responses=problem_responses(404, 422, 503) | NOT_MODIFIED)
    def matrix(request: Request, query: Annotated[MatrixQuery, Query()]) -> Response:
        """List cells of the compatibility matrix that have evidence, by model, hardware, device and mode."""

        def read(tables: Reader) -> dict[str, Any]:
            rows, more = _MATRIX.page(tables, query, *query.where())
            require_known_unless_found(rows, tables, query.selection())
            return {"cells": rows, "next_cursor": more}

        return table_response(reader, request, read)

    @routes.get(
        "/matrix/history",
        name="matrix_history",
        response_model=MatrixHistory,
        responses=problem_responses(404, 422, 503) | NOT_MODIFIED,
    )
    def history(request: Request, query: Annotated[MatrixHistoryQuery, Query()]) -> Response:
        """List each day on which a cell's verdict changed, replayed from the log."""

        def read(tables: Reader) -> dict[str, Any]:
            selection = Selection(model=query.model, hardware=query.hardware, mode=query.mode)
            changes = matrix_history(tables, selection, mode=query.mode)
            require_known_unless_found(changes, tables, selection)
            return {"changes": changes}

        return table_response(reader, request, read)

    @routes.get("/coverage", response_model=CoveragePage, responses=problem_responses(404, 422, 503) | NOT_MODIFIED)
    def coverage(request: Request, query: Annotated[CoverageQuery, Query()]) -> Response:
        """List whether each architecture of transformers, shrunk, ran on each hardware name of each host."""

        def read(tables: Reader) -> dict[str, Any]:
            filters = query.model_dump(exclude={"limit", "cursor"})
            reject_choices(filter(None, [query.hardware]))
            rows, more = _COVERAGE.page(tables, query, *equality_condition(**filters))
            require_known_unless_found(rows, tables, selection_of(None, query.hardware, None))
            names = query.model_dump(include={"model_type", "family", "category", "status"})
            require_recorded_if_empty(rows, tables, "coverage", names)
            found = parse_json_columns(rows, "versions")
            return {"coverage": found, "next_cursor": more}

        return table_response(reader, request, read)

    return routes
