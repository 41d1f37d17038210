"""Construction of a layer from the log: the SQL of every table, run over the new events.

Every table is a function of the set of events, so any order of arrival gives the same rows. An event of an old version
is lifted first; an event that arrives twice counts once.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

import duckdb
import pyarrow as pa

from accel_platform.backend_names import NOT_COMPARED, SPELLINGS
from accel_platform.errors import NO_ROOM, storage_errno
from accel_platform.events import EventLog, codec
from accel_platform.events.log import SegmentSource, unreadable
from accel_platform.events.types import PAYLOADS, Event, ResultRecorded
from accel_platform.hardware.catalog import NOISE
from accel_platform.hardware.instances import sheet_by_key
from accel_platform.warehouse import layers
from accel_platform.warehouse.interrupts import interruptible
from accel_platform.warehouse.layers import DERIVED, PER_EVENT, READ_AS, Layer, Projection, Scope
from accel_platform.warehouse.rules import broken_rules_sql

if TYPE_CHECKING:
    from accel_platform.warehouse.spark_engine import SparkEngine

_EVENTS = """
CREATE TABLE layer.events (
    event_id UUID, type VARCHAR, schema_version SMALLINT, occurred_at TIMESTAMPTZ, recorded_at TIMESTAMPTZ,
    source VARCHAR, host_id VARCHAR, run_id VARCHAR, causation_id UUID,
    payload VARCHAR USING COMPRESSION zstd, -- a third faster to write than DuckDB's own choice, and half the file
    samples_ns BIGINT[]
)
"""
_COLUMNS = ", ".join(codec.SCHEMA.names)
SPILL = ".spill"
"""Folder of the warehouse for data of a build that exceeds its memory; a killed build leaves it behind."""
_MEMORY_GIB = 4
"""Memory in GiB that DuckDB may take for a build. Its default is four fifths of the machine's."""
_REUSED_GIB = 1
"""Memory in GiB that a build keeps for its next blocks, because fetching it anew takes a twentieth of a rebuild.

It may add to `_MEMORY_GIB`. Machines with less memory than that keep none.
"""
_ONE_THREAD_EVENTS = 10_000
"""Largest number of events whose tables one thread builds, because sharing the work takes longer than it saves."""
Complete = Callable[[duckdb.DuckDBPyConnection, Sequence[str], int], None]
"""Function that audits and completes a filled layer, attached as `layer`.

It gets the connection, with the views of `layers.define_views`, the catalog names of the layers below, and the number
of events in the layer.
"""
_BREAKING_RESULT, _SUSPECTED_RESULT, _LATE_VERDICT = "breaking result", "suspected result", "late verdict"
"""Kinds of results and verifications that few layers have: see `_rare_kinds`."""
SOURCES = {
    "verifications": {"VerificationRecorded"},
    "result_rows": {"ResultRecorded"},
    "late_verdicts": {_LATE_VERDICT},
    "import_ledger": {"DocumentImported"},
    "quarantine": {_BREAKING_RESULT, "RecordQuarantined", "SegmentQuarantined"},
    "suspicions": {_SUSPECTED_RESULT, "ResultSuspected"},
    "suspicion_overrides": {"SuspicionOverruled"},
    "knowledge_packs": {"KnowledgeAdded", "KnowledgeRemoved"},
    "results_by_model": {"ResultRecorded"},
    "results_by_run": {"ResultRecorded"},
    "hosts": {"HostObserved"},
    "devices": {"DeviceObserved"},
    "requests": {"BenchmarkRequested"},
    "coverage": {"ArchitectureChecked"},
    "regressions": {"RegressionFound"},
}
"""Types of events, or kinds of `_rare_kinds`, that a table has rows of; without any of them it is empty."""
_layouts: dict[str, str] = {}
"""Columns of each table with their types as SQL, once this process has filled a layer."""
_RULES_LOCK = threading.Lock()
"""Lock around the shared connection of `_rules_connection`."""


