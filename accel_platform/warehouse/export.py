"""Whole tables as files for other tools. Asking questions is `query.py`."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import duckdb

from accel_platform.errors import AccelError, InvalidInput
from accel_platform.settings import Settings
from accel_platform.warehouse.projection import TABLES, quoted, require_current

_OPTIONS = {
    "csv": "FORMAT csv, HEADER",
    "json": "FORMAT json, ARRAY true",
    "parquet": "FORMAT parquet, COMPRESSION zstd",
}


def export_table(settings: Settings, table: str, output: Path, kind: str) -> int:
    """Write one table to `output` as `csv`, `json` or `parquet`, whole or not at all; returns its rows.

    Raises InvalidInput for an unknown table or a directory that does not exist.
    """
    if table not in TABLES:
        raise InvalidInput(f"There is no table {table!r}. Tables: {', '.join(TABLES)}.")
    if output.is_dir():
        raise InvalidInput(f"{output} is a directory: name the file to write.")
    if not output.parent.is_dir():
        raise InvalidInput(f"The directory {output.parent} does not exist.")
    # The extension that reads JSON columns is not needed to write them: they are text here.
    temporary = output.with_name(f".{output.name}.part")
    try:
        with require_current(settings).open() as con:
            con.execute(f"COPY (FROM {table}) TO '{quoted(temporary)}' ({_OPTIONS[kind]})")
            [(rows,)] = con.execute(f"SELECT count(*) FROM {table}").fetchall()
        temporary.rename(output)
    except (OSError, duckdb.IOException) as error:
        raise AccelError(f"Cannot write {output}: {error}") from error
    finally:
        with suppress(OSError):  # where it cannot be written it is not there either
            temporary.unlink()
    return int(rows)
