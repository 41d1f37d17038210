"""Synthetic result events in bulk, in the log's own layout: they measure the software and are no results."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow as pa

from accel_platform.events import EventLog, codec
from accel_platform.events.types import VerificationRecorded
from accel_platform.settings import Settings

_EVENTS = """
WITH drawn AS (
    SELECT i, hash(i + {seed} * 1000000007) AS h, 'device-' || (i % 7) AS device_id,
        'model-' || (h % 200) AS model_id, sha256('model-' || (h % 200)) AS weights_sha256,
        ['cpu', 'openvino', 'onnxruntime', 'cuda', 'rocm'][1 + (h // 200 % 5)::INT] AS hardware,
        ['pytorch', 'openvino', 'onnxruntime', 'pytorch', 'pytorch'][1 + (h // 200 % 5)::INT] AS backend,
        1 + h // 1000 % 8 AS batch_size,
        TIMESTAMPTZ '2026-01-01 00:00:00+00' + to_milliseconds(i * 997) AS occurred_at,
        exp(3 + sqrt(-2 * ln((hash(i, 1) % 999983 + 1) / 999984.0)) * cos(2 * pi() * (hash(i, 2) % 999983) / 999983.0))
            AS latency_ms
    FROM range({first}, {first} + {count}) AS t(i)
)
SELECT
    uuidv7() AS event_id, 'ResultRecorded' AS type, 2::SMALLINT AS schema_version, occurred_at,
    occurred_at + to_milliseconds(h % 90) AS recorded_at,
    'bench' AS source, 'host-' || (i % 7) AS host_id, 'run-' || (i // 1000) AS run_id, NULL::UUID AS causation_id,
    to_json({{
        model_id: model_id, model_family: 'family-' || (h % 200 % 17), hardware: hardware, backend: backend,
        status: 'ok', provenance: 'measured', mode: 'inference', precision: 'float32',
        batch_size: batch_size, sequence_length: 128, weights_sha256: weights_sha256,
        device_id: device_id, device_name: 'Synthetic ' || device_id,
        fingerprint: md5(device_id), threads: 2, warmup_iterations: 5,
        first_ms: round(latency_ms * 1.5, 6), load_ms: round(latency_ms * 20, 6), compile_ms: round(latency_ms * 9, 6),
        memory_peak_mib: round(200 + latency_ms * 3, 3), noisy: h % 50 = 0,
        environment: {{load_before: h % 100 / 100.0, load_after: h // 100 % 100 / 100.0, governor: 'performance'}},
        suspicions: [], original: MAP {{}}
    }})::VARCHAR AS payload,
    list_transform(range({samples}), lambda s:
        (latency_ms * 1e6 * (1 + 0.02 * ((hash(i, s + 9) % 1000003) / 1000003.0 - 0.5)))::BIGINT) AS samples_ns
FROM drawn
"""
_VERIFICATIONS = """
SELECT uuidv7() AS event_id, 'VerificationRecorded' AS type, {version}::SMALLINT AS schema_version, occurred_at,
    recorded_at, source, host_id, run_id, causation_id,
    to_json({{
        model_id: payload->>'model_id', hardware: payload->>'hardware', backend: payload->>'backend',
        device_id: payload->>'device_id', precision: 'float32', batch_size: (payload->>'batch_size')::INT,
        sequence_length: 128, mode: 'inference', weights_sha256: payload->>'weights_sha256', passed: true,
        reference: 'pytorch float32', max_abs_error: 1e-6, relative_error: 1e-6, tolerance: 1e-3, constant_output: false
    }})::VARCHAR AS payload, NULL::BIGINT[] AS samples_ns
FROM results
"""


def result_events(count: int, *, first: int = 0, seed: int = 0, samples: int = 30) -> pa.Table:
    """Return `count` result events with `samples` samples each, as a table in the log's layout."""
    with _connect() as con:
        table = con.sql(_EVENTS.format(count=count, first=first, seed=seed, samples=samples)).to_arrow_table()
    return table.cast(codec.SCHEMA)


def with_verifications(results: pa.Table) -> pa.Table:
    """Return these result events, and for each one the event that verifies its outputs, as a run records them."""
    with _connect() as con:
        verifications = con.sql(_VERIFICATIONS.format(version=VerificationRecorded.VERSION)).to_arrow_table()
    return pa.concat_tables([results, verifications.cast(codec.SCHEMA)])


def _connect() -> duckdb.DuckDBPyConnection:
    con = duckdb.connect()
    con.execute("SET TimeZone = 'UTC'; SET enable_progress_bar = false")
    con.execute("SET arrow_lossless_conversion = true")  # UUIDs stay UUIDs
    return con


def write_log(home: Path, results: int, *, first: int = 0, per_segment: int = 10_000, verified: bool = True) -> None:
    """Write a log of so many results under `home`, as a platform that compacts would have it.

    The `first` ones are there already. Beside a verified result is an event of its own, as a run writes it; imported
    results have none.
    """
    log = EventLog.open(Settings(home=home))
    for start in range(first, results, per_segment):
        table = result_events(min(per_segment, results - start), first=start)
        log.append_table(with_verifications(table) if verified else table, key=f"bulk-{start:09}")
