"""SQL over the warehouse for whoever may ask: one SELECT, run by the sandbox. What it may do is decided there."""

from __future__ import annotations

import io
import math
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

from accel_platform.errors import Busy
from accel_platform.table_io import files
from accel_platform.warehouse.sandbox import Rows, Sandbox
from predictor.service.http.problems import documented
from predictor.service.http.streaming import TYPES

ARROW = TYPES["arrow"]
MOST_ROWS = 100_000
_AT_THE_DOOR = 8
"""Queries that run or wait for their turn; more are sent away, for each holds a thread."""
_BYTES = {"type": "string", "format": "binary"}
Scalar = str | bool | int | float | None


class SqlQuery(BaseModel):
    """One SELECT over the tables of `accel db stats`."""

    model_config = ConfigDict(extra="forbid")
    sql: str = Field(
        min_length=1, max_length=100_000, examples=["SELECT hardware, count(*) AS n FROM results GROUP BY ALL"]
    )
    parameters: list[Scalar] | dict[Annotated[str, Field(max_length=200)], Scalar] = Field(
        default=[], description="Values for `?` or `$1` (a list) or for `$name` (an object)."
    )
    max_rows: int = Field(default=1000, ge=1, le=MOST_ROWS)


class Column(BaseModel):
    name: str
    type: str = Field(description="As Arrow calls it.")


class SqlRows(BaseModel):
    """What the query found."""

    columns: list[Column]
    rows: list[list[Any]] = Field(description="In the order of the columns. Unknown is null; NaN and infinity are too.")
    truncated: bool = Field(description="There were more rows than `max_rows`, or than 32 MiB hold.")
    snapshot_id: str
    elapsed_ms: float


def router(sandbox: Sandbox) -> APIRouter:
    routes = APIRouter(tags=["tables"])
    threads = CapacityLimiter(_AT_THE_DOOR)

    @routes.post(
        "/query",
        response_model=SqlRows,
        responses={
            200: {"content": {kind: {"schema": _BYTES} for kind in (ARROW, "text/csv")}},
            **documented(400, 413, 422, 503),
        },
    )
    async def query(asked: SqlQuery, request: Request) -> Response:
        """Run one SELECT in a process of its own: no files, no network, 10 s, 512 MiB. `Accept` chooses JSON, Arrow or
        CSV; of the latter two the header `X-Truncated` tells whether there were more rows. Text that a spreadsheet
        would take for a formula has an apostrophe before it in CSV."""
        if threads.available_tokens < 1:
            raise Busy("Many queries wait already: ask again in a few seconds.")
        gone = threading.Event()
        watching = create_task(_watch(request, gone))
        run = partial(sandbox.query, asked.sql, asked.parameters, max_rows=asked.max_rows, cancelled=gone)
        try:
            found = await run_sync(run, limiter=threads)
        finally:
            watching.cancel()
        accepted = request.headers.get("accept", "")
        for kind, write in _STREAMS.items():
            if kind.partition(";")[0] in accepted:
                content = await run_sync(write, found.table, limiter=threads)
                return Response(content, media_type=kind, headers=_about(found))
        answer = await run_sync(_json, found, limiter=threads)
        return Response(answer, media_type="application/json")

    return routes


async def _watch(request: Request, gone: threading.Event) -> None:
    """Tell the sandbox when whoever asked hangs up."""
    while (await request.receive())["type"] != "http.disconnect":
        continue
    gone.set()


def _about(found: Rows) -> dict[str, str]:
    return {"X-Truncated": str(found.truncated).lower(), "X-Snapshot-ID": found.snapshot_id}


def _arrow(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def _csv(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    files.write(table, sink, "csv")
    return sink.getvalue()


_STREAMS = {ARROW: _arrow, TYPES["csv"]: _csv}


def _json(found: Rows) -> bytes:
    columns = [[_plain(value) for value in column.to_pylist()] for column in found.table.columns]
    return (
        SqlRows(
            columns=[Column(name=field.name, type=str(field.type)) for field in found.table.schema],
            rows=[list(row) for row in zip(*columns, strict=True)],
            truncated=found.truncated,
            snapshot_id=found.snapshot_id,
            elapsed_ms=found.elapsed_ms,
        )
        .model_dump_json()
        .encode()
    )


def _plain(value: Any) -> Any:
    """A value as JSON has it: no NaN, decimals as numbers, bytes in hex, times and the rest as text."""
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
