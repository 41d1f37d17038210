"""Read-only access to the published tables."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import duckdb

from accel_platform.errors import InvalidInput
from accel_platform.settings import Settings
from accel_platform.warehouse.interrupts import interruptible
from accel_platform.warehouse.layers import (
    Projection,
    WarehouseDamaged,
    WarehouseOutdated,
    read_error,
    require_current,
)

if TYPE_CHECKING:
    import pyarrow as pa

_STREAMED = 10_000
"""Rows of a batch in `stream`."""
_SANDBOX = """
SET autoinstall_known_extensions = false;
SET autoload_known_extensions = false;
SET enable_external_access = false;
SET lock_configuration = true
"""
Parameters = Sequence[Any] | dict[str, Any]


class Reader:
    """Read-only SQL over the projection in service; safe to share between threads.

    Each call sees one whole snapshot, the newest at its start. A replaced projection stays open until its last
    query ends. SQL cannot reach files or the network and cannot change settings.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._open: tuple[Projection, duckdb.DuckDBPyConnection] | None = None

    @property
    def snapshot_id(self) -> str:
        """Id of the snapshot that a query would see now. Raises WarehouseEmpty before the first publish."""
        return self._newest()[0].snapshot_id

    @property
    def projection_id(self) -> str:
        """Id of the tables that a query would read now. Unlike the snapshot's id it changes when they are rebuilt."""
        return self._newest()[0].name.removesuffix(".json")

    def pinned(self) -> Reader:
        """Return a reader fixed to what is in service now, so that several queries see one snapshot."""
        return _PinnedReader(self._settings, self._newest())

    def rows(self, sql: str, parameters: Parameters = ()) -> list[dict[str, Any]]:
        """Return the rows of one SELECT as dicts. Raises InvalidInput with the database's message if it fails."""
        return self.rows_with_snapshot(sql, parameters)[0]

    def rows_with_snapshot(self, sql: str, parameters: Parameters = ()) -> tuple[list[dict[str, Any]], str]:
        """Return the rows as `rows` does, and the id of the snapshot they were read at."""
        projection, connection = self._newest()
        with connection.cursor() as cursor, _translate_errors(projection), interruptible(cursor):
            _require_select(cursor, sql)
            cursor.execute(sql, parameters or None)
            names = [column[0] for column in cursor.description or ()]
            if len(set(names)) < len(names):
                raise InvalidInput(f"Two columns have one name ({', '.join(names)}): name them apart with AS.")
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()], projection.snapshot_id

    def arrow(self, sql: str) -> pa.Table:
        """Return the rows of one SELECT as an Arrow table. Raises InvalidInput as `rows` does."""
        projection, connection = self._newest()
        with connection.cursor() as cursor, _translate_errors(projection), interruptible(cursor):
            _require_select(cursor, sql)
            return cursor.sql(sql).to_arrow_table()

    @contextmanager
    def stream(self, sql: str, parameters: Parameters = ()) -> Iterator[pa.RecordBatchReader]:
        """Stream the rows of one SELECT in batches, in memory that does not grow with their number.

        Raises InvalidInput as `rows` does.
        """
        projection, connection = self._newest()
        with connection.cursor() as cursor:
            with _translate_errors(projection):
                _require_select(cursor, sql)
                batches = cursor.sql(sql, params=parameters or None).to_arrow_reader(_STREAMED)
            yield batches

    def _newest(self) -> tuple[Projection, duckdb.DuckDBPyConnection]:
        with self._lock:
            for attempt in range(5):
                newest = None
                try:
                    newest = require_current(self._settings)
                    if self._open is None or self._open[0] != newest:
                        connection = newest.open()
                        connection.execute(_SANDBOX)
                        self._open = (newest, connection)
                    break
                except WarehouseDamaged as error:
                    if newest is not None:
                        _raise_if_outdated(newest, error.__cause__)
                    # Retried, because it may have been retired after the pointer was read; the pointer has moved then.
                    if attempt == 4:
                        raise
            assert self._open is not None
            return self._open


class _PinnedReader(Reader):
    def __init__(self, settings: Settings, fixed: tuple[Projection, duckdb.DuckDBPyConnection]) -> None:
        super().__init__(settings)
        self._fixed = fixed

    def _newest(self) -> tuple[Projection, duckdb.DuckDBPyConnection]:
        return self._fixed


def _require_select(cursor: duckdb.DuckDBPyConnection, sql: str) -> None:
    statements = cursor.extract_statements(sql)
    if len(statements) != 1 or statements[0].type not in (duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN):
        raise InvalidInput("Give one SELECT statement: the tables are made from the log and cannot be changed here.")


@contextmanager
def _translate_errors(projection: Projection) -> Iterator[None]:
    try:
        yield
    except duckdb.IOException as error:
        raise read_error(projection.directory, error) from error
    except duckdb.Error as error:
        _raise_if_outdated(projection, error)
        raise InvalidInput(f"The query does not run: {error}") from error


def _raise_if_outdated(projection: Projection, error: BaseException | None) -> None:
    """Raise WarehouseOutdated where a table or column is missing because another version made the tables."""
    if not isinstance(error, duckdb.BinderException | duckdb.CatalogException):
        return
    # Only now, because a query alone needs neither the log nor Arrow, whose imports take longer than it.
    from accel_platform.warehouse.build_layer import schema_id

    if projection.schema_id != schema_id():
        raise WarehouseOutdated from error
