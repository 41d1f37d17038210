"""What a projection is on disk, and opening one: layers of DuckDB files that read as one set of tables.

A layer holds the rows of the events it added; the newest also holds the tables derived from all of them. Layers never
change once published, and a projection is the list of its layers, so projections share what they have in common. How
a layer is filled is `build_layer.py`.
"""

from __future__ import annotations

import errno
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import duckdb

from accel_platform.atomic_write import write_durably
from accel_platform.errors import AccelError, StorageUnavailable, WarehouseEmpty, storage_errno, storage_unavailable
from accel_platform.settings import Settings

PER_EVENT = (
    "events",
    "result_rows",
    "verifications",
    "import_ledger",
    "quarantine",
    "suspicions",
    "suspicion_overrides",
)
"""Stored in every layer: one row per event of that layer (a few for `quarantine`)."""
DERIVED = ("hosts", "devices", "models", "runs", "requests", "coverage", "regressions", "compat_matrix")
"""Stored in the newest layer, for all events below it too. `compat_matrix` comes last, after the audit."""
TABLES = ("hosts", "devices", "models", "runs", "requests", "results", "samples", "verifications", "coverage",
          "compat_matrix", "regressions", "quarantine", "suspicions", "suspicion_overrides", "import_ledger",
          "events")  # fmt: skip
"""What users may rely on."""
RENAMED = {"overrulings": "suspicion_overrides"}
"""Former names of tables, which are views for one more version."""

# Provenance where later events changed it: a suspicion found among other documents, or one that a person overruled.
REJUDGED = """
SELECT s.result_id, CASE WHEN bool_or(s.verdict = 'simulated' AND o.rule IS NULL) THEN 'simulated'
    WHEN bool_or(o.rule IS NULL) THEN 'suspect' ELSE 'imported' END AS provenance
FROM suspicions AS s
LEFT JOIN (SELECT DISTINCT result_id, rule FROM suspicion_overrides) AS o USING (result_id, rule)
WHERE s.result_id IN (
    SELECT result_id FROM suspicion_overrides UNION ALL SELECT result_id FROM suspicions WHERE event_id <> result_id
)
GROUP BY s.result_id
"""
# The second where later events judge anything, for the join costs every query a tenth. Only what a file claims can be
# suspected: a measurement of ours is judged by its verification.
RESULTS = "SELECT * EXCLUDE (broken_rules) FROM result_rows WHERE broken_rules IS NULL"
RESULTS_REJUDGED = """
SELECT r.* EXCLUDE (broken_rules) REPLACE (
    CASE WHEN j.provenance IS NULL OR r.provenance IN ('measured', 'emulated') THEN r.provenance ELSE j.provenance END
    AS provenance)
FROM result_rows AS r
LEFT JOIN rejudged_results AS j ON j.result_id = r.event_id
WHERE broken_rules IS NULL
"""
# The samples lie once, with their event.
SAMPLES = """
SELECT event_id AS result_id, generate_subscripts(samples_ns, 1) AS sample, unnest(samples_ns) / 1e6 AS latency_ms
FROM events
WHERE samples_ns IS NOT NULL
"""
# Whether a result's outputs were checked in its own run: true, false, NULL for never. Another run's verdict says
# nothing of it: a driver may have been mended, or broken, in between.
# `counts`: whether it can answer for anything, well or badly. Micro-benchmarks are of no model, and figures whose file
# names no hardware speak for none.
JUDGED = """
SELECT r.*, v.passed AS verified, r.provenance IN ('measured', 'imported') AND r.model_family <> 'microbenchmark'
    AND r.hardware <> 'unknown' AS counts
FROM results AS r
LEFT JOIN (
    SELECT run_id, model_id, hardware, choice, device_id, mode, precision, batch_size, sequence_length, processes,
        weights_sha256, bool_and(passed) AS passed
    FROM verifications
    GROUP BY ALL
) AS v ON r.run_id IS NOT DISTINCT FROM v.run_id AND r.model_id = v.model_id AND r.hardware = v.hardware
    AND r.choice IS NOT DISTINCT FROM v.choice AND r.mode = v.mode AND r.processes IS NOT DISTINCT FROM v.processes
    AND r.device_id IS NOT DISTINCT FROM v.device_id AND r.precision IS NOT DISTINCT FROM v.precision
    AND r.batch_size IS NOT DISTINCT FROM v.batch_size AND r.sequence_length IS NOT DISTINCT FROM v.sequence_length
    AND r.weights_sha256 IS NOT DISTINCT FROM v.weights_sha256
"""
# What matrix, regressions and predictor may rest on: verified measurements, and imports that nothing contradicts.
USABLE = """
SELECT * EXCLUDE (counts) FROM judged_results
WHERE counts AND status = 'ok' AND (provenance = 'imported' OR verified)
"""
# A document read again has a newer entry; the table shows that one, and what it left in quarantine. By which column.
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
        """Its own, also among projections of one snapshot: what CURRENT names is never written again."""
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
        """A read-only connection in which all layers read as the tables in TABLES (those that are built).

        Each call makes a database instance of its own, so that one may be sandboxed while another is not.
        """
        con = duckdb.connect(":memory:")
        try:
            con.execute("SET TimeZone = 'UTC'")
            names = attach(con, self.directory, self.layers)
            define_views(con, names, derived_in=names[-1] if names else None)
        except duckdb.Error as error:
            con.close()
            raise read_error(self.directory, error) from error
        return con

    def count_rows(self) -> dict[str, int]:
        """Rows per public table; the matrix is missing before the audit."""
        with self.open() as con:
            built = con.execute("SELECT view_name FROM duckdb_views() WHERE NOT internal").fetchall()
            tables = [table for table in TABLES if (table,) in built]
            [row] = con.execute("SELECT " + ", ".join(f"(SELECT count(*) FROM {t})" for t in tables)).fetchall()
        return dict(zip(tables, row, strict=True))


