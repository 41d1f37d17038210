"""The HTTP service: its routes and nothing else. Answers come from the advisor, tables from the warehouse."""

from __future__ import annotations

import base64
import binascii
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from importlib.metadata import version
from typing import Annotated, Any
from uuid import UUID

from fastapi import FastAPI, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi_offline import FastAPIOffline

from accel_platform.errors import InvalidInput, NotFound
from accel_platform.settings import Settings
from accel_platform.workloads.families import resolve_model
from predictor.advisor import Advisor
from predictor.answers import Answer, BatchAnswer, PredictAnswer
from predictor.questions import BatchQuery, PredictQuery, RecommendQuery
from predictor.service import problems
from predictor.service.schemas import Health, Matrix, MatrixQuery, Result, ResultPage, ResultsQuery
from predictor.subject import item_cost

_VERSION = version("accel-platform")
# FastAPI would trace into whatever OpenTelemetry provider the process or its environment sets up.
_NO_TELEMETRY = {"tracing": False, "metrics": False, "logs": False, "operation_spans": False, "auto_configure": False}
_RESULT_COLUMNS = ", ".join(Result.model_fields)


def create_app(settings: Settings) -> FastAPI:
    """The service over one installation. It follows new snapshots and predictors without a restart."""
    advisor = Advisor(settings)
    # FastAPI's own /docs fetches its scripts from a CDN; this one serves them itself.
    app = FastAPIOffline(
        title="Accel advisor",
        summary="Which hardware for this model? Answers from measurements first, from a learned model second.",
        version=_VERSION,
        redoc_url=None,
        lifespan=partial(_following, advisor),
        telemetry=_NO_TELEMETRY,
    )
    problems.install(app)

    @app.get("/", include_in_schema=False)
    def index(request: Request) -> dict[str, Any]:
        base = str(request.base_url)
        routes = {
            "GET": ["docs", "openapi.json", "health", "results", "matrix"],
            "POST": ["recommend", "predict", "predict/batch"],
        }
        return {
            "name": app.title,
            "open": {method: [base + path for path in paths] for method, paths in routes.items()},
        }

    @app.post("/recommend", response_model=Answer, responses=problems.documented(404, 413, 422, 503))
    async def recommend(query: RecommendQuery) -> Response:
        """Rank the hardware for a model, with limits, provenance and evidence for every figure."""
        content = advisor.kept(query) or advisor.answer_at_once(query)
        if content is None:
            content = await run_in_threadpool(advisor.answer, query)
        return Response(content, media_type="application/json")

    @app.post("/predict", responses=problems.documented(404, 413, 422, 503))
    def predict(query: PredictQuery) -> PredictAnswer:
        """The figures of one model on one piece of hardware. 404, with what to measure, where nothing supports any."""
        return advisor.predict(query)

    @app.post("/predict/batch", responses=problems.documented(413, 422, 503))
    def predict_many(query: BatchQuery) -> BatchAnswer:
        """Up to 1,000 cells at once. What cannot be answered says so in its place and stops no other."""
        return advisor.predict_many(query)

    @app.get("/health", responses=problems.documented(503))
    def health() -> Health:
        """200 while the service can answer; 503 with the command to run before anything was measured."""
        knowledge = advisor.knowledge()
        predictor = knowledge.predictor
        [row] = advisor.reader.rows("SELECT count(*) AS results FROM results")
        return Health(
            status="ok",
            version=_VERSION,
            snapshot_id=knowledge.evidence.snapshot_id,
            predictor_id=predictor.predictor_id if predictor else None,
            predictor_missing=None if predictor else knowledge.no_predictor,
            results=row["results"],
            cells=len(knowledge.evidence.pooled),
        )

    @app.get("/results", responses=problems.documented(422, 503))
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

    @app.get("/matrix", responses=problems.documented(422, 503))
    def matrix(asked: Annotated[MatrixQuery, Query()]) -> Matrix:
        """The compatibility matrix."""
        clauses, values = _where(asked.model_dump())
        where = f"WHERE {' AND '.join(clauses)}" if clauses else ""
        rows, snapshot_id = advisor.reader.rows_with_snapshot(
            f"SELECT * FROM compat_matrix {where} ORDER BY model_id, hardware, device_name, mode", values
        )
        return Matrix.model_validate({"cells": rows, "snapshot_id": snapshot_id})

    return app


@asynccontextmanager
async def _following(advisor: Advisor, _: FastAPI) -> AsyncIterator[None]:
    """Beside the requests: put new snapshots and predictors into service, and import what costing a model needs."""
    stop = threading.Event()
    threading.Thread(target=_warm, name="warm", daemon=True).start()
    following = threading.Thread(target=advisor.follow, args=(stop,), name="follow", daemon=True)
    following.start()
    yield
    stop.set()
    following.join()


def _warm() -> None:
    """Trace a small model: the first takes seconds, for its imports."""
    smallest = resolve_model("bert-tiny")
    item_cost(smallest.model_id, smallest, smallest.sequence_length, {})


def _model_id(name: str | None) -> str | None:
    """A hub id or alias as the id it is recorded under; a name that only results know stays as it is."""
    try:
        return None if name is None else resolve_model(name).model_id
    except NotFound:
        return name


def _where(filters: dict[str, str | None]) -> tuple[list[str], list[Any]]:
    """Conditions and their values; a filter that is None leaves nothing out."""
    columns = {"model_id": _model_id(filters["model"]), **{k: v for k, v in filters.items() if k != "model"}}
    given = {column: value for column, value in columns.items() if value is not None}
    return [f"{column} = ?" for column in given], list(given.values())


def _encode(result_id: UUID) -> str:
    return base64.urlsafe_b64encode(result_id.bytes).decode().rstrip("=")


def _decode(cursor: str) -> UUID:
    try:
        return UUID(bytes=base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except (ValueError, binascii.Error) as error:
        raise InvalidInput("The cursor is none that this service gave: begin again without one.") from error
