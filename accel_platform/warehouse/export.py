"""Export of tables to files for other tools."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import duckdb

from accel_platform.errors import InvalidInput
from accel_platform.settings import Settings
from accel_platform.table_io import files, kinds
from accel_platform.warehouse.interrupts import interruptible
from accel_platform.warehouse.layers import RENAMED, TABLES, escape_quotes, require_current

_COPIED: dict[kinds.Kind, str] = {
    "json": "FORMAT json, ARRAY true",
    "parquet": "FORMAT parquet, COMPRESSION zstd",
}
"""Formats that DuckDB writes itself, several times as fast. CSV is not one, because DuckDB does not escape formulas."""
_BATCH = 10_000
"""Rows in memory at once."""


def export_table(
    settings: Settings,
    table: str,
    output: Path,
    kind: kinds.Kind,
    *,
    condition: str,
    values: Mapping[str, Any],
) -> int:
    """Write the rows of a table that pass a condition to `output`, all or none; return their number.

    `condition` is SQL over the table as `r`, with named parameters `values`. Raises InvalidInput for an unknown table,
    and for one that lacks a column of the condition. Likewise for a missing directory, and for more rows than the
    format holds.
    """
    table = RENAMED.get(table, table)
    if table not in TABLES:
        raise InvalidInput(f"There is no table {table!r}. Tables: {', '.join(TABLES)}.")
    with require_current(settings).open() as con, interruptible(con):
        rows = f"SELECT r.* FROM {table} AS r WHERE {condition}"
        try:
            con.execute(f"{rows} LIMIT 0", values)
        except duckdb.BinderException as error:
            raise InvalidInput(
                f"The table {table} lacks a column that is filtered by: filters are for tables of results. Export it "
                "whole, or select with `accel db query`."
            ) from error
        if kind in _COPIED:
            return files.save_by_name(output, lambda path: _copy(con, rows, values, path, _COPIED[kind]))
        return files.save(con.sql(rows, params=values).to_arrow_reader(_BATCH), output, kind, title=table)


def _copy(con: duckdb.DuckDBPyConnection, rows: str, values: Mapping[str, Any], path: Path, options: str) -> int:
    # Column types are plain text here, so DuckDB's JSON extension is not needed.
    try:
        # Not kept, because tables are unordered and order costs nine times the memory for a million results.
        con.execute("SET preserve_insertion_order = false")
        copied = con.execute(f"COPY ({rows}) TO '{escape_quotes(path)}' ({options})", values).fetchall()
    except duckdb.IOException as error:
        raise OSError(str(error)) from error
    return int(copied[0][0])
