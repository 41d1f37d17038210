"""Routes that read the tables of results and the compatibility matrix."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Query

from accel_platform.analysis.selection import recorded_id
from accel_platform.errors import InvalidInput
from predictor.advisor import Advisor
from predictor.service.problems import documented
from predictor.service.schemas import Matrix, MatrixQuery, Result, ResultPage, ResultsQuery

_RESULT_COLUMNS = ", ".join(Result.model_fields)


def router(advisor: Advisor) -> APIRouter:
    routes = APIRouter(tags=["results"])

    @routes.get("/results", responses=documented(422, 503))
    def results(asked: Annotated[ResultsQuery, Query()]) -> ResultPage:
        """Rows of the results table, newest first."""
        clauses, values = _where(asked.model_dump(include={"model", "hardware", "mode", "provenance", "status"}))
        if asked.cursor is not None:
            clauses.append("result_id < ?")
            values.append(_decode(asked.cursor))
        where = f"WHERE {' AND '.join(clauses)}" if clauses else ""
        rows, snapshot_id = advisor.reader.rows_with_snapshot(
            f"SELECT {_RESULT_COLUMNS} FROM results {where} ORDER BY result_id DESC LIMIT {asked.limit + 1}", values
        )
        page = [Result.model_validate(row) for row in rows[: asked.limit]]
        more = _encode(page[-1].result_id) if len(rows) > asked.limit else None
        return ResultPage(results=page, next_cursor=more, snapshot_id=snapshot_id)

    @routes.get("/matrix", responses=documented(422, 503))
    def matrix(asked: Annotated[MatrixQuery, Query()]) -> Matrix:
        """The compatibility matrix."""
        clauses, values = _where(asked.model_dump())
        where = f"WHERE {' AND '.join(clauses)}" if clauses else ""
        rows, snapshot_id = advisor.reader.rows_with_snapshot(
            f"SELECT * FROM compat_matrix {where} ORDER BY model_id, hardware, device_name, mode", values
        )
        return Matrix.model_validate({"cells": rows, "snapshot_id": snapshot_id})

    return routes


def _where(filters: dict[str, str | None]) -> tuple[list[str], list[Any]]:
    """Conditions and their values; a filter that is None leaves nothing out."""
    model = filters["model"]
    columns = {"model_id": model and recorded_id(model), **{k: v for k, v in filters.items() if k != "model"}}
    given = {column: value for column, value in columns.items() if value is not None}
    return [f"{column} = ?" for column in given], list(given.values())


def _encode(result_id: UUID) -> str:
    return base64.urlsafe_b64encode(result_id.bytes).decode().rstrip("=")


def _decode(cursor: str) -> UUID:
    try:
        return UUID(bytes=base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except (ValueError, binascii.Error) as error:
        raise InvalidInput("The cursor is none that this service gave: begin again without one.") from error
