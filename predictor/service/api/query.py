"""Route for SQL over the warehouse: one SELECT, run by the sandbox."""

from __future__ import annotations

import io
import math
import re
import threading
from asyncio import create_task
from decimal import Decimal
from functools import partial
from typing import Annotated, Any

import pyarrow as pa
from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from accel_platform.errors import Busy, InvalidInput
from accel_platform.table_io import files
from accel_platform.warehouse.sandbox import Sandbox, SandboxRows
from predictor.schemas.rows import SnapshotId
from predictor.service.http.bodies import JsonRoute
from predictor.service.http.conditional import JSON
from predictor.service.http.problems import problem_responses
from predictor.service.http.streaming import TYPES

ARROW = TYPES["arrow"]
MAX_ROWS = 100_000
_MAX_PENDING = 8
"""Queries that run or wait; more are rejected, because each holds a thread."""
_BYTES = {"type": "string", "format": "binary"}
Scalar = str | bool | int | float | None


class SqlQuery(BaseModel):
    """One SELECT over the tables of `accel db stats`."""

    model_config = ConfigDict(extra="forbid")
    sql: str = Field(
        min_length=1,
        max_length=100_000,
        examples=["SELECT hardware, count(*) AS n FROM results GROUP BY ALL"],
        description="One SELECT, in DuckDB's dialect.",
    )
    parameters: (
        Annotated[list[Scalar], Field(max_length=1000)] | dict[Annotated[str, Field(max_length=200)], Scalar]
    ) = Field(default=[], description="Values for `?` or `$1` (a list) or for `$name` (an object).")
    max_rows: int = Field(
        default=1000, ge=1, le=MAX_ROWS, description="Most rows to return; `truncated` says whether there were more."
    )


class Column(BaseModel):
    name: str = Field(description="Name of the column.")
    type: str = Field(description="As Arrow calls it.")


class SqlRows(BaseModel):
    """Rows of a query."""

    columns: list[Column] = Field(description="Names and types of the columns, in order.")
    rows: list[list[Any]] = Field(description="In the order of the columns. Unknown is null; NaN and infinity are too.")
    truncated: bool = Field(description="There were more rows than `max_rows`, or than 32 MiB hold.")
    snapshot_id: SnapshotId
    elapsed_ms: float = Field(description="Time that the query took, in ms.")


def router(sandbox: Sandbox) -> APIRouter:
    routes = APIRouter(tags=["tables"], route_class=JsonRoute)
    threads = CapacityLimiter(_MAX_PENDING)

    @routes.post(
        "/query",
        response_model=SqlRows,
        responses={
            200: {"content": {kind: {"schema": _BYTES} for kind in (ARROW, "text/csv")}},
            **problem_responses(400, 413, 415, 422, 503),
        },
    )
    async def query(statement: SqlQuery, request: Request) -> Response:
        """Run one SELECT in a process of its own: no files, no network, 10 s, 512 MiB.

        `Accept` chooses JSON, Arrow or CSV; for the latter two the header `X-Truncated` is true where there were more
        rows. In CSV, text that a spreadsheet would take for a formula gets an apostrophe before it.
        """
        if threads.available_tokens < 1:
            raise Busy("Many queries wait already: ask again in a few seconds.")
        disconnected = threading.Event()
        watcher = create_task(_watch_disconnect(request, disconnected))
        run = partial(
            sandbox.query, statement.sql, statement.parameters, max_rows=statement.max_rows, cancelled=disconnected
        )
        try:
            result = await run_sync(run, limiter=threads)
        finally:
            watcher.cancel()
        kind = _preferred_type(request.headers.get("accept", ""))
        if kind in _ENCODERS:
            content = await run_sync(_ENCODERS[kind], result.table, limiter=threads)
            return Response(content, media_type=kind, headers=_headers(result))
        answer = await run_sync(_json, result, limiter=threads)
        return Response(answer, media_type="application/json")

    return routes


async def _watch_disconnect(request: Request, disconnected: threading.Event) -> None:
    """Set the event when the client disconnects."""
    while (await request.receive())["type"] != "http.disconnect":
        continue
    disconnected.set()


def _preferred_type(accept: str) -> str:
    """Return the media type that an Accept header prefers: by its quality, then the first; JSON where none is named.

    Clients that are made from the OpenAPI document name all types, JSON first.
    """
    offered = {kind.partition(";")[0]: kind for kind in (JSON, *_ENCODERS)}
    named: list[tuple[float, str]] = []
    for part in accept.lower().split(","):
        kind, _, parameters = part.strip().partition(";")
        quality = re.search(r"\bq=(0(?:\.\d+)?)", parameters)
        if kind.strip() in offered:
            named.append((float(quality[1]) if quality else 1.0, offered[kind.strip()]))
    return max(named, key=lambda one: one[0], default=(1.0, JSON))[1]


def _headers(result: SandboxRows) -> dict[str, str]:
    return {"X-Truncated": str(result.truncated).lower(), "X-Snapshot-ID": result.snapshot_id}


def _arrow(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def _csv(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    files.write(table, sink, "csv")
    return sink.getvalue()


_ENCODERS = {ARROW: _arrow, TYPES["csv"]: _csv}


def _json(result: SandboxRows) -> bytes:
    columns = [_plain_column(*pair) for pair in zip(result.table.schema, result.table.columns, strict=True)]
    return (
        SqlRows(
            columns=[Column(name=field.name, type=str(field.type)) for field in result.table.schema],
            rows=[list(row) for row in zip(*columns, strict=True)],
            truncated=result.truncated,
            snapshot_id=result.snapshot_id,
            elapsed_ms=result.elapsed_ms,
        )
        .model_dump_json()
        .encode()
    )


def _plain_column(field: pa.Field, column: pa.ChunkedArray) -> list[Any]:
    try:
        return [_plain(value) for value in column.to_pylist()]
    except (OverflowError, ValueError) as error:
        raise InvalidInput(
            f"The column {field.name!r} does not fit into JSON ({error}): make it text (::VARCHAR), or accept Arrow."
        ) from error


def _plain(value: Any) -> Any:
    """Return a value as JSON has it: NaN as null, decimals as numbers, bytes in hex, times and the rest as text."""
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if value is None or isinstance(value, str | bool | int):
        return value
    return value.hex() if isinstance(value, bytes) else value.isoformat() if hasattr(value, "isoformat") else str(value)
