"""Projections on disk: layers of DuckDB files that read as one set of tables.

A layer holds the rows of the events it added; the newest also holds the tables derived from all of them. Layers never
change once published. A projection is the list of its layers, so projections share the layers they have in common.
"""

from __future__ import annotations

import errno
import json
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import duckdb

from accel_platform.atomic_write import write_durably
from accel_platform.errors import (
    AccelError,
    StorageUnavailable,
    WarehouseEmpty,
    one_line,
    storage_errno,
    storage_unavailable,
)
from accel_platform.settings import Settings

Scope = Literal["own", "lower", "all"]
PER_EVENT = (
    "events",
    "other_events",
    "verifications",
    "result_rows",
    "late_verdicts",
    "import_ledger",
    "quarantine",
    "suspicions",
    "suspicion_overrides",
    "knowledge_packs",
    "results_by_model",
    "results_by_run",
)
"""Tables of every layer, in the order in which they are filled: rows of its events, and counts of its results."""
READ_AS: dict[str, dict[str, Scope]] = {
    "events": {"new_events": "own"},
    "verifications": {"new_verifications": "own", "all_verifications": "all"},
    "result_rows": {"new_results": "own", "lower_results": "lower"},
}
"""Names under which later tables read an earlier one: its rows in the layer itself, in the layers below, or in all."""
DERIVED = ("hosts", "devices", "models", "runs", "requests", "coverage", "regressions", "compat_matrix")
"""Tables of the newest layer, computed from the events of all layers. `compat_matrix` is added after the audit."""
TABLES = ("hosts", "devices", "models", "runs", "requests", "results", "samples", "verifications", "coverage",
          "compat_matrix", "regressions", "quarantine", "suspicions", "suspicion_overrides", "import_ledger",
          "knowledge_packs", "events")  # fmt: skip
"""Public tables, which users may rely on."""
RENAMED = {"overrulings": "suspicion_overrides"}
"""Former names of tables, which stay as views for one version."""

OUTPUT = (
    "run_id", "model_id", "hardware", "choice", "device_id", "mode", "precision", "batch_size", "sequence_length",
    "processes", "weights_sha256",
)  # fmt: skip
"""Columns in which a result and the verification of its outputs are equal."""
SAME_OUTPUT = " AND ".join(f"r.{name} IS NOT DISTINCT FROM v.{name}" for name in OUTPUT)
"""SQL condition for a verification `v` of a result `r`."""

