"""Conversion of events to and from Arrow: one fixed table layout for every type and version.

The payload is stored as JSON, so a type can grow without a change to stored bytes. Raw samples are the one bulk field.
They get a typed, delta-encoded column, at about a quarter of their size as JSON.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from accel_platform.errors import AccelError, InvalidInput
from accel_platform.events import seal
from accel_platform.events.types import PAYLOADS, Event, Payload

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
_MAX_PLAIN_EVENTS = 64
"""Segments of up to this many events are not compressed, because that would cost more time than it saves bytes."""
_ZSTD_LEVEL = 8
"""Compression level: level 11 saves one byte in a hundred more and takes twice as long."""
_PAGE_BYTES = 16 << 20
"""Size of a Parquet page: pages are compressed one by one; large ones come out a tenth smaller."""
_MAX_ROW_GROUPS = 8
_BULK = {"samples_ns"}
_TIMES = ("occurred_at", "recorded_at")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_NO_ID = bytes(16)
_MAX_OFFSET = 2**31 - 1
"""Largest of the 32-bit offsets of Arrow's lists."""

Row = tuple[Any, ...]
"""One event as plain values, in the order of SCHEMA; the payload is JSON without its samples."""
COLUMN = {name: number for number, name in enumerate(SCHEMA.names)}
"""Position of each column in a row."""


def to_row(
    event_id: bytes,
    payload: Payload,
    *,
    occurred_at: datetime | None,
    recorded_at: datetime,
    source: str,
    host_id: str | None = None,
    run_id: str | None = None,
    causation_id: bytes | None = None,
) -> Row:
    """Return one event as plain values in the order of SCHEMA."""
    return (
        event_id,
        type(payload).__name__,
        payload.VERSION,
        occurred_at,
        recorded_at,
        source,
        host_id,
        run_id,
        causation_id,
        # As `model_dump_json` does, without its many options, which took a tenth of it.
        payload.__pydantic_serializer__.to_json(payload, exclude_none=True, exclude=_BULK).decode(),
        getattr(payload, "samples_ns", None) or None,
    )


def to_rows(events: Iterable[Event]) -> list[Row]:
    """Return the events as rows of plain values in the order of SCHEMA, cheap to hold and to send to a process."""
    return [
        to_row(
            event.event_id.bytes,
            event.payload,
            occurred_at=event.occurred_at,
            recorded_at=event.recorded_at,
            source=event.source,
            host_id=event.host_id,
            run_id=event.run_id,
            causation_id=event.causation_id.bytes if event.causation_id else None,
        )
        for event in events
    ]


def to_arrow(events: Iterable[Event]) -> pa.Table:
    """Return the events as one table in SCHEMA, in the given order."""
    return rows_to_arrow(to_rows(events))


def rows_to_arrow(rows: Sequence[Row]) -> pa.Table:
    """Return the rows as one table in SCHEMA, in the given order."""
    columns = zip(*rows, strict=True) if rows else [()] * len(SCHEMA)
    arrays = [_array(field.type, values) for field, values in zip(SCHEMA, columns, strict=True)]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


