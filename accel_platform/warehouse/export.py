"""Whole tables as files for other tools. Asking questions is `query.py`, and what a format is `reports/rendering`."""

from __future__ import annotations

from pathlib import Path

import duckdb

from accel_platform.errors import InvalidInput
from accel_platform.settings import Settings
from accel_platform.table_io import files
from accel_platform.warehouse.layers import RENAMED, TABLES, escape_quotes, require_current

_COPIED: dict[files.Kind, str] = {
    "json": "FORMAT json, ARRAY true",
    "parquet": "FORMAT parquet, COMPRESSION zstd",
}
"""What DuckDB writes by itself, several times as fast; it knows nothing of formulas, so CSV is not among them."""
_BATCH = 10_000
"""Rows that are in memory at once."""


def export_table(settings: Settings, table: str, output: Path, kind: files.Kind) -> int:
    """Write one table to `output`, whole or not at all; returns its rows.

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
    # The extension that reads JSON columns is not needed to write them: they are text here.
    try:
        # Rows of a table are in no order; to keep one a million results would lie in memory, nine times as large.
        con.execute("SET preserve_insertion_order = false")
        con.execute(f"COPY (FROM {table}) TO '{escape_quotes(path)}' ({options})")
    except duckdb.IOException as error:
        raise OSError(str(error)) from error
    [(rows,)] = con.execute(f"SELECT count(*) FROM {table}").fetchall()
    return int(rows)
