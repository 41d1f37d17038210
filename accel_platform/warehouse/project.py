"""Builds the tables from the log into a DuckDB file that nobody reads yet. Publishing it is `publish.py`.

Every table is a function of the set of events, so that any order of arrival gives the same rows. Tables of one row per
event grow by what is new; the small derived ones are computed again in full. What an event of an old version says is
lifted first; an event that arrives twice counts once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache
from importlib import resources
from pathlib import Path

import duckdb
import pyarrow as pa

from accel_platform.events import EventLog, Snapshot, codec
from accel_platform.events.log import Source
from accel_platform.events.types import PAYLOADS
from accel_platform.warehouse.rules import broken_rules_sql

APPENDED = ("verifications", "import_ledger", "quarantine")
DERIVED = ("hosts", "devices", "models", "runs")
TABLES = ("hosts", "devices", "models", "runs", "results", "samples", "verifications", "compat_matrix", "quarantine",
          "import_ledger", "events")  # fmt: skip
"""What users may rely on."""

_QUANTILE = """
CREATE OR REPLACE TEMP MACRO quantile_of(ordered_ns, q) AS (
    -- linear interpolation between order statistics, Hyndman & Fan type 7
    ordered_ns[1 + floor(q * (len(ordered_ns) - 1))::BIGINT]
    + (q * (len(ordered_ns) - 1) - floor(q * (len(ordered_ns) - 1)))
      * (ordered_ns[1 + ceil(q * (len(ordered_ns) - 1))::BIGINT]
         - ordered_ns[1 + floor(q * (len(ordered_ns) - 1))::BIGINT])
) / 1e6
"""
_EVENTS = """
CREATE TABLE events (
    event_id UUID, type VARCHAR, schema_version SMALLINT, occurred_at TIMESTAMPTZ, recorded_at TIMESTAMPTZ,
    source VARCHAR, host_id VARCHAR, run_id VARCHAR, causation_id UUID,
    payload VARCHAR USING COMPRESSION zstd, -- a third faster to write than DuckDB's own choice, and half the file
    samples_ns BIGINT[]
)
"""
_EVENT_COLUMNS = ", ".join(codec.SCHEMA.names)


@cache
def _sql(table: str) -> str:
    text = (resources.files(__package__) / "sql" / f"{table}.sql").read_text()
    return text.replace("$broken_rules", broken_rules_sql())


@cache
def schema_id() -> str:
    """Hash of everything that decides what the tables hold, beside the events: another one means a full rebuild."""
    versions = sorted((name, payload.VERSION) for name, payload in PAYLOADS.items())
    parts = [repr(versions), _QUANTILE, _EVENTS, *(_sql(t) for t in (*APPENDED, *DERIVED, "results", "samples", "compat_matrix"))]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def build(path: Path, log: EventLog, snapshot: Snapshot) -> None:
    """Fill the new DuckDB file at `path` with every table but the matrix, from all events of the snapshot."""
    with duckdb.connect(path) as con:
        _prepare(con)
        con.execute("CREATE TABLE _snapshot (id VARCHAR)")
        con.execute(_EVENTS)
        con.execute(f"INSERT INTO events SELECT {_EVENT_COLUMNS} FROM {_arriving(con, log, snapshot.segments)}")
        _drop_doubles(con)
        con.execute("CREATE TEMP VIEW new_events AS SELECT * FROM events")
        con.execute(f"CREATE TABLE result_rows AS {_sql('results')}")
        con.execute("CREATE TEMP VIEW new_results AS SELECT * FROM result_rows")
        con.execute("CREATE VIEW results AS SELECT * EXCLUDE (broken_rules) FROM result_rows WHERE broken_rules IS NULL")
        con.execute(f"CREATE VIEW samples AS {_sql('samples')}")
        for table in APPENDED:
            con.execute(f"CREATE TABLE {table} AS {_sql(table)}")
        _finish(con, snapshot)


def extend(path: Path, log: EventLog, base: Snapshot, snapshot: Snapshot) -> None:
    """Bring the file at `path`, built at `base`, which `snapshot` contains, up to `snapshot`."""
    with duckdb.connect(path) as con:
        _prepare(con)
        arriving = sorted(snapshot.segments - base.segments)
        con.execute("BEGIN")
        con.execute(
            f"CREATE TEMP TABLE new_events AS SELECT {_EVENT_COLUMNS} FROM {_arriving(con, log, arriving)} "
            "QUALIFY row_number() OVER (PARTITION BY event_id ORDER BY recorded_at) = 1"
        )
        con.execute(
            "DELETE FROM new_events WHERE event_id IN "
            "(SELECT event_id FROM events WHERE event_id IN (SELECT event_id FROM new_events))"
        )
        con.execute("INSERT INTO events SELECT * FROM new_events")
        con.execute(f"CREATE TEMP TABLE new_results AS {_sql('results')}")
        con.execute("INSERT INTO result_rows SELECT * FROM new_results")
        for table in APPENDED:
            con.execute(f"INSERT INTO {table} BY NAME {_sql(table)}")
        _finish(con, snapshot)
        con.execute("COMMIT")


def add_matrix(path: Path) -> None:
    """Compute `compat_matrix` in a built file: the last step, after its results passed their checks."""
    with duckdb.connect(path) as con:
        con.execute(f"CREATE OR REPLACE TABLE compat_matrix AS {_sql('compat_matrix')}")


def _prepare(con: duckdb.DuckDBPyConnection) -> None:
    con.execute("SET preserve_insertion_order = false")
    con.execute("SET TimeZone = 'UTC'")
    con.execute("SET arrow_lossless_conversion = true")  # UUIDs stay UUIDs on their way to Python
    con.execute(_QUANTILE)


def _finish(con: duckdb.DuckDBPyConnection, snapshot: Snapshot) -> None:
    for table in DERIVED:
        con.execute(f"CREATE OR REPLACE TABLE {table} AS {_sql(table)}")
    con.execute("DROP TABLE IF EXISTS compat_matrix")
    con.execute("DELETE FROM _snapshot")
    con.execute("INSERT INTO _snapshot VALUES (?)", [snapshot.id])


def _drop_doubles(con: duckdb.DuckDBPyConnection) -> None:
    """Keep one row per event id. Doubles are rare, so look before paying for the rewrite."""
    [(rows, ids)] = con.execute("SELECT count(*), count(DISTINCT event_id) FROM events").fetchall()
    if rows > ids:
        con.execute("ALTER TABLE events RENAME TO _doubled")
        con.execute(_EVENTS)
        con.execute(
            "INSERT INTO events SELECT * FROM _doubled "
            "QUALIFY row_number() OVER (PARTITION BY event_id ORDER BY recorded_at) = 1"
        )
        con.execute("DROP TABLE _doubled")


def _arriving(con: duckdb.DuckDBPyConnection, log: EventLog, segments: Sequence[str] | frozenset[str]) -> str:
    """A FROM clause over all events of these segments, in the current version of their types."""
    sources = log.sources(segments)
    stored = " UNION ALL ".join(_scans(sources)) or f"SELECT {_EVENT_COLUMNS} FROM _no_events"
    con.register("_no_events", codec.SCHEMA.empty_table())
    current = pa.table(
        {
            "type": pa.array(list(PAYLOADS), pa.string()),
            "version": pa.array([payload.VERSION for payload in PAYLOADS.values()], pa.int16()),
        }
    )
    con.register("_current_versions", current)
    is_current = "(type, schema_version) IN (SELECT (type, version) FROM _current_versions)"
    others = con.sql(f"SELECT * FROM ({stored}) WHERE NOT ({is_current})").to_arrow_table()
    if others.num_rows == 0:
        return f"({stored})"
    lifted = codec.to_arrow(list(codec.from_arrow(others.to_batches())))
    con.register("_lifted", lifted)
    return f"(SELECT * FROM ({stored}) WHERE {is_current} UNION ALL SELECT {_EVENT_COLUMNS} FROM _lifted)"


def _scans(sources: Sequence[Source]) -> list[str]:
    whole = [source.path for source in sources if source.segments is None]
    scans = [f"SELECT {_EVENT_COLUMNS} FROM read_parquet([{_quoted(whole)}])"] if whole else []
    scans += [
        f"SELECT {_EVENT_COLUMNS} FROM read_parquet([{_quoted([source.path])}]) "
        f"WHERE segment IN ({_quoted(sorted(source.segments))})"
        for source in sources
        if source.segments is not None
    ]
    return scans


def _quoted(values: Sequence[object]) -> str:
    return ", ".join("'" + str(value).replace("'", "''") + "'" for value in values)