# Provenance changed by later events: a suspicion found by comparing documents, or one that a person overruled.
REJUDGED = """
SELECT s.result_id, CASE WHEN bool_or(s.verdict = 'simulated' AND o.rule IS NULL) THEN 'simulated'
    WHEN bool_or(o.rule IS NULL) THEN 'suspect' ELSE 'imported' END AS provenance
FROM suspicions AS s
LEFT JOIN (SELECT DISTINCT result_id, rule FROM suspicion_overrides) AS o
    ON o.result_id = s.result_id AND o.rule = s.rule
WHERE s.result_id IN (
    SELECT result_id FROM suspicion_overrides UNION ALL SELECT result_id FROM suspicions WHERE event_id <> result_id
)
GROUP BY s.result_id
"""
# Versions of knowledge packs that do not count: removed ones, and those that another version replaced.
UNUSED_PACKS = """
SELECT DISTINCT 'pack:' || p.pack || '@' || p.version AS source
FROM knowledge_packs AS p
JOIN (
    SELECT pack, arg_max(used, (recorded_at, event_id)) AS used, arg_max(version, (recorded_at, event_id)) AS version
    FROM knowledge_packs
    GROUP BY pack
) AS chosen ON chosen.pack = p.pack
WHERE p.version IS NOT NULL AND NOT (chosen.used AND p.version = chosen.version)
"""
# `RESULTS_REJUDGED` is used only where later events judge anything, because the joins cost every query a tenth. Only
# imported results can be suspected: measurements are judged by their verification.
RESULTS = "SELECT * EXCLUDE (broken_rules) FROM result_rows WHERE broken_rules IS NULL"
RESULTS_REJUDGED = """
SELECT r.* EXCLUDE (broken_rules) REPLACE (
    CASE WHEN j.provenance IS NULL OR r.provenance IN ('measured', 'emulated') THEN r.provenance ELSE j.provenance END
    AS provenance,
    CASE WHEN l.result_id IS NULL THEN r.verified ELSE l.passed AND coalesce(r.verified, true) END AS verified)
FROM result_rows AS r
LEFT JOIN rejudged_results AS j ON j.result_id = r.event_id
LEFT JOIN (SELECT result_id, bool_and(passed) AS passed FROM late_verdicts GROUP BY result_id) AS l
    ON l.result_id = r.event_id
WHERE broken_rules IS NULL AND r.source NOT IN (SELECT source FROM unused_packs)
"""
# Rows without which `rejudged_results`, `unused_packs` and `late_verdicts` are empty.
_JUDGING = ("suspicion_overrides", "suspicions WHERE event_id <> result_id", "knowledge_packs", "late_verdicts")
# Samples are stored once, with their event.
SAMPLES = """
SELECT event_id AS result_id, generate_subscripts(samples_ns, 1) AS sample, unnest(samples_ns) / 1e6 AS latency_ms
FROM events
WHERE samples_ns IS NOT NULL
"""
# `failed`: it did not run to its end, or its outputs differ from the reference. An unchecked result did not fail.
# `counts`: the result may be evidence, good or bad. Micro-benchmarks are of no model, and figures whose file names no
# hardware are evidence for none.
JUDGED = """
SELECT r.*, r.status <> 'ok' OR coalesce(NOT r.verified, false) AS failed,
    r.provenance IN ('measured', 'imported') AND r.model_family <> 'microbenchmark'
        AND r.hardware <> 'unknown' AS counts
FROM results AS r
"""
# Evidence for matrix, regressions and predictor: verified measurements, and imports without suspicion. Measurements
# that other processes disturbed stand in only where the cell has no others. Few are disturbed: a NOT EXISTS for each
# result would hold all results in memory.
USABLE = """
SELECT * EXCLUDE (counts, failed) FROM judged_results
WHERE counts AND status = 'ok' AND (provenance = 'imported' OR verified)
    AND result_id NOT IN (
        SELECT r.result_id
        FROM judged_results AS r SEMI JOIN judged_results AS o
            ON o.provenance = 'measured' AND o.disturbed IS NOT TRUE AND o.status = 'ok' AND o.verified
            AND o.model_id = r.model_id AND o.hardware = r.hardware AND o.mode = r.mode
            AND o.fingerprint IS NOT DISTINCT FROM r.fingerprint
            AND o.choice IS NOT DISTINCT FROM r.choice AND o.device_id IS NOT DISTINCT FROM r.device_id
            AND o.precision IS NOT DISTINCT FROM r.precision AND o.batch_size IS NOT DISTINCT FROM r.batch_size
            AND o.sequence_length IS NOT DISTINCT FROM r.sequence_length
            AND o.output_tokens IS NOT DISTINCT FROM r.output_tokens
            AND o.processes IS NOT DISTINCT FROM r.processes
        WHERE r.disturbed
    )
"""
# Columns that name the ledger entry, by table. A document read again has a newer entry; only its rows are shown.
SUPERSEDED_BY = {"import_ledger": "event_id", "quarantine": "ledger_id"}


@dataclass(frozen=True)
class Layer:
    """One DuckDB file: the events between the layer below and `snapshot_id`."""

    file: str
    snapshot_id: str
    events: int


