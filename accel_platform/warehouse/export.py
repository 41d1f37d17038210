"""Export of whole tables to files for other tools."""

from __future__ import annotations

from pathlib import Path

import duckdb

from accel_platform.errors import InvalidInput
from accel_platform.settings import Settings
from accel_platform.table_io import files, kinds
from accel_platform.warehouse.layers import RENAMED, TABLES, escape_quotes, require_current

_COPIED: dict[kinds.Kind, str] = {
    "json": "FORMAT json, ARRAY true",
    "parquet": "FORMAT parquet, COMPRESSION zstd",
}
"""Formats that DuckDB writes itself, several times as fast. CSV is not one, because DuckDB does not escape formulas."""
_BATCH = 10_000
"""Rows in memory at once."""


def export_table(settings: Settings, table: str, output: Path, kind: kinds.Kind) -> int:
    """Write one table to `output`, whole or not at all; return the number of rows.

    Raises InvalidInput for an unknown table, a directory that does not exist, or more rows than the format holds.
    """
    table = RENAMED.get(table, table)
    if table not in TABLES:
        raise InvalidInput(f"There is no table {table!r}. Tables: {', '.join(TABLES)}.")
    with require_current(settings).open() as con:
        if kind in _COPIED:
            return files.save_by_name(output, lambda path: _copy(con, table, path, _COPIED[kind]))
        return files.save(con.sql(f"FROM {table}").to_arrow_reader(_BATCH), output, kind, title=table)


def _copy(con: duckdb.DuckDBPyConnection, table: str, path: Path, options: str) -> int:
    # Column types are plain text here, so DuckDB's JSON extension is not needed.
    try:
        # Not kept, because tables are unordered and order costs nine times the memory for a million results.
        con.execute("SET preserve_insertion_order = false")
        con.execute(f"COPY (FROM {table}) TO '{escape_quotes(path)}' ({options})")
    except duckdb.IOException as error:
        raise OSError(str(error)) from error
    [(rows,)] = con.execute(f"SELECT count(*) FROM {table}").fetchall()
    return int(rows)
