"""Suspicions that no single document shows: figures repeated over all documents ever imported. Rules of one document
are in `suspicion.py`.

Both rules compare stated figures exactly, on one device and configuration; samples are never compared.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Literal
from uuid import UUID

import duckdb

from accel_platform.events import Event, EventLog
from accel_platform.events.log import Source
from accel_platform.events.types import ResultSuspected
from migrations.identity import MICROBENCHMARK
from migrations.ids import numbered_id
from migrations.reading import SOURCE
from migrations.suspicion import CHANCE

_TEXTS = ("model_id", "hardware", "backend", "device_name", "precision", "mode")
_NUMBERS = ("batch_size", "sequence_length", "latency_mean_ms", "throughput_items_per_s", "memory_peak_mib")
_PARTS = json.dumps(
    {
        **dict.fromkeys((*_TEXTS, "status", "model_family"), "VARCHAR"),
        **dict.fromkeys(_NUMBERS, "DOUBLE"),
        "original": {"derived_claim": "VARCHAR"},
    }
)
_MODELS = 3
"""Two models of one origin may share a figure by chance, three hardly do."""

_FIGURES = f"""
CREATE TEMP TABLE figures AS
WITH imported AS (
    SELECT event_id, causation_id, json_transform(payload, '{_PARTS}') AS said FROM stored
    WHERE type = 'ResultRecorded' AND source = 'migrate' AND samples_ns IS NULL
),
told AS (
    SELECT causation_id AS document, event_id, {", ".join(f"said.{name}" for name in (*_TEXTS, *_NUMBERS))}
    FROM imported
    WHERE said.status = 'ok' AND said.original.derived_claim IS NULL
        AND said.model_family <> '{MICROBENCHMARK}' -- the empty ones all take no time
)
SELECT told.*, CASE WHEN d.format LIKE 'skill%' THEN 'skill' ELSE d.format END AS format,
    (latency_mean_ms IS NOT NULL)::INT + (throughput_items_per_s IS NOT NULL)::INT + (memory_peak_mib IS NOT NULL)::INT
        AS known,
    concat_ws(', ', 'latency ' || printf('%.6g', latency_mean_ms) || ' ms',
        'throughput ' || printf('%.6g', throughput_items_per_s) || ' items/s',
        'memory ' || printf('%.6g', memory_peak_mib) || ' MiB') AS said
FROM told
JOIN (SELECT event_id AS document, payload->>'$.format' AS format FROM stored WHERE type = 'DocumentImported') AS d
USING (document)
WHERE coalesce(latency_mean_ms, throughput_items_per_s) > 0
"""
_CONSTANT = """
WITH repeated AS (
    SELECT *, list_sort(list_distinct(list(model_id) OVER same)) AS models,
        count(DISTINCT document) OVER same AS documents
    FROM figures
    WINDOW same AS (PARTITION BY format, hardware, backend, device_name, precision, mode, batch_size, sequence_length,
        latency_mean_ms, throughput_items_per_s, memory_peak_mib)
),
common AS (
    SELECT format, hardware, count(DISTINCT model_id) AS models FROM figures GROUP BY ALL
)
SELECT event_id, 'constant_over_archive' AS rule, CASE WHEN known > 1 THEN 'simulated' ELSE 'suspect' END,
    said || ' for ' || array_to_string(r.models[:8], ', ') || ' in ' || documents || ' documents',
    CASE WHEN known > 1 THEN 0.9 ELSE 0.6 END
FROM repeated AS r JOIN common AS c USING (format, hardware)
WHERE documents > 1 AND len(r.models) >= $models AND len(r.models) >= $chance * c.models
"""
_IDENTICAL = """
WITH repeated AS (
    SELECT *, list_sort(list_distinct(list(hardware) OVER same)) AS names,
        count(DISTINCT document) OVER same AS documents
    FROM figures
    WHERE known > 1
    WINDOW same AS (PARTITION BY format, model_id, precision, mode, batch_size, sequence_length,
        latency_mean_ms, throughput_items_per_s, memory_peak_mib)
)
SELECT event_id, 'identical_over_archive' AS rule, 'simulated', said || ' on ' || array_to_string(names, ', '), 0.95
FROM repeated
WHERE documents > 1 AND len(names) > 1
"""

_KNOWN = """
SELECT CAST(payload->>'$.result_id' AS UUID), payload->>'$.rule' FROM stored WHERE type = 'ResultSuspected'
"""


def suspect_across(log: EventLog) -> list[Event]:
    """Suspicions over the whole log that it does not hold yet, as events, in a stable order."""
    sources = log.sources(log.snapshot().segments)
    if not sources:
        return []
    with duckdb.connect(":memory:") as con:
        con.execute("SET arrow_lossless_conversion = true; SET TimeZone = 'UTC'")
        con.execute(f"CREATE TEMP VIEW stored AS {_stored(sources)}")
        con.execute(_FIGURES)
        constant = con.execute(_CONSTANT, {"models": _MODELS, "chance": CHANCE}).fetchall()
        identical = con.execute(_IDENTICAL).fetchall()
        known = con.execute(_KNOWN).fetchall()
    found = {(row[0], row[1]): row for row in (*constant, *identical)}
    return [_event(*found[key]) for key in sorted(found.keys() - set(known))]


def _event(
    result_id: UUID, rule: str, verdict: Literal["simulated", "suspect"], evidence: str, confidence: float
) -> Event:
    suspicion = ResultSuspected(
        result_id=result_id, rule=rule, verdict=verdict, evidence=evidence, confidence=confidence
    )
    return Event.of(suspicion, source=SOURCE, event_id=numbered_id(f"suspicion {result_id} {rule}"))


def _stored(sources: Sequence[Source]) -> str:
    columns = "event_id, causation_id, type, source, payload, samples_ns"
    whole = [str(source.path) for source in sources if source.segments is None]
    scans = [f"SELECT {columns} FROM read_parquet([{_texts(whole)}])"] if whole else []
    for source in sources:
        if source.segments is not None:
            pack, chosen = _texts([str(source.path)]), _texts(sorted(source.segments))
            scans.append(f"SELECT {columns} FROM read_parquet([{pack}]) WHERE segment IN ({chosen})")
    return " UNION ALL ".join(scans)


def _texts(values: Sequence[str]) -> str:
    return ", ".join("'" + value.replace("'", "''") + "'" for value in values)
