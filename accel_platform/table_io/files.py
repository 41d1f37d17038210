"""Tables as files of every format, streamed row by row in constant memory."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from accel_platform.atomic_write import require_writable
from accel_platform.errors import AccelError, InvalidInput, storage_unavailable
from accel_platform.table_io import text
from accel_platform.table_io.kinds import Kind
from accel_platform.table_io.text import Rows
from accel_platform.table_io.values import FORMULA, guard_formula, json_text, plain

Source: TypeAlias = Rows | pa.Table | pa.RecordBatchReader

Fits = Callable[[pa.DataType], bool]

_BATCH = 10_000
"""Rows per batch of an Arrow table."""
_FORMULA = "^[" + "".join(rf"\x{{{ord(character):x}}}" for character in FORMULA) + "]"


def save(source: Source, path: Path, kind: Kind, *, title: str | None = None) -> int:
    """Write a file atomically and return its number of rows. Raises InvalidInput if that is impossible."""
    return save_with(path, lambda stream: write(source, stream, kind, title=title))


def save_with(path: Path, fill: Callable[[BinaryIO], int]) -> int:
    """Write a file atomically through a function that fills a stream."""

    def fill_file(temporary: Path) -> int:
        with temporary.open("wb") as stream:
            return fill(stream)

    return save_by_name(path, fill_file)


def save_bytes(path: Path, content: bytes) -> None:
    """Write a file atomically. Raises InvalidInput if that is impossible."""
    save_with(path, lambda stream: stream.write(content))


def save_by_name(path: Path, make: Callable[[Path], int]) -> int:
    """Write a file atomically through a function that creates a file of the given name."""
    require_writable(path)
    if path.exists() and not path.is_file():
        return make(path)  # a pipe or device, which nothing may replace
    path = path.resolve()
    temporary = path.with_name(f".{path.name}.part")
    try:
        count = make(temporary)
        temporary.rename(path)
    except OSError as error:
        raise storage_unavailable(error, path) or AccelError(f"Cannot write {path}: {error}") from error
    finally:
        with suppress(OSError):  # where it cannot be written it is not there either
            temporary.unlink()
    return count


def write(source: Source, stream: BinaryIO, kind: Kind, *, title: str | None = None) -> int:
    """Write all rows in a format and return their number. Markdown, HTML and XLSX show `title`.

    Raises InvalidInput if the format cannot hold the rows, such as too many for XLSX, or a time that is infinite.
    """
    if kind == "json":
        return _json(source, stream)
    if kind in ("csv", "parquet", "xlsx"):
        batches = read_batches(source)
        if kind == "xlsx":
            from accel_platform.table_io import sheet

            return sheet.write(flatten(_with_known_times(batches)), stream, title=title)
        return (
            _csv(flatten(_with_known_times(batches)), stream)
            if kind == "csv"
            else _parquet(flatten(batches, _is_stored), stream)
        )
    table, counted = _count_rows(source)
    stream.writelines(f"{line}\n".encode() for line in lines(table, kind, title))
    return counted[0]


def lines(table: text.Table, kind: Kind, title: str | None) -> Iterator[str]:
    """Return the lines of a table in a readable format."""
    if kind == "table":
        return text.terminal(table)
    if kind == "markdown":
        return text.markdown(table, title)
    return text.html_page(title or "Results", text.html_table(table))


def read_batches(source: Source) -> pa.RecordBatchReader:
    """Yield Arrow batches of any source. A column of mixed types becomes text."""
    if isinstance(source, pa.RecordBatchReader):
        reader = source
    elif isinstance(source, pa.Table):
        reader = source.to_reader(max_chunksize=_BATCH)
    else:
        columns = {name: _array([row.get(name) for row in source]) for name in text.columns_of(source)}
        reader = pa.table(columns).to_reader(max_chunksize=_BATCH)
    names = reader.schema.names
    if len(set(names)) < len(names):
        raise InvalidInput(f"Two columns have one name ({', '.join(names)}): name them apart with AS.")
    return reader


def flatten(reader: pa.RecordBatchReader, fits: Fits | None = None) -> pa.RecordBatchReader:
    """Replace types that do not fit by JSON text; by default lists and objects."""
    fits = fits or _is_cell
    schema = pa.schema([(field.name, _flat_type(field.type, fits)) for field in reader.schema])

    def batches() -> Iterator[pa.RecordBatch]:
        for batch in reader:
            yield pa.record_batch([_flat(column, fits) for column in batch.columns], schema=schema)

    return pa.RecordBatchReader.from_batches(schema, batches())


def _with_known_times(reader: pa.RecordBatchReader) -> pa.RecordBatchReader:
    """Check each batch as it is read. Raises InvalidInput for a time beyond the years 1 to 9999, as DuckDB's infinity.

    Parquet and Arrow alone hold such times.
    """

    def batches() -> Iterator[pa.RecordBatch]:
        for batch in reader:
            for field, column in zip(batch.schema, batch.columns, strict=True):
                _require_known_times(field, column)
            yield batch

    return pa.RecordBatchReader.from_batches(reader.schema, batches())


def _require_known_times(field: pa.Field, column: pa.Array) -> None:
    try:
        if pa.types.is_date(field.type) or pa.types.is_timestamp(field.type):
            pc.min_max(column).as_py()
        elif pa.types.is_nested(field.type) and re.search("date|timestamp", str(field.type)):
            column.to_pylist()
    except (OverflowError, ValueError) as error:
        raise InvalidInput(
            f"The column {field.name!r} has a time beyond the years 1 to 9999, such as infinity: make it text"
            " (::VARCHAR). As it is, Parquet and Arrow alone hold it."
        ) from error


def _json(source: Source, stream: BinaryIO) -> int:
    """Write a JSON list, one row object per line."""
    count = 0
    for rows in _parts(source):
        for row in rows:
            stream.write(f"{',' if count else '['}\n{json_text(row, indent=None)}".encode())
            count += 1
    stream.write(b"\n]\n" if count else b"[]\n")
    return count


def _csv(batches: pa.RecordBatchReader, stream: BinaryIO) -> int:
    """Write RFC 4180 CSV. All text is quoted, so that None and empty text differ."""
    from pyarrow import csv

    count = 0
    schema = pa.schema([(guard_formula(field.name), field.type) for field in batches.schema])
    with csv.CSVWriter(stream, schema) as writer:
        for batch in batches:
            writer.write_batch(pa.record_batch([guard_column(column) for column in batch.columns], schema=schema))
            count += batch.num_rows
    return count


def _parquet(batches: pa.RecordBatchReader, stream: BinaryIO) -> int:
    from pyarrow import parquet

    count = 0
    with parquet.ParquetWriter(stream, batches.schema, compression="zstd") as writer:
        for batch in batches:
            writer.write_batch(batch)
            count += batch.num_rows
    return count


def guard_column(column: pa.Array) -> pa.Array:
    """Guard a whole column of text as `values.guarded` does."""
    if not pa.types.is_string(column.type):
        return column
    formulas = pc.match_substring_regex(column, _FORMULA)
    if not pc.any(formulas).as_py():
        return column
    return pc.if_else(formulas, pc.binary_join_element_wise("'", column, ""), column)


def _count_rows(source: Source) -> tuple[text.Table, list[int]]:
    """Return the source as a text table, and a counter of its rows that is final once they are read."""
    counted = [0]

    def counting(parts: Iterator[Rows]) -> Iterator[Rows]:
        for rows in parts:
            counted[0] += len(rows)
            yield rows

    if isinstance(source, pa.Table | pa.RecordBatchReader):
        fields = list(read_batches(source[:0] if isinstance(source, pa.Table) else source).schema)
        numeric = tuple(_is_number(field.type) for field in fields)
        return text.Table(tuple(field.name for field in fields), numeric, counting(_parts(source))), counted
    table = text.table_of(source)
    return text.Table(table.columns, table.numeric, counting(iter(table.parts))), counted


def _parts(source: Source) -> Iterator[Rows]:
    if isinstance(source, pa.Table | pa.RecordBatchReader):
        return (batch.to_pylist() for batch in _with_known_times(read_batches(source)))
    return iter((source,))


def _array(values: list[Any]) -> pa.Array:
    try:
        return pa.array([_arrow(value) for value in values])
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError):
        return pa.array([_text(value) for value in values], pa.string())


def _arrow(value: Any) -> Any:
    """Convert rows to Arrow. Lists of scalars stay lists; UUIDs, objects and deeper nesting become text."""
    if isinstance(value, list | tuple):
        items = plain(value)
        return _text(value) if any(isinstance(item, list | dict) for item in items) else items
    return _text(value) if isinstance(value, UUID | Mapping) else value


def _flat_type(kind: pa.DataType, fits: Fits) -> pa.DataType:
    if pa.types.is_dictionary(kind):
        return _flat_type(kind.value_type, fits)
    return kind if fits(kind) else pa.string()


def _flat(column: pa.Array, fits: Fits) -> pa.Array:
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    return column if fits(column.type) else pa.array([_text(value) for value in column.to_pylist()], pa.string())


def _is_cell(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(kind) or _is_number(kind) or pa.types.is_boolean(kind) or pa.types.is_null(kind)
        or pa.types.is_date(kind) or pa.types.is_timestamp(kind) or pa.types.is_time(kind)
    )  # fmt: skip


def _is_stored(kind: pa.DataType) -> bool:
    """Return True if Parquet can store the type."""
    return not pa.types.is_interval(kind)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    encoded = json_text(value, indent=None)
    return encoded.strip('"') if encoded.startswith('"') else encoded
