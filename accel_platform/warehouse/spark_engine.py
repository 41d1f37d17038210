"""Computation of a layer's tables on Spark, through Spark Connect: a cluster, a cloud service, or Sail.

Events and tables go through Parquet files in a folder that this machine and the engine both see. Each layer has a
folder there, with one folder per table, which any Parquet reader reads. Ids and JSON are text in them.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import socket
import sys
import warnings
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import duckdb

from accel_platform.atomic_write import make_directory
from accel_platform.errors import AccelError, InvalidInput
from accel_platform.settings import Settings
from accel_platform.warehouse import layers
from accel_platform.warehouse.layers import DERIVED, PER_EVENT, READ_AS, Scope, escape_quotes

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

_OLDEST = (4, 0)
"""Oldest supported version of Spark; earlier ones treat NULL in casts and sizes differently."""
_CONNECT_S = 10.0
"""Longest wait in seconds for an engine to accept a connection."""
_RETRIES = 4
"""Attempts after a lost connection, 0.05 s to 3 s apart; pyspark would try for ten minutes."""
_DEFAULT_PORT = 15002


class EngineFailed(AccelError):
    """The engine cannot be reached, is too old, or failed. The published tables stay in service."""

    def __init__(self, url: str, problem: str) -> None:
        shown = url.partition(";")[0].rstrip("/")  # parameters may hold a token
        super().__init__(f"Spark at {shown} {problem} The tables in service stay as they are.")


class SparkEngine:
    """The engine at a Spark Connect URL; each layer is computed in a session of its own."""

    def __init__(self, url: str, directory: Path) -> None:
        self._url = url
        self._directory = directory

    @classmethod
    def of(cls, settings: Settings) -> SparkEngine | None:
        """Return the engine that the settings choose, None for DuckDB. Raises InvalidInput if they lack its URL."""
        if settings.engine == "duckdb":
            return None
        if settings.spark is None:
            raise InvalidInput(
                "The engine spark needs an address: name it with --spark sc://HOST:15002 or ACCEL_SPARK."
            )
        if urlsplit(settings.spark).scheme != "sc" or not urlsplit(settings.spark).hostname:
            raise InvalidInput(f"{settings.spark!r} is no address of Spark Connect: write it as sc://HOST:15002.")
        return cls(settings.spark, exchange_dir(settings))

    def compute_tables(self, con: duckdb.DuckDBPyConnection, lower: Mapping[str, str], file: str) -> None:
        """Fill all tables of `layer` but `events`, which is filled, and compute the matrix for `computed_matrix`.

        `lower` are the layers below, attached to `con`: their files by catalog name. `file` is the layer's own.
        """
        self._remove_leftovers()
        final, lower_folders = self._folder(file), [self._folder(below) for below in lower.values()]
        work = final.with_name(f".{final.name}")
        make_directory(work)
        try:
            for name, below in lower.items():
                self._export_layer(con, name, below)
            _export(con, "layer", "events", work)
            with self._session() as session:
                _compute(session, work, lower_folders)
            for table in (*PER_EVENT[1:], *DERIVED):
                _complete(con, table, work)
            for table in (*PER_EVENT[1:], *DERIVED[:-1]):
                con.execute(f"CREATE TABLE layer.{table} AS {_stored(table, work)}")
            work.rename(final)
        except BaseException:
            shutil.rmtree(work, ignore_errors=True)
            raise

    def computed_matrix(self, file: str) -> str | None:
        """Return a SELECT of the matrix that the engine computed with a layer; None if another made the layer."""
        folder = self._folder(file)
        return _stored("compat_matrix", folder) if (folder / "compat_matrix").exists() else None

    def _remove_leftovers(self) -> None:
        for leftover in self._directory.glob(".layer-*"):  # of a killed builder, because the lock excludes others
            shutil.rmtree(leftover)

    def _folder(self, file: str) -> Path:
        return self._directory.resolve() / file.removesuffix(".duckdb")

    def _export_layer(self, con: duckdb.DuckDBPyConnection, name: str, file: str) -> None:
        """Write the tables of a layer that DuckDB made, unless they are there."""
        final = self._folder(file)
        if final.exists():
            return
        work = final.with_name(f".{final.name}")
        make_directory(work)
        for table in PER_EVENT:
            _export(con, name, table, work)
        work.rename(final)

    @contextlib.contextmanager
    def _session(self) -> Iterator[SparkSession]:
        """Open a session in UTC. Raises EngineFailed, also for what fails inside."""
        address = urlsplit(self._url)
        try:
            socket.create_connection((address.hostname, address.port or _DEFAULT_PORT), _CONNECT_S).close()
        except OSError as error:
            problem = error.strerror or "no answer"
            raise EngineFailed(self._url, f"cannot be reached ({problem}): start it, or mend the address.") from error
        with warnings.catch_warnings(), _main_file():
            # About pandas, which is not used here, and lost connections, which end in an error.
            warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
            warnings.filterwarnings("ignore", r"\[RETRIES_EXCEEDED\]", UserWarning)
            try:
                import grpc
                import sqlglot  # noqa: F401 - the translation needs it
                from pyspark.errors import PySparkException
                from pyspark.logger import PySparkLogger
                from pyspark.sql.connect.client.retries import DefaultPolicy
                from pyspark.sql.connect.session import SparkSession
            except ImportError as error:
                raise EngineFailed(self._url, "needs its client: pip install 'accel-platform[spark]'.") from error
            PySparkLogger.getLogger("SQLQueryContextLogger").disabled = True  # it prints the whole query of each error
            session: SparkSession | None = None
            try:
                session = SparkSession.builder.remote(self._url).create()
                session.client.set_retry_policies([DefaultPolicy(max_retries=_RETRIES, max_backoff=3000)])
                version = session.version
                if tuple(int(part) for part in version.split(".")[:2]) < _OLDEST:
                    oldest = ".".join(map(str, _OLDEST))
                    raise EngineFailed(self._url, f"has version {version}, too old: it has to be {oldest} or newer.")
                session.conf.set("spark.sql.session.timeZone", "UTC")
                session.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
                yield session
            except (PySparkException, grpc.RpcError) as error:
                raise EngineFailed(self._url, f"failed: {_first_line(error)}.") from error
            finally:
                if session is not None:
                    with contextlib.suppress(PySparkException, grpc.RpcError):  # it may be gone
                        session.stop()


@contextlib.contextmanager
def _main_file() -> Iterator[None]:
    """Give the main module of a spawned process a `__file__` meanwhile.

    Without one pyspark takes the process for its own doctests, and ends it.
    """
    main = sys.modules["__main__"]
    if hasattr(main, "__file__"):
        yield
        return
    main.__file__ = ""
    try:
        yield
    finally:
        del main.__file__  # because `inspect` fails over it


def exchange_dir(settings: Settings) -> Path:
    """Return the folder of the layers' Parquet files."""
    if settings.spark_dir is None:
        return settings.warehouse_dir / "parquet"
    # Each installation has a directory of its own, because it deletes what it no longer needs.
    own = f"{socket.gethostname()}:{settings.warehouse_dir.resolve()}"
    return settings.spark_dir / hashlib.sha256(own.encode()).hexdigest()[:16]