@cache
def table_sql(table: str, *, device_sheet: str | None = None, matrix_cells: str | None = None) -> str:
    """Return the SELECT that fills a table, from `sql/TABLE.sql`.

    `device_sheet` is the SELECT of the spec sheet's keys, names and numbers of devices; None writes them out.
    `matrix_cells` is the FROM clause of the stored cells that the matrix is made of; None computes them.
    """
    text = (resources.files(__package__) / "sql" / f"{table}.sql").read_text()
    for part in ("result_fields", "device_observations"):
        if f"${part}" in text:
            text = text.replace(f"${part}", table_sql(part, device_sheet=device_sheet))
    text = text.replace("$output_columns", ", ".join(layers.OUTPUT)).replace("$same_output", layers.SAME_OUTPUT)
    if "$matrix_cells" in text:
        text = text.replace("$matrix_cells", matrix_cells or table_sql("matrix_cells"))
    text = text.replace("$broken_rules", broken_rules_sql())
    sheet = device_sheet or f"SELECT * FROM (VALUES {_written_sheet()}) AS listed (key, name, devices)"
    text = text.replace("$device_sheet", sheet).replace("$device_noise", f"'{NOISE.pattern}'")
    return text.replace("$backend_names", _pairs(SPELLINGS)).replace("$not_compared", f"'{NOT_COMPARED}'")


def _pairs(names: Mapping[str, str]) -> str:
    """Return keys and names as SQL's VALUES."""
    return ", ".join(f"('{layers.escape_quotes(key)}', '{layers.escape_quotes(name)}')" for key, name in names.items())


def _written_sheet() -> str:
    """Return the spec sheet's keys, names and numbers of devices as SQL's VALUES."""
    return ", ".join(
        f"('{layers.escape_quotes(key)}', '{layers.escape_quotes(name)}', {devices})"
        for key, (name, devices) in sheet_by_key().items()
    )


@cache
def schema_id() -> str:
    """Return the hash of everything but the events that decides the tables' content; a new one means a full rebuild."""
    versions = sorted((name, payload.VERSION) for name, payload in PAYLOADS.items())
    # Views are included, because the derived tables are computed through them.
    views = [
        layers.REJUDGED,
        layers.UNUSED_PACKS,
        layers.RESULTS,
        layers.RESULTS_REJUDGED,
        layers.SAMPLES,
        layers.JUDGED,
        layers.USABLE,
    ]
    tables = [f"{table} {table_sql(table)}" for table in (*PER_EVENT, *DERIVED) if table != "events"]
    return hashlib.sha256("\0".join([repr(versions), _EVENTS, *views, *tables]).encode()).hexdigest()[:16]


@cache
def source_types() -> frozenset[str]:
    """Return the types of events that tables other than `events` are built from: those that their SQL names."""
    sql = " ".join(table_sql(table) for table in (*PER_EVENT, *DERIVED) if table != "events")
    return frozenset(name for name in PAYLOADS if f"'{name}'" in sql)