def name_prefix(snapshot_id: str, schema_id: str) -> str:
    """What the names of all projections of one snapshot and schema begin with."""
    return f"projection-{snapshot_id}-{schema_id}"


def attach(con: duckdb.DuckDBPyConnection, directory: Path, layers: tuple[Layer, ...]) -> list[str]:
    """Attach the layers read-only; their catalogue names, lowest first."""
    statements = attach_statements(directory, layers)
    for statement in statements.values():
        con.execute(statement)
    return list(statements)


def attach_statements(directory: Path, layers: tuple[Layer, ...]) -> dict[str, str]:
    """What attaches each layer read-only, by its catalogue name, lowest first."""
    return {
        (name := f"layer_{number}"): f"ATTACH '{escape_quotes(directory / layer.file)}' AS {name} (READ_ONLY)"
        for number, layer in enumerate(layers)
    }


def define_views(con: duckdb.DuckDBPyConnection, layers: list[str], *, derived_in: str | None) -> None:
    """Define, in the connection's own catalogue, the public tables over these attached layers."""
    for table in PER_EVENT:
        rows = " UNION ALL ".join(f"SELECT * FROM {name}.{table}" for name in layers)
        superseded = " UNION ALL ".join(f"SELECT supersedes FROM {name}.import_ledger" for name in layers)
        entry = SUPERSEDED_BY.get(table)
        newest = f"WHERE {entry} IS NULL OR {entry} NOT IN (FROM ({superseded}) WHERE supersedes IS NOT NULL)"
        con.execute(f"CREATE VIEW {table} AS FROM ({rows}) {newest if entry else ''}")
    for former, table in RENAMED.items():
        con.execute(f"CREATE VIEW {former} AS FROM {table}")
    con.execute(f"CREATE VIEW rejudged_results AS {REJUDGED}")
    [(judged_later,)] = con.execute(f"SELECT count(*) FROM (FROM ({REJUDGED}) LIMIT 1)").fetchall()
    con.execute(f"CREATE VIEW results AS {RESULTS_REJUDGED if judged_later else RESULTS}")
    con.execute(f"CREATE VIEW samples AS {SAMPLES}")
    con.execute(f"CREATE VIEW judged_results AS {JUDGED}")
    con.execute(f"CREATE VIEW usable_results AS {USABLE}")
    if derived_in is not None:
        built = con.execute("SELECT table_name FROM duckdb_tables() WHERE database_name = ?", [derived_in]).fetchall()
        for table in DERIVED:
            if (table,) in built:
                con.execute(f"CREATE VIEW {table} AS SELECT * FROM {derived_in}.{table}")


def read_error(path: Path, error: Exception) -> AccelError:
    """Return what to say where a part of the warehouse cannot be read: it is out of reach, or it is damaged."""
    if isinstance(error, duckdb.OutOfMemoryException):
        return AccelError(f"There is not enough memory to read the warehouse at {path}: close other programs.")
    named = re.search(r'"(/[^"]+)"', str(error)) if isinstance(error, duckdb.Error) else None
    said = storage_unavailable(error, f"The warehouse at {named[1] if named else path}")
    return said or WarehouseDamaged(path, error)


@contextmanager
def translate_write_errors(directory: Path) -> Iterator[None]:
    """Turn the system's refusal to write into the warehouse into a sentence. Raises StorageUnavailable."""
    try:
        yield
    except (OSError, duckdb.Error) as error:
        named = [Path(name) for name in (getattr(error, "filename2", None), getattr(error, "filename", None)) if name]
        blocked = storage_errno(error) in (errno.EISDIR, errno.ENOTEMPTY, errno.ENOTDIR, errno.EEXIST)
        elsewhere = bool(named) and directory not in (named[0], *named[0].parents)
        # A file in the way is named; of a full disk any file tells as little as another.
        place = named[0] if named and (blocked or elsewhere) else directory
        said = storage_unavailable(error, place if elsewhere else f"The warehouse at {place}")
        if said is None:
            raise
        raise StorageUnavailable(f"{said} What is in service stays.") from error


class WarehouseDamaged(AccelError):
    """A file of the warehouse is not what was written. Nothing is lost: the log is the truth."""

    def __init__(self, path: Path, error: Exception) -> None:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else " ".join(str(error).split())[:200]
        super().__init__(
            f"The warehouse is damaged at {path} ({reason}): `accel db rebuild` makes it again from the log."
        )


def current(settings: Settings) -> Projection | None:
    """The projection in service, None before the first. Raises WarehouseDamaged."""
    return load_current(settings.warehouse_dir)


def load_current(directory: Path) -> Projection | None:
    """What the pointer of a warehouse directory names, as `current`."""
    pointer = directory / "CURRENT"
    try:
        name = pointer.read_text()
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise read_error(pointer, error) from error
    return Projection.load(directory / (name or "nothing"))


def require_current(settings: Settings) -> Projection:
    """The projection in service. Raises WarehouseEmpty, with what to do, before the first."""
    projection = current(settings)
    if projection is None:
        raise WarehouseEmpty(
            f"There is no warehouse at {settings.warehouse_dir} yet: measure (`accel bench run`) or import "
            "(`accel migrate PATH`), then `accel db rebuild`."
        )
    return projection


def escape_quotes(value: object) -> str:
    """The text of `value` for use between single quotes in SQL."""
    return str(value).replace("'", "''")
