"""Synthetic result events in bulk, in the log's own layout: they measure the software and are no results."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow as pa

from accel_platform.events import EventLog, codec
from accel_platform.settings import Settings

_EVENTS = """
WITH drawn AS (
    SELECT i, hash(i + {seed} * 1000000007) AS h,
        exp(3 + sqrt(-2 * ln((hash(i, 1) % 999983 + 1) / 999984.0)) * cos(2 * pi() * (hash(i, 2) % 999983) / 999983.0))
            AS latency_ms
    FROM range({first}, {first} + {count}) AS t(i)
)
SELECT
    uuidv7() AS event_id, 'ResultRecorded' AS type, 2::SMALLINT AS schema_version,
    TIMESTAMPTZ '2026-01-01 00:00:00+00' + to_milliseconds(i * 997) AS occurred_at,
    TIMESTAMPTZ '2026-01-01 00:00:00+00' + to_milliseconds(i * 997 + h % 90) AS recorded_at,
    'bench' AS source, 'host-' || (i % 7) AS host_id, 'run-' || (i // 1000) AS run_id, NULL::UUID AS causation_id,
    to_json({{
        model_id: 'model-' || (h % 200), model_family: 'family-' || (h % 200 % 17),
        hardware: ['cpu', 'openvino', 'onnxruntime', 'cuda', 'rocm'][1 + (h // 200 % 5)::INT],
        backend: ['pytorch', 'openvino', 'onnxruntime', 'pytorch', 'pytorch'][1 + (h // 200 % 5)::INT],
        status: 'ok', provenance: 'measured', mode: 'inference', precision: 'float32',
        batch_size: 1 + h // 1000 % 8, sequence_length: 128,
        device_id: 'device-' || (i % 7), device_name: 'Synthetic device ' || (i % 7),
        fingerprint: md5('device-' || (i % 7)), threads: 2, warmup_iterations: 5,
        first_ms: round(latency_ms * 1.5, 6), load_ms: round(latency_ms * 20, 6), compile_ms: round(latency_ms * 9, 6),
        memory_peak_mib: round(200 + latency_ms * 3, 3), noisy: h % 50 = 0,
        environment: {{load_before: h % 100 / 100.0, load_after: h // 100 % 100 / 100.0, governor: 'performance'}},
        suspicions: [], original: MAP {{}}
    }})::VARCHAR AS payload,
    list_transform(range({samples}), lambda s:
        (latency_ms * 1e6 * (1 + 0.02 * ((hash(i, s + 9) % 1000003) / 1000003.0 - 0.5)))::BIGINT) AS samples_ns
FROM drawn
"""


def result_events(count: int, *, first: int = 0, seed: int = 0, samples: int = 30) -> pa.Table:
    """`count` result events with `samples` samples each, as a table in the log's layout."""
    with duckdb.connect() as con:
        con.execute("SET TimeZone = 'UTC'; SET enable_progress_bar = false")
        con.execute("SET arrow_lossless_conversion = true")  # UUIDs stay UUIDs
        table = con.sql(_EVENTS.format(count=count, first=first, seed=seed, samples=samples)).to_arrow_table()
    return table.cast(codec.SCHEMA)


def write_log(home: Path, events: int, *, first: int = 0, per_segment: int = 10_000) -> None:
    """A log of so many result events under `home`, as a platform that compacts would have it; `first` are there."""
    log = EventLog.open(Settings(home=home))
    for start in range(first, events, per_segment):
        table = result_events(min(per_segment, events - start), first=start)
        log.append_table(table, key=f"bulk-{start:09}")