def fill_layer(
    path: Path,
    log: EventLog,
    segments: Collection[str],
    below: Projection | None,
    engine: SparkEngine | None,
    complete: Complete | None,
) -> int:
    """Write a new layer at `path`: the events of `segments` that `below` lacks, and all derived tables but the matrix.

    Returns the number of events in the layer. With an `engine` it computes the tables, DuckDB without one. `complete`
    then goes on with the layer as it is open; if it raises, no layer is left.

    Raises
    ------
    LogUnavailable
        If a segment cannot be read.
    EngineFailed
        If the engine cannot be reached, or fails.
    """
    with (
        _removed_on_failure(path),
        layers.translate_write_errors(path.parent),
        connect(path.parent) as con,
        interruptible(con),
    ):
        con.execute("SET preserve_insertion_order = false")
        con.execute("SET arrow_lossless_conversion = true")  # UUIDs stay UUIDs on their way to Python
        try:
            lower = layers.attach(con, below.directory, below.layers) if below else []
        except duckdb.Error as error:
            raise layers.read_error(path.parent, error) from error
        with written_layer(con, path):
            con.execute(_EVENTS)
            try:
                con.execute(f"INSERT INTO layer.events SELECT {_COLUMNS} FROM {stored_events(con, log, segments)}")
            except duckdb.Error as error:
                if storage_errno(error) in NO_ROOM or str(path) in str(error):
                    raise
                raise unreadable(error, f"A segment of the log at {log.location}") from error
            _drop_doubles(con, lower)
            [(events,)] = con.execute("SELECT count(*) FROM layer.events").fetchall()
            if events + sum(layer.events for layer in (below.layers if below else ())) <= _ONE_THREAD_EVENTS:
                con.execute("SET threads = 1")
            if engine is None:
                _compute_tables(con, lower)
            else:
                files = [layer.file for layer in below.layers] if below else []
                engine.compute_tables(con, dict(zip(lower, files, strict=True)), path.name.removeprefix("."))
            if complete is not None:
                if engine is not None:
                    layers.define_views(con, [*lower, "layer"])
                con.execute("SET preserve_insertion_order = true")
                complete(con, lower, events)
        return int(events)


@contextmanager
def _removed_on_failure(path: Path) -> Iterator[None]:
    """Remove the file of a layer if the block fails: on a full disk it would take the space that all else needs."""
    try:
        yield
    except BaseException:
        for leftover in (path, path.with_name(f"{path.name}.wal")):
            leftover.unlink(missing_ok=True)
        raise


@contextmanager
def written_layer(con: duckdb.DuckDBPyConnection, path: Path) -> Iterator[None]:
    """Attach the file of a new layer as `layer`; all writes are in the file when the block ends.

    There is no write-ahead log: nobody reads the file of a killed build, and each of some 20 tables would wait for it.
    """
    con.execute(f"ATTACH '{layers.escape_quotes(path)}' AS layer (RECOVERY_MODE no_wal_writes)")
    yield
    con.execute("CHECKPOINT layer")  # raises on a full disk, where detaching would lose the tables
    con.execute("DETACH layer")


def _compute_tables(con: duckdb.DuckDBPyConnection, lower: Sequence[str]) -> None:
    """Fill all tables of `layer` but `events`, which is filled, and the matrix."""
    catalogs: dict[Scope, Sequence[str]] = {"own": ["layer"], "lower": lower, "all": [*lower, "layer"]}
    # Registered, because planning hundreds of constants twice takes a twentieth of a small build.
    con.register("device_sheet", _device_sheet())
    new = _event_types(con, ["layer"])
    for table in PER_EVENT:
        if table != "events":
            _create_table(con, table, new)
        for view, scope in READ_AS.get(table, {}).items():
            rows = layers.rows_sql(table, catalogs[scope]) or f"FROM layer.{table} WHERE false"
            con.execute(f"CREATE VIEW {view} AS {rows}")
        if table == "result_rows":
            new |= _rare_kinds(con, lower, new)
    layers.define_views(con, [*lower, "layer"])
    # Types of results and verifications are missing, which no derived table has in `SOURCES`.
    known = _event_types(con, [*lower, "layer"], "other_events")
    for table in DERIVED[:-1]:
        _create_table(con, table, known)
    if not _layouts:
        columns = "string_agg(format('\"{}\" {}', column_name, data_type), ', ' ORDER BY column_index)"
        made = f"SELECT table_name, {columns} FROM duckdb_columns() WHERE database_name = 'layer' GROUP BY ALL"
        _layouts.update(con.execute(made).fetchall())


def _event_types(con: duckdb.DuckDBPyConnection, catalogs: Sequence[str], table: str = "events") -> set[str]:
    """Return the types of the events in this table of attached layers."""
    return {
        name for (name,) in con.execute(f"SELECT DISTINCT type FROM ({layers.rows_sql(table, catalogs)})").fetchall()
    }


