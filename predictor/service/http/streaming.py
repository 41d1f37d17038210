"""Streams of results as Arrow IPC, CSV or NDJSON, with one batch in memory at a time."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Literal

import pyarrow as pa
from pyarrow import csv

from accel_platform.table_io.files import guard_column
from predictor.schemas.rows import Result

Form = Literal["arrow", "csv", "ndjson"]
Rows = AbstractContextManager[pa.RecordBatchReader]
TYPES: dict[Form, str] = {
    "arrow": "application/vnd.apache.arrow.stream",
    "csv": "text/csv; charset=utf-8",
    "ndjson": "application/x-ndjson",
}
_ZONED = "strftime(r.{0}, '%Y-%m-%dT%H:%M:%S.%fZ')"
_ZONELESS = "strftime(r.{0}, '%Y-%m-%dT%H:%M:%S.%f')"
_AS_JSON = {"occurred_at": _ZONED, "recorded_at": _ZONED, "occurred_local": _ZONELESS}


def select_list(form: Form) -> str:
    """Return the SELECT list over `results` (as `r`) for a stream of this form."""
    names = list(Result.model_fields)
    if form != "ndjson":
        return ", ".join(f"r.{name}" for name in names)
    members = ", ".join(f"{name} := {_AS_JSON.get(name, 'r.{0}').format(name)}" for name in names)
    return f"to_json(struct_pack({members}))::VARCHAR AS line"


def encode_rows(form: Form, rows: Rows) -> Iterator[bytes]:
    """Yield the rows of `select_list(form)` as bytes, a chunk per batch."""
    with rows as batches:
        if form == "ndjson":
            for batch in batches:
                yield "\n".join([*batch.column(0).to_pylist(), ""]).encode()
            return
        sink = io.BytesIO()
        open_writer, transform = (csv.CSVWriter, _escape_formulas) if form == "csv" else (pa.ipc.new_stream, _unchanged)
        with open_writer(sink, batches.schema) as writer:
            for batch in batches:
                writer.write_batch(transform(batch))
                yield _drain(sink)
        yield _drain(sink)


def _unchanged(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def _escape_formulas(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Put an apostrophe before text that a spreadsheet would take for a formula."""
    return pa.RecordBatch.from_arrays([guard_column(column) for column in batch.columns], schema=batch.schema)


def _drain(sink: io.BytesIO) -> bytes:
    content = sink.getvalue()
    sink.seek(0)
    sink.truncate()
    return content