def retire(settings: Settings, files: set[str]) -> None:
    """Delete the Parquet files of all layers but those of these files, whichever engine is chosen now."""
    kept = {file.removesuffix(".duckdb") for file in files}
    for folder in exchange_dir(settings).glob("layer-*"):
        if folder.name not in kept:
            shutil.rmtree(folder)


_VIEWS = {
    "rejudged_results": layers.REJUDGED,
    "unused_packs": layers.UNUSED_PACKS,
    "results": layers.RESULTS_REJUDGED,
    "judged_results": layers.JUDGED,
}
"""Views that derived tables read."""


def _compute(session: SparkSession, work: Path, below: list[Path]) -> None:
    """Compute all tables of a layer from `work/events` and the layers below, and write them into `work`."""

    folders: dict[Scope, list[Path]] = {"own": [work], "lower": below, "all": [*below, work]}

    def read(view: str, table: str, scope: Scope) -> None:
        rows = session.read.parquet(*(str(folder / table) for folder in folders[scope] or [work]))
        (rows if folders[scope] else rows.limit(0)).createOrReplaceTempView(view)

    def write(table: str) -> None:
        session.sql(_spark_sql(table)).write.parquet(str(work / table))

    with duckdb.connect(":memory:") as con:
        for table in PER_EVENT:
            if table != "events":
                write(table)
                _complete(con, table, work)
            for view, scope in READ_AS.get(table, {}).items():
                read(view, table, scope)
    for table in PER_EVENT:
        read(table, table, "all")
    for view in _VIEWS:
        session.sql(_spark_sql(view)).createOrReplaceTempView(view)
    for table in DERIVED:
        write(table)


@cache
def _spark_sql(name: str) -> str:
    """Return the definition of a table or view in Spark's SQL; cached, because translating all takes half a second."""
    from accel_platform.warehouse.build_layer import table_columns, table_sql
    from accel_platform.warehouse.spark_sql import to_spark

    return to_spark(_VIEWS.get(name) or table_sql(name), table_columns())


def _export(con: duckdb.DuckDBPyConnection, catalog: str, table: str, work: Path) -> None:
    """Write a table of an attached layer as Parquet, with ids and JSON as text."""
    make_directory(work / table)
    columns = _as_text(table)
    con.execute(
        f"COPY (SELECT {columns} FROM {catalog}.{table}) TO '{escape_quotes(work / table)}/part-0.parquet' ({_FORMAT})"
    )


_FORMAT = "FORMAT parquet, COMPRESSION lz4_raw"


def _as_text(table: str) -> str:
    """Return the columns of a table for a SELECT, with ids and JSON as text, because Spark knows neither type."""
    from accel_platform.warehouse.build_layer import table_columns

    return ", ".join(_text(name, kind) for name, kind in table_columns()[table].items())


def _text(name: str, kind: str) -> str:
    text = kind.replace("UUID", "VARCHAR").replace("JSON", "VARCHAR")
    return f'CAST("{name}" AS {text}) AS "{name}"'


def _complete(con: duckdb.DuckDBPyConnection, table: str, work: Path) -> None:
    """Write an empty file of a table without rows, for which an engine may have written none."""
    from accel_platform.warehouse.build_layer import table_columns

    if any((work / table).glob("*.parquet")):
        return
    make_directory(work / table)
    columns = ", ".join(f'CAST(NULL AS {kind}) AS "{name}"' for name, kind in table_columns()[table].items())
    empty = f"SELECT {_as_text(table)} FROM (SELECT {columns}) WHERE false"
    con.execute(f"COPY ({empty}) TO '{escape_quotes(work / table)}/part-empty.parquet' ({_FORMAT})")


def _stored(table: str, folder: Path) -> str:
    """Return a SELECT of a table from its Parquet files, with the types that DuckDB gives it."""
    from accel_platform.warehouse.build_layer import table_columns

    columns = ", ".join(
        f'json("{name}") AS "{name}"' if kind == "JSON" else f'CAST("{name}" AS {kind}) AS "{name}"'
        for name, kind in table_columns()[table].items()
    )
    return f"SELECT {columns} FROM read_parquet('{escape_quotes(folder / table)}/*.parquet')"


def _first_line(error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:200].rstrip(".")
