"""Suspicion rules across documents: figures repeated over all documents ever imported.

Figures are compared exactly, on one device and configuration. Samples are compared only to find copies of one result.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal
from uuid import UUID

from accel_platform.errors import NO_ROOM, LogUnavailable, storage_errno, storage_unavailable
from accel_platform.events import Event, EventLog
from accel_platform.events.log import SegmentSource, Snapshot, unreadable
from accel_platform.events.types import ImportsChecked, ResultSuspected
from migrations.normalize.canonical_names import MICROBENCHMARK, UNKNOWN_HARDWARE
from migrations.pipeline.batches import SEGMENT_PREFIX
from migrations.pipeline.document_reader import SOURCE
from migrations.pipeline.ledger import numbered_id
from migrations.suspicion.rules import MIN_MODEL_SHARE

if TYPE_CHECKING:
    import duckdb

RULES_VERSION = 3
"""Raise it when a rule of this module changes, because every log is then to be checked once more."""
_TEXT_FIELDS = ("model_id", "hardware", "backend", "device_name", "precision", "mode")
_NUMBER_FIELDS = ("batch_size", "sequence_length", "latency_mean_ms", "throughput_items_per_s", "memory_peak_mib")
_COMPARED = (*_TEXT_FIELDS, *_NUMBER_FIELDS)
_COPIED = (*_TEXT_FIELDS, "batch_size", "sequence_length", "latency_mean_ms", "throughput_items_per_s")
"""Fields that copies of a result share, beside samples and time. An export may leave out the memory."""
_PATHS = (*_COMPARED, "status", "model_family", "original.derived_claim", "occurred_local", "provenance")
_MIN_DISTINCT_SAMPLES = 5
"""Least number of distinct sample values for which equal samples are a copy, whatever the time: a coarse clock gives a
few equal ones by chance. Fewer samples, and other figures, are a copy only if their time is also stated and equal."""
_MEMORY_MB = 140
"""DuckDB spills beyond this limit to files; an operation that cannot spill is retried with twice the memory."""
_MAX_MEMORY_MB = 8_000
_MIN_MODELS = 3
"""Two models of one origin may share a figure by chance, three hardly do."""


def _field(path: str) -> str:
    """Return SQL for one field of a payload whose fields are the list `texts`."""
    text = f"texts[{_PATHS.index(path) + 1}]"
    return f"{text}::DOUBLE" if path in _NUMBER_FIELDS else text


# All fields at once, because json_transform and one path at a time took five times as long.
_TEXTS = f"json_extract_string(payload, {[f'$.{path}' for path in _PATHS]}) AS texts"
_BRIEF = f"""
CREATE TEMP TABLE every_brief AS
WITH imported AS (
    SELECT event_id, causation_id, recorded_at, occurred_at, samples_ns, {_TEXTS} FROM stored
    WHERE type = 'ResultRecorded' AND source = 'migrate'
),
timed AS (
    SELECT *, coalesce(occurred_at::TEXT, {_field("occurred_local")}) AS time,
        coalesce({_field("latency_mean_ms")}, {_field("throughput_items_per_s")}) > 0 AS is_stated
    FROM imported
)
SELECT event_id, causation_id AS document, {_field("hardware")} AS hardware, hash({_field("model_id")}) AS model,
    hash({", ".join(map(_field, ("precision", "mode", *_NUMBER_FIELDS)))}) AS figures,
    {_field("status")} = 'ok' AND {_field("original.derived_claim")} IS NULL
        AND {_field("model_family")} <> '{MICROBENCHMARK}' -- the empty ones all take no time
        AS is_result,
    is_result AND is_stated AND samples_ns IS NULL AS comparable,
    CASE WHEN is_result AND (len(list_distinct(samples_ns)) >= {_MIN_DISTINCT_SAMPLES}
            OR (time IS NOT NULL AND (is_stated OR len(samples_ns) > 0)))
        THEN hash({", ".join(map(_field, _COPIED))}, samples_ns, time) END AS copy,
    recorded_at, {_field("provenance")} <> 'imported' AS doubted
FROM timed;
CREATE TEMP VIEW brief AS FROM every_brief WHERE comparable
"""
"""A few bytes per result, because only figures repeated in several documents are compared in full. `comparable` is no
condition, because DuckDB would parse each payload a second time for it."""
_DOCUMENTS = """
CREATE TEMP TABLE documents AS
SELECT event_id AS document, CASE WHEN format LIKE 'skill%' THEN 'skill' ELSE format END AS format, path
FROM (SELECT event_id, payload->>'$.format' AS format, payload->>'$.source_path' AS path FROM stored
    WHERE type = 'DocumentImported')
