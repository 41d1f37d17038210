"""Database files as rows: DuckDB, SQLite and Parquet, recognized by their first bytes. Formats interpret the tables.

Values come as JSON knows them: times as ISO text, decimals as numbers, identifiers as text.
"""

from __future__ import annotations

import math
import sqlite3
import tempfile
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet

Rows = list[dict[str, Any]]


def is_duckdb(raw: bytes) -> bool:
    return raw[8:12] == b"DUCK"


def is_sqlite(raw: bytes) -> bool:
    return raw.startswith(b"SQLite format 3\0")


def is_parquet(raw: bytes) -> bool:
    return raw[:4] == b"PAR1"


def parquet_rows(raw: bytes) -> Rows:
    """Return the rows of a Parquet file. Raises ValueError where it cannot be read."""
    try:
        return plain_rows(pyarrow.parquet.read_table(pa.BufferReader(raw)).to_pylist())
    except (pa.ArrowException, OSError, ValueError) as error:
        raise ValueError(f"a Parquet file that cannot be read: {error}") from error


def plain_rows(rows: Rows) -> Rows:
    """Return rows of Parquet types with JSON values."""
    return [{str(name): _plain(value) for name, value in row.items()} for row in rows]


def database_tables(raw: bytes) -> dict[str, Rows]:
    """Return the tables of a DuckDB or SQLite file by name, without views. Raises ValueError."""
    import duckdb  # few files are databases, and a run that knows them all has no need of it

    kind, read = ("DuckDB", _duckdb) if is_duckdb(raw) else ("SQLite", _sqlite)
    # Neither library opens bytes, and the bytes may come from inside an archive.
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "database")
        path.write_bytes(raw)
        try:
            return read(path)
        except (duckdb.Error, sqlite3.Error, ValueError) as error:
            raise ValueError(f"a {kind} database that cannot be read: {str(error).splitlines()[0]}") from error


def _duckdb(path: Path) -> dict[str, Rows]:
    import duckdb

    with duckdb.connect(str(path), read_only=True, config={"enable_external_access": "false"}) as con:
        con.execute("SET TimeZone = 'UTC'")
        listed = con.execute("SELECT schema_name, table_name FROM duckdb_tables() WHERE NOT internal ORDER BY ALL")
        found = {}
        for schema, table in listed.fetchall():
            cursor = con.execute(f"SELECT * FROM {_quoted(schema)}.{_quoted(table)}")
            found[table] = _rows(cursor.description, cursor.fetchall())
        return found


def _sqlite(path: Path) -> dict[str, Rows]:
    con = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        names = con.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY 1"
        )
        found = {}
        for (table,) in names.fetchall():
            cursor = con.execute(f"SELECT * FROM {_quoted(table)}")
            found[table] = _rows(cursor.description, cursor.fetchall())
        return found
    finally:
        con.close()


def _rows(description: Any, rows: list[tuple[Any, ...]]) -> Rows:
    names = [column[0] for column in description]
    return [{name: _plain(value) for name, value in zip(names, row, strict=True)} for row in rows]


def _quoted(name: str) -> str:
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


def _plain(value: Any) -> Any:  # noqa: PLR0911  # one line per kind of value
    if isinstance(value, float) and math.isnan(value):
        return None  # what a data frame writes for a missing value, in any column
    if isinstance(value, dict):
        return {str(key): _plain(member) for key, member in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(member) for member in value]
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    return value if isinstance(value, str | int | float | None) else str(value)