def _rare_kinds(con: duckdb.DuckDBPyConnection, lower: Sequence[str], types: set[str]) -> set[str]:
    """Return which kinds of results and verifications `layer` has that few layers have.

    Those are results that break a rule, results suspected as they were stored, and verifications of lower results.
    """
    found = {_LATE_VERDICT} if lower and "VerificationRecorded" in types else set()
    if "ResultRecorded" in types:
        breaking, suspected = "broken_rules IS NOT NULL", "provenance IN ('suspect', 'simulated')"
        [(broken, doubted)] = con.execute(
            f"SELECT bool_or({breaking}), bool_or({suspected}) FROM layer.result_rows"
        ).fetchall()
        found |= {kind for kind, there in ((_BREAKING_RESULT, broken), (_SUSPECTED_RESULT, doubted)) if there}
    return found


def _create_table(con: duckdb.DuckDBPyConnection, table: str, types: set[str]) -> None:
    """Fill a table of `layer` from events of these types.

    One that stays empty is declared where its columns are known, because planning its SELECT takes up to a tenth of a
    small build.
    """
    if table in _layouts and table in SOURCES and SOURCES[table].isdisjoint(types):
        con.execute(f"CREATE TABLE layer.{table} ({_layouts[table]})")
    else:
        con.execute(f"CREATE TABLE layer.{table} AS {table_sql(table, device_sheet='FROM device_sheet')}")


@cache
def _device_sheet() -> pa.Table:
    names, devices = zip(*sheet_by_key().values(), strict=True)
    keys = pa.array(sheet_by_key(), pa.string())
    return pa.table({"key": keys, "name": pa.array(names, pa.string()), "devices": pa.array(devices, pa.int32())})


@cache
def table_columns() -> dict[str, dict[str, str]]:
    """Return the columns of the tables of a layer, and of `results`, with DuckDB's types."""
    with duckdb.connect(":memory:") as con:
        con.execute("ATTACH ':memory:' AS layer")
        con.execute(_EVENTS)
        _compute_tables(con, [])
        con.execute(f"CREATE TABLE layer.compat_matrix AS {table_sql('compat_matrix')}")
        return {
            table: {name: kind for name, kind, *_ in con.execute(f"DESCRIBE {source}").fetchall()}
            for table, source in {t: f"layer.{t}" for t in (*PER_EVENT, *DERIVED)}.items() | {("results", "results")}
        }


def connect(directory: Path) -> duckdb.DuckDBPyConnection:
    """Return a connection that writes to the warehouse directory what does not fit into its share of memory."""
    con = duckdb.connect(":memory:", config={"temp_directory": str(directory / SPILL)})
    # Spawned processes count as interactive, where DuckDB draws its progress between what is printed.
    con.execute("SET TimeZone = 'UTC'; SET enable_progress_bar = false")
    [(default,)] = con.execute(
        "SELECT current_setting('memory_limit')"
    ).fetchall()  # a share of the machine's, as 9.3 GiB
    if default.endswith("GiB") and float(default.removesuffix("GiB")) > _MEMORY_GIB:
        con.execute(f"SET memory_limit = '{_MEMORY_GIB}GiB'; SET block_allocator_memory = '{_REUSED_GIB}GiB'")
    return con


def broken_rules(events: Sequence[Event]) -> dict[UUID, list[str]]:
    """Return the data rules that results among these events break, by event id. Such results go to quarantine."""
    if not any(event.type == ResultRecorded.__name__ for event in events):
        return {}
    arriving = codec.to_arrow(events)
    with _RULES_LOCK:
        con = _rules_connection()
        con.execute("BEGIN")
        try:
            con.from_arrow(arriving).insert_into("new_events")
            return dict(con.execute("EXECUTE broken").fetchall())
        finally:
            con.execute("ROLLBACK")