"""
_COMMON = """
CREATE TEMP TABLE common AS
SELECT format, hardware, count(DISTINCT model) AS models FROM brief JOIN documents USING (document) GROUP BY ALL
"""
_SEVERAL = """
CREATE TEMP TABLE several AS
SELECT event_id, document FROM brief
SEMI JOIN (SELECT figures FROM brief GROUP BY figures HAVING min(document) <> max(document)) USING (figures)
"""
_FIGURES = f"""
CREATE TEMP TABLE figures AS
WITH parsed AS (
    SELECT event_id, document, {_TEXTS} FROM several JOIN stored USING (event_id)
),
named AS (
    SELECT event_id, document, format, {", ".join(f"{_field(path)} AS {path}" for path in _COMPARED)}
    FROM parsed JOIN documents USING (document)
)
SELECT *,
    (latency_mean_ms IS NOT NULL)::INT + (throughput_items_per_s IS NOT NULL)::INT + (memory_peak_mib IS NOT NULL)::INT
        AS known,
    concat_ws(', ', 'latency ' || printf('%.6g', latency_mean_ms) || ' ms',
        'throughput ' || printf('%.6g', throughput_items_per_s) || ' items/s',
        'memory ' || printf('%.6g', memory_peak_mib) || ' MiB') AS stated
FROM named
"""
_CONSTANT = """
WITH repeated AS (
    SELECT *, list_sort(list_distinct(list(model_id) OVER same)) AS models,
        count(DISTINCT document) OVER same AS documents
    FROM figures
    WINDOW same AS (PARTITION BY format, hardware, backend, device_name, precision, mode, batch_size, sequence_length,
        latency_mean_ms, throughput_items_per_s, memory_peak_mib)
)
SELECT event_id, 'constant_over_archive' AS rule, CASE WHEN known > 1 THEN 'simulated' ELSE 'suspect' END,
    stated || ' for ' || array_to_string(r.models[:8], ', ') || ' in ' || documents || ' documents',
    CASE WHEN known > 1 THEN 0.9 ELSE 0.6 END