def _array(kind: pa.DataType, values: Sequence[Any]) -> pa.Array:
    """Return the values as an array of one of SCHEMA's types.

    `pa.array` is slower, and imports pandas, which takes longer than a whole append.
    """
    if pa.types.is_string(kind):
        return strings(values)
    present = np.fromiter((value is not None for value in values), np.bool_, len(values))
    validity = None if present.all() else pa.py_buffer(np.packbits(present, bitorder="little"))
    if isinstance(kind, pa.UuidType):
        ids = pa.py_buffer(b"".join([value or _NO_ID for value in values]))
        storage = pa.Array.from_buffers(kind.storage_type, len(values), [validity, ids])
        return pa.ExtensionArray.from_storage(kind, storage)
    if pa.types.is_list(kind):
        lengths = np.fromiter((0 if value is None else len(value) for value in values), np.int64, len(values))
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        if offsets[-1] > _MAX_OFFSET:
            raise InvalidInput(f"One append holds {offsets[-1]:,} samples, at most {_MAX_OFFSET:,}: append in parts.")
        members = np.fromiter(itertools.chain.from_iterable(filter(None, values)), np.int64, int(offsets[-1]))
        within = pa.Array.from_buffers(kind.value_type, len(members), [None, pa.py_buffer(members)])
        buffers = [validity, pa.py_buffer(offsets.astype(np.int32))]
        return pa.Array.from_buffers(kind, len(values), buffers, children=[within])
    if pa.types.is_timestamp(kind):
        values = [0 if value is None else (value - _EPOCH) // _MICROSECOND for value in values]
    numbers = np.array(values, kind.to_pandas_dtype() if pa.types.is_integer(kind) else np.int64)
    return pa.Array.from_buffers(kind, len(values), [validity, pa.py_buffer(numbers)])


def strings(values: Sequence[str | None]) -> pa.Array:
    """Return the values as an array of strings."""
    builder = pa.lib.StringBuilder()
    builder.append_values(values)
    return builder.finish()


def to_parquet(table: pa.Table, key: str) -> bytes:
    """Return the table as the bytes of one Parquet file, sealed for `key`; equal tables give equal bytes.

    Where rows of one type lie together, each type gets its own row group, so a reader of one type skips the others.
    """
    sink = pa.BufferOutputStream()
    if table.num_rows <= _MAX_PLAIN_EVENTS:
        options: dict[str, Any] = {"compression": "none", "use_dictionary": False, "write_statistics": False}
        groups = [table]
    else:
        options = {
            "compression": "zstd",
            "compression_level": _ZSTD_LEVEL,
            "use_dictionary": [c for c in (*_DICTIONARY_COLUMNS, "segment") if c in table.column_names],
            # Delta encoding suits ids: those of one document differ in their last bytes, those of one moment nearly so.
            "column_encoding": {"event_id": "DELTA_BYTE_ARRAY", "samples_ns.list.element": "DELTA_BINARY_PACKED"},
            "data_page_size": _PAGE_BYTES,
        }
        groups = _by_type(table)
    # No Arrow schema is stored, because Parquet's types suffice and the copy would double the size of one event.
    with pq.ParquetWriter(sink, table.schema, store_schema=False, **options) as writer:
        for group in groups:
            writer.write_table(group)
        writer.add_key_value_metadata(seal.metadata(key))
    return seal.fill_hash(sink.getvalue().to_pybytes())


def _by_type(table: pa.Table) -> list[pa.Table]:
    """Split the table into runs of equal types; return it whole where there are more than `_MAX_ROW_GROUPS`."""
    types = table["type"].combine_chunks()
    changes = pc.indices_nonzero(pc.not_equal(types[1:], types[:-1])).to_pylist()
    starts = [0, *(index + 1 for index in changes), len(types)]
    if len(starts) > _MAX_ROW_GROUPS:
        return [table]
    return [table.slice(start, end - start) for start, end in itertools.pairwise(starts)]


def from_arrow(batches: Iterable[pa.RecordBatch]) -> Iterator[Event]:
    """Yield typed events from stored rows, old versions lifted to the current one."""
    for batch in batches:
        rows = batch.select([name for name in SCHEMA.names if name not in _TIMES]).to_pylist()
        times = zip(*(_moments(batch.column(name)) for name in _TIMES), strict=True)
        for row, (occurred_at, recorded_at) in zip(rows, times, strict=True):
            payload = json.loads(row["payload"])
            if row["samples_ns"] is not None:
                payload["samples_ns"] = row["samples_ns"]
            payload = upcast(row["type"], row["schema_version"], payload)
            cls = PAYLOADS[row["type"]]
            yield Event(
                event_id=_uuid(row["event_id"]),
                type=row["type"],
                schema_version=cls.VERSION,
                occurred_at=occurred_at,
                recorded_at=recorded_at,
                source=row["source"],
                host_id=row["host_id"],
                run_id=row["run_id"],
                causation_id=None if row["causation_id"] is None else _uuid(row["causation_id"]),
                payload=cls.model_validate(payload),
            )


def _moments(column: pa.Array) -> list[datetime | None]:
    """Convert a timestamp column to datetimes without pyarrow, which imports pandas for times with a zone."""
    return [
        None if since is None else _EPOCH + timedelta(microseconds=since)
        for since in column.view(pa.int64()).to_pylist()
    ]


def _uuid(value: UUID | bytes) -> UUID:
    return value if isinstance(value, UUID) else UUID(bytes=value)


Json = dict[str, Any]
_MIB_PER_MB = 1_000_000 / 1_048_576


def _result_recorded_1(old: Json) -> Json:
    """Convert version 1, which has samples in float milliseconds and memory in decimal megabytes."""
    new = dict(old)
    samples_ms = new.pop("latency_samples_ms", None)
    if samples_ms:
        new["samples_ns"] = [round(ms * 1_000_000) for ms in samples_ms]
    memory_mb = new.pop("memory_peak_mb", None)
    if memory_mb is not None:
        new["memory_peak_mib"] = memory_mb * _MIB_PER_MB
    return new


UPCASTERS: dict[tuple[str, int], Callable[[Json], Json]] = {("ResultRecorded", 1): _result_recorded_1}
"""Step from (type, version) to version + 1."""


def upcast(type_: str, version: int, payload: Json) -> Json:
    """Lift a stored payload to the current version of its type.

    Raises AccelError for a type or version that this program does not know, because a newer one wrote it.
    """
    if type_ not in PAYLOADS:
        raise AccelError(f"The log holds an event of unknown type {type_!r}: upgrade accel-platform to read it.")
    current = PAYLOADS[type_].VERSION
    if version > current:
        raise AccelError(
            f"The log holds {type_} version {version}, this program knows {current}: upgrade accel-platform to read it."
        )
    for step in range(version, current):
        payload = UPCASTERS[type_, step](payload)
    return payload
