"""Events to and from Arrow: one fixed table layout for every type and version. No files are touched here.

The payload travels as JSON, so that a type can grow without touching a stored byte. Raw samples are the one bulk field;
they get a typed column of their own, delta-encoded, at about a quarter of what they take as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq

from accel_platform.events.types import PAYLOADS, Event
from accel_platform.events.upcast import upcast

SCHEMA = pa.schema(
    [
        pa.field("event_id", pa.uuid(), nullable=False),
        pa.field("type", pa.string(), nullable=False),
        pa.field("schema_version", pa.int16(), nullable=False),
        pa.field("occurred_at", pa.timestamp("us", "UTC")),
        pa.field("recorded_at", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("host_id", pa.string()),
        pa.field("run_id", pa.string()),
        pa.field("causation_id", pa.uuid()),
        pa.field("payload", pa.string(), nullable=False),
        pa.field("samples_ns", pa.list_(pa.int64())),
    ]
)
_DICTIONARY_COLUMNS = ["type", "schema_version", "source", "host_id", "run_id"]
_SMALL = 64
"""Up to this many events a segment is written plain: at that size compressing costs more time than it saves bytes."""


def to_arrow(events: Sequence[Event]) -> pa.Table:
    """The events as one table in SCHEMA, in the given order."""
    storage = [f.type.storage_type if isinstance(f.type, pa.ExtensionType) else f.type for f in SCHEMA]
    columns: list[list[Any]] = [[] for _ in SCHEMA]
    for event in events:
        payload = event.payload.model_dump(mode="json", exclude_none=True)
        samples = payload.pop("samples_ns", None)
        row = (
            event.event_id.bytes,
            event.type,
            event.schema_version,
            event.occurred_at,
            event.recorded_at,
            event.source,
            event.host_id,
            event.run_id,
            event.causation_id.bytes if event.causation_id else None,
            json.dumps(payload, separators=(",", ":"), ensure_ascii=False, allow_nan=False),
            samples or None,
        )
        for column, value in zip(columns, row, strict=True):
            column.append(value)
    arrays = []
    for field, kind, values in zip(SCHEMA, storage, columns, strict=True):
        array = pa.array(values, kind)
        arrays.append(pa.ExtensionArray.from_storage(field.type, array) if field.type != kind else array)
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


def to_parquet(table: pa.Table) -> bytes:
    """The table as the bytes of one Parquet file; equal tables give equal bytes."""
    sink = pa.BufferOutputStream()
    if table.num_rows <= _SMALL:
        options: dict[str, Any] = {"compression": "none", "use_dictionary": False, "write_statistics": False}
    else:
        options = {
            "compression": "zstd",
            "compression_level": 6,
            "use_dictionary": [c for c in (*_DICTIONARY_COLUMNS, "segment") if c in table.column_names],
            "column_encoding": {"samples_ns.list.element": "DELTA_BINARY_PACKED"},
        }
    # Parquet's own types say all that ours do; Arrow's copy of the schema would double the size of one event.
    with pq.ParquetWriter(sink, table.schema, store_schema=False, **options) as writer:
        writer.write_table(table)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def from_arrow(batches: Iterable[pa.RecordBatch]) -> Iterator[Event]:
    """Typed events from stored rows, old versions lifted to the current one."""
    for batch in batches:
        for row in batch.select(SCHEMA.names).to_pylist():
            payload = json.loads(row["payload"])
            if row["samples_ns"] is not None:
                payload["samples_ns"] = row["samples_ns"]
            payload = upcast(row["type"], row["schema_version"], payload)
            cls = PAYLOADS[row["type"]]
            yield Event(
                event_id=_uuid(row["event_id"]),
                type=row["type"],
                schema_version=cls.VERSION,
                occurred_at=row["occurred_at"],
                recorded_at=row["recorded_at"],
                source=row["source"],
                host_id=row["host_id"],
                run_id=row["run_id"],
                causation_id=None if row["causation_id"] is None else _uuid(row["causation_id"]),
                payload=cls.model_validate(payload),
            )


def _uuid(value: UUID | bytes) -> UUID:
    return value if isinstance(value, UUID) else UUID(bytes=value)