FROM repeated AS r JOIN common AS c USING (format, hardware)
WHERE documents > 1 AND len(r.models) >= $models AND len(r.models) >= $chance * c.models
"""
_IDENTICAL = f"""
WITH repeated AS (
    SELECT *, list_sort(list_distinct(list(hardware) OVER same)) AS names,
        count(DISTINCT document) OVER same AS documents
    FROM figures
    WHERE known > 1 AND hardware <> '{UNKNOWN_HARDWARE}' -- a run may be imported again, with the device it did not name
    WINDOW same AS (PARTITION BY format, model_id, precision, mode, batch_size, sequence_length,
        latency_mean_ms, throughput_items_per_s, memory_peak_mib)
)
SELECT event_id, 'identical_over_archive' AS rule, 'simulated', stated || ' on ' || array_to_string(names, ', '), 0.95
FROM repeated
WHERE documents > 1 AND len(names) > 1
"""

_COPY = """
WITH first AS (
    SELECT event_id, document, first_value(document) OVER same AS original
    FROM every_brief WHERE copy IS NOT NULL
    WINDOW same AS (PARTITION BY copy ORDER BY doubted, recorded_at, document)
)
SELECT event_id, 'copied_result' AS rule, 'suspect', 'the result that is in ' || path || ' already', 0.95
FROM first JOIN documents ON documents.document = original
WHERE first.document <> original
"""
"""Suspicions of copies: the one that nothing is held against counts, else the first."""

_KNOWN = """
SELECT CAST(payload->>'$.result_id' AS UUID), payload->>'$.rule' FROM stored WHERE type = 'ResultSuspected'
"""


@dataclass(frozen=True)
class CrossCheck:
    """The comparison of all documents that were imported at one moment.

    Its record in the log is named after the import segments, so a listing of the log shows whether it was made, also
    after an interrupted import.
    """

    snapshot: Snapshot

    @cached_property
    def covers(self) -> Snapshot:
        """The import segments."""
        return self.snapshot.beginning(SEGMENT_PREFIX)

    @property
    def segment(self) -> str:
        """Name of the segment that holds the suspicions and the record of this check."""
        return f"checked-imports-{RULES_VERSION}-{self.covers.id}"

    @property
    def due(self) -> bool:
        """True where something was imported and this check is not in the log."""
        return bool(self.covers.segments) and self.segment not in self.snapshot.segments

    def store(self, log: EventLog, suspicions: Sequence[Event]) -> int:
        """Store the suspicions and the record of the check in one append; return the number of events stored, 0 where
        another process was first. Raises LogUnavailable."""
        payload = ImportsChecked(
            rules_version=RULES_VERSION,
            snapshot_id=self.covers.id,
            segments=len(self.covers.segments),
            suspicions=len(suspicions),
        )
        record = Event.of(payload, source=SOURCE, event_id=numbered_id(self.segment))
        appended = log.append([*suspicions, record], key=self.segment)
        return appended.events if appended.new else 0


def find_cross_document_suspicions(log: EventLog, snapshot: Snapshot | None = None) -> list[Event]:
    """Return the suspicions over a snapshot (default: now) that it does not hold yet, in a stable order.

    Raises LogUnavailable where a segment cannot be read, StorageUnavailable where the disk for temporary files is full.
    """
    import duckdb  # a run that finds nothing new has no need of it

    sources = log.sources((snapshot or log.snapshot()).segments)
    memory_mb = _MEMORY_MB
    while sources:
        try:
            found = _find_repeated(sources, memory_mb)
        except duckdb.OutOfMemoryException:
            if memory_mb > _MAX_MEMORY_MB:
                raise
            memory_mb *= 2
        except (duckdb.IOException, duckdb.InvalidInputException) as error:
            if storage_errno(error) in NO_ROOM:
                raise storage_unavailable(error, tempfile.gettempdir()) or error from error
            unread = unreadable(error, f"A segment of the log at {log.location}")
            raise LogUnavailable(
                f"{unread} What was imported stays; `accel db rebuild` sets damaged segments aside, and the next import"
                " compares all documents."
            ) from error
        else:
            return [_event(*row) for row in found]
    return []


def _find_repeated(sources: Sequence[SegmentSource], memory_mb: int) -> list[tuple[Any, ...]]:
    """Return result, rule, verdict, evidence and confidence of every new suspicion, by result and rule."""
    import duckdb

    from accel_platform.warehouse.interrupts import interruptible

    with tempfile.TemporaryDirectory() as spill, duckdb.connect(":memory:") as con, interruptible(con):
        con.execute("SET arrow_lossless_conversion = true; SET TimeZone = 'UTC'; SET preserve_insertion_order = false")
        con.execute(f"SET memory_limit = '{memory_mb}MB'; SET temp_directory = '{spill}'; SET threads = 1")
        con.execute(f"CREATE TEMP VIEW stored AS {_stored(sources)}")
        for step in (_BRIEF, _DOCUMENTS, _SEVERAL):
            con.execute(step)
        constant, identical = _compare_figures(con)
        copied = con.execute(_COPY).fetchall()
        known = con.execute(_KNOWN).fetchall()
    found = {(row[0], row[1]): row for row in (*constant, *identical, *copied)}
    return [found[key] for key in sorted(found.keys() - set(known))]


def _compare_figures(con: duckdb.DuckDBPyConnection) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """Return the suspicions of figures constant over models, and of figures identical on several hardware."""
    if not con.execute("FROM several LIMIT 1").fetchall():
        return [], []  # saves reading all payloads again
    for step in (_COMMON, _FIGURES):
        con.execute(step)
    constant = con.execute(_CONSTANT, {"models": _MIN_MODELS, "chance": MIN_MODEL_SHARE}).fetchall()
    return constant, con.execute(_IDENTICAL).fetchall()


def _event(
    result_id: UUID, rule: str, verdict: Literal["simulated", "suspect"], evidence: str, confidence: float
) -> Event:
    suspicion = ResultSuspected(
        result_id=result_id, rule=rule, verdict=verdict, evidence=evidence, confidence=confidence
    )
    return Event.of(suspicion, source=SOURCE, event_id=numbered_id(f"suspicion {result_id} {rule}"))


def _stored(sources: Sequence[SegmentSource]) -> str:
    columns = "event_id, causation_id, type, source, occurred_at, recorded_at, payload, samples_ns"
    whole = [str(source.path) for source in sources if source.segments is None]
    scans = [f"SELECT {columns} FROM read_parquet([{_sql_strings(whole)}])"] if whole else []
    for source in sources:
        if source.segments is not None:
            pack, chosen = _sql_strings([str(source.path)]), _sql_strings(sorted(source.segments))
            scans.append(f"SELECT {columns} FROM read_parquet([{pack}]) WHERE segment IN ({chosen})")
    return " UNION ALL ".join(scans)


def _sql_strings(values: Sequence[str]) -> str:
    return ", ".join("'" + value.replace("'", "''") + "'" for value in values)