@dataclass(frozen=True)
class Projection:
    """All tables at one snapshot, lowest layer first."""

    directory: Path
    snapshot_id: str
    schema_id: str
    layers: tuple[Layer, ...]

    @property
    def name(self) -> str:
        """File name, unique also among projections of one snapshot, because a published list never changes."""
        newest = self.layers[-1].file.removeprefix("layer-").removesuffix(".duckdb")
        return f"{name_prefix(self.snapshot_id, self.schema_id)}-{newest}.json"

    def save(self) -> None:
        """Write the list of layers under the projection's name."""
        content = {"snapshot_id": self.snapshot_id, "schema_id": self.schema_id, "layers": [*map(asdict, self.layers)]}
        write_durably(self.directory / self.name, json.dumps(content, indent=1))

    @classmethod
    def load(cls, path: Path) -> Projection:
        try:
            content = json.loads(path.read_text())
            layers = tuple(Layer(**layer) for layer in content["layers"])
            return cls(path.parent, content["snapshot_id"], content["schema_id"], layers)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise read_error(path, error) from error

    def open(self) -> duckdb.DuckDBPyConnection:
        """Open a read-only connection in which all layers read as the tables in TABLES, as far as they are built.

        Each call makes a database instance of its own, so that one may be sandboxed while another is not.
        """
        con = duckdb.connect(":memory:")
        try:
            # Global, because a cursor is a session of its own, which otherwise takes the time zone of the host.
            con.execute("SET GLOBAL TimeZone = 'UTC'")
            # Spawned processes count as interactive, where DuckDB draws its progress between what is printed.
            con.execute("SET enable_progress_bar = false")
            names = attach(con, self.directory, self.layers)
            define_public_tables(con, names)
        except duckdb.Error as error:
            con.close()
            raise read_error(self.directory, error) from error
        return con

    def count_rows(self) -> dict[str, int]:
        """Count the rows of each public table; the matrix is missing before the audit."""
        with self.open() as con:
            built = con.execute("SELECT view_name FROM duckdb_views() WHERE NOT internal").fetchall()
            tables = [table for table in TABLES if (table,) in built]
            [row] = con.execute("SELECT " + ", ".join(f"(SELECT count(*) FROM {t})" for t in tables)).fetchall()
        return dict(zip(tables, row, strict=True))


def name_prefix(snapshot_id: str, schema_id: str) -> str:
    """Return the prefix of the file names of all projections of one snapshot and schema."""
    return f"projection-{snapshot_id}-{schema_id}"


def attach(con: duckdb.DuckDBPyConnection, directory: Path, layers: tuple[Layer, ...]) -> list[str]:
    """Attach the layers read-only, and return their catalog names, lowest first."""
    statements = attach_statements(directory, layers)
    for statement in statements.values():
        con.execute(statement)
    return list(statements)


def attach_statements(directory: Path, layers: tuple[Layer, ...]) -> dict[str, str]:
    """Return the statements that attach each layer read-only, by catalog name, lowest first."""
    return {
        (name := f"layer_{number}"): f"ATTACH '{escape_quotes(directory / layer.file)}' AS {name} (READ_ONLY)"
        for number, layer in enumerate(layers)
    }


def rows_sql(table: str, catalogs: Iterable[str]) -> str:
    """Return SQL of a table's rows in all these attached layers."""
    return " UNION ALL ".join(f"FROM {name}.{table}" for name in catalogs)


def define_views(con: duckdb.DuckDBPyConnection, layers: list[str]) -> None:
    """Define the views over these attached layers that the derived tables and the matrix are computed from."""
    for table in PER_EVENT:
        rows = rows_sql(table, layers)
        superseded = " UNION ALL ".join(f"SELECT supersedes FROM {name}.import_ledger" for name in layers)
        entry = SUPERSEDED_BY.get(table)
        newest = f"WHERE {entry} IS NULL OR {entry} NOT IN (FROM ({superseded}) WHERE supersedes IS NOT NULL)"
        con.execute(f"CREATE VIEW {table} AS FROM ({rows}) {newest if entry else ''}")
    con.execute(f"CREATE VIEW rejudged_results AS {REJUDGED}")
    con.execute(f"CREATE VIEW unused_packs AS {UNUSED_PACKS}")
    # Asked of the tables first, because planning the two views takes longer than all else here, and few logs need them.
    judged_later = _has_rows(con, *_JUDGING) and _has_rows(con, "rejudged_results", "unused_packs", "late_verdicts")
    con.execute(f"CREATE VIEW results AS {RESULTS_REJUDGED if judged_later else RESULTS}")
    con.execute(f"CREATE VIEW judged_results AS {JUDGED}")