@cache
def _rules_connection() -> duckdb.DuckDBPyConnection:
    """Return a connection with a prepared statement that finds rows of `new_events` that break rules.

    It is parsed and bound once, which saves a tenth of it on a few events. It is optimized each time, because a plan
    that is not takes 23 times as long on 19,000 events, and no less on one.
    """
    con = duckdb.connect(":memory:")
    con.execute("SET TimeZone = 'UTC'; SET threads = 1")
    con.from_arrow(codec.SCHEMA.empty_table()).create("new_events")
    # Without names of the spec sheet, because no rule depends on them, and they double the time.
    nothing = "SELECT NULL::VARCHAR AS key, NULL::VARCHAR AS name, NULL::INTEGER AS devices"
    rows = table_sql("result_fields", device_sheet=nothing)
    broken = f"SELECT event_id, broken_rules FROM ({rows}) WHERE broken_rules IS NOT NULL"
    con.execute(f"PREPARE broken AS {broken}")
    return con


def count_kept_layers(below: Sequence[Layer], arriving: int) -> int:
    """Return how many lower layers stay below a new one with `arriving` events; the others are merged into it.

    A layer stays while it is at least four times as large as everything above it. So there are about log4(n) layers,
    and each event is written about log4(n) times, as in a size-tiered LSM tree.
    """
    count = len(below)
    while count and below[count - 1].events < 4 * arriving:
        arriving += below[count - 1].events
        count -= 1
    return count


def _drop_doubles(con: duckdb.DuckDBPyConnection, lower: Sequence[str]) -> None:
    """Keep one row per event id. Duplicates are rare, so the table is rewritten only if there are any."""
    [(rows, ids)] = con.execute("SELECT count(*), count(DISTINCT event_id) FROM layer.events").fetchall()
    if rows > ids:
        con.execute("CREATE TEMP TABLE doubled AS SELECT * FROM layer.events; DELETE FROM layer.events")
        con.execute(
            "INSERT INTO layer.events SELECT * FROM doubled "
            "QUALIFY row_number() OVER (PARTITION BY event_id ORDER BY recorded_at) = 1"
        )
    for name in lower:
        again = f"SELECT event_id FROM {name}.events WHERE event_id IN (SELECT event_id FROM layer.events)"
        con.execute(f"DELETE FROM layer.events WHERE event_id IN ({again})")


def stored_events(con: duckdb.DuckDBPyConnection, log: EventLog, segments: Collection[str]) -> str:
    """Return a FROM clause for this connection over all events of these segments, lifted to current versions."""
    con.register("no_events", codec.SCHEMA.empty_table())
    stored = " UNION ALL ".join(_scans(log.sources(segments))) or "SELECT * FROM no_events"
    current = {(name, payload.VERSION) for name, payload in PAYLOADS.items()}
    # Two columns are read, because whole rows that are then left out cost a twentieth of a rebuild.
    if current.issuperset(con.execute(f"SELECT DISTINCT type, schema_version FROM ({stored})").fetchall()):
        return f"({stored})"
    is_current = f"(type, schema_version) IN ({', '.join(map(str, sorted(current)))})"
    others = con.sql(f"SELECT * FROM ({stored}) WHERE NOT ({is_current})").to_arrow_table()
    lifted: pa.Table = codec.to_arrow(codec.from_arrow(others.to_batches()))
    con.register("lifted", lifted)
    return f"(SELECT {_COLUMNS} FROM ({stored}) WHERE {is_current} UNION ALL SELECT {_COLUMNS} FROM lifted)"


def _scans(sources: Sequence[SegmentSource]) -> list[str]:
    whole = [source.path for source in sources if source.segments is None]
    scans = [f"SELECT {_COLUMNS} FROM read_parquet([{_list(whole)}])"] if whole else []
    scans += [
        f"SELECT {_COLUMNS} FROM read_parquet([{_list([source.path])}]) WHERE segment IN ({_list(source.segments)})"
        for source in sources
        if source.segments is not None
    ]
    return scans


def _list(values: Collection[object]) -> str:
    return ", ".join(f"'{layers.escape_quotes(value)}'" for value in values)
