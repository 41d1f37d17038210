"""Reads the published tables, following the pointer. Nothing is written through here."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from accel_platform.errors import InvalidInput
from accel_platform.settings import Settings
from accel_platform.warehouse.publish import require_current

_SANDBOX = """
SET TimeZone = 'UTC';
SET autoinstall_known_extensions = false;
SET autoload_known_extensions = false;
SET enable_external_access = false;
SET lock_configuration = true
"""


class Reader:
    """Read-only SQL over the projection in service; safe to share between threads.

    Each call sees one whole snapshot, the newest at its start. A projection that was replaced stays open until its last
    query ends. SQL cannot reach files or the network and cannot change settings.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._path: Path | None = None
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._snapshot_id = ""

    @property
    def snapshot_id(self) -> str:
        """The snapshot a query would see now. Raises WarehouseEmpty before the first publish."""
        self._cursor().close()
        return self._snapshot_id

    def rows(self, sql: str, parameters: Sequence[Any] | dict[str, Any] = ()) -> list[dict[str, Any]]:
        """The rows of one statement as dicts. Raises InvalidInput with the database's words if it does not run."""
        with self._cursor() as cursor:
            with _in_words():
                cursor.execute(sql, parameters or None)
            names = [column[0] for column in cursor.description or ()]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def arrow(self, sql: str, parameters: Sequence[Any] | dict[str, Any] = ()) -> pa.Table:
        """The rows of one statement as an Arrow table. Raises InvalidInput as `rows` does."""
        with self._cursor() as cursor:
            with _in_words():
                return cursor.sql(sql, params=parameters or None).to_arrow_table()

    def _cursor(self) -> duckdb.DuckDBPyConnection:
        with self._lock:
            for attempt in range(5):
                path = require_current(self._settings)
                if path == self._path and self._connection is not None:
                    break
                try:
                    connection = _open(path)
                except duckdb.IOException:
                    # The file may have been retired between reading the pointer and opening it; it points elsewhere now.
                    if attempt == 4:
                        raise
                    continue
                [(self._snapshot_id,)] = connection.execute("SELECT id FROM warehouse._snapshot").fetchall()
                self._path, self._connection = path, connection
                break
            assert self._connection is not None
            return self._connection.cursor().execute("USE warehouse")


def _open(path: Path) -> duckdb.DuckDBPyConnection:
    """An instance of its own per projection: sandboxed, whatever else this process does with the same file."""
    connection = duckdb.connect(":memory:")
    try:
        quoted = str(path).replace("'", "''")
        connection.execute(f"ATTACH '{quoted}' AS warehouse (READ_ONLY)")
        connection.execute(_SANDBOX)
    except duckdb.Error:
        connection.close()
        raise
    return connection


@contextmanager
def _in_words() -> Iterator[None]:
    try:
        yield
    except duckdb.Error as error:
        raise InvalidInput(f"The query does not run: {error}") from error