def _has_rows(con: duckdb.DuckDBPyConnection, *sources: str) -> bool:
    """Return whether any of these FROM clauses has a row."""
    found = " UNION ALL ".join(f"SELECT 1 FROM {source}" for source in sources)
    return bool(con.execute(f"FROM ({found}) LIMIT 1").fetchall())


def define_public_tables(con: duckdb.DuckDBPyConnection, layers: list[str]) -> None:
    """Define the public tables over these attached layers in the connection's own catalog, as far as they are built."""
    define_views(con, layers)
    for former, table in RENAMED.items():
        con.execute(f"CREATE VIEW {former} AS FROM {table}")
    con.execute(f"CREATE VIEW samples AS {SAMPLES}")
    con.execute(f"CREATE VIEW usable_results AS {USABLE}")
    built = con.execute("SELECT table_name FROM duckdb_tables() WHERE database_name = ?", [layers[-1]]).fetchall()
    for table in DERIVED:
        if (table,) in built:
            con.execute(f"CREATE VIEW {table} AS SELECT * FROM {layers[-1]}.{table}")


def read_error(path: Path, error: Exception) -> AccelError:
    """Return the error for a part of the warehouse that cannot be read: out of reach, or damaged."""
    if isinstance(error, duckdb.OutOfMemoryException):
        return AccelError(f"There is not enough memory to read the warehouse at {path}: close other programs.")
    named = re.search(r'"(/[^"]+)"', str(error)) if isinstance(error, duckdb.Error) else None
    problem = storage_unavailable(error, f"The warehouse at {named[1] if named else path}")
    return problem or WarehouseDamaged(path, error)


@contextmanager
def translate_write_errors(directory: Path) -> Iterator[None]:
    """Translate the system's errors on writing the warehouse. Raises StorageUnavailable."""
    try:
        yield
    except (OSError, duckdb.Error) as error:
        named = [Path(name) for name in (getattr(error, "filename2", None), getattr(error, "filename", None)) if name]
        blocked = storage_errno(error) in (errno.EISDIR, errno.ENOTEMPTY, errno.ENOTDIR, errno.EEXIST)
        outside = bool(named) and directory not in (named[0], *named[0].parents)
        # The file is named where it blocks the write; on a full disk the directory is enough.
        place = named[0] if named and (blocked or outside) else directory
        problem = storage_unavailable(error, place if outside else f"The warehouse at {place}")
        if problem is None:
            raise
        raise StorageUnavailable(f"{problem} What is in service stays.") from error


class WarehouseDamaged(AccelError):
    """A damaged file of the warehouse. Nothing is lost, because the tables are rebuilt from the log."""

    kind = "warehouse-damaged"
    title = "The tables cannot be read"

    def __init__(self, path: Path, error: Exception) -> None:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else one_line(error)[:200]
        super().__init__(
            f"The warehouse is damaged at {path} ({reason}): `accel db rebuild` makes it again from the log."
        )


class WarehouseOutdated(AccelError):
    """Tables that another version of the platform made, and that this one cannot read."""

    def __init__(self) -> None:
        super().__init__(
            "The tables were made by another version of the platform: `accel db rebuild` makes them again from the log."
        )


def current(settings: Settings) -> Projection | None:
    """Return the projection in service, None before the first. Raises WarehouseDamaged."""
    return load_current(settings.warehouse_dir)


def load_current(directory: Path) -> Projection | None:
    """Return the projection that a warehouse directory's pointer names, None without one. Raises WarehouseDamaged."""
    pointer = directory / "CURRENT"
    try:
        name = pointer.read_text()
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise read_error(pointer, error) from error
    return Projection.load(directory / (name or "nothing"))


def require_current(settings: Settings) -> Projection:
    """Return the projection in service. Raises WarehouseEmpty, with the action to take, before the first."""
    projection = current(settings)
    if projection is None:
        raise WarehouseEmpty(
            f"There are no tables at {settings.warehouse_dir} yet: `accel db rebuild` makes them of what was measured "
            "(`accel bench run`) or imported (`accel migrate PATH`), `accel knowledge add --all` of published figures."
        )
    return projection


def escape_quotes(value: object) -> str:
    """Escape the text of `value` for use between single quotes in SQL."""
    return str(value).replace("'", "''")
