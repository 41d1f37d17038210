"""Summary of suspicions of imported results by provenance and rule, from the log.

Overrides are not subtracted; `accel history audit`, which reads the tables, does that.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import duckdb

from accel_platform.events import EventLog
from accel_platform.warehouse.build_layer import stored_events

_MARKS = """
CREATE TEMP TABLE marks AS
WITH stored AS (SELECT event_id, type, source, payload FROM {stored}),
results AS (
    SELECT event_id, payload, payload->>'$.source_path' AS path
    FROM stored
    WHERE type = 'ResultRecorded' AND source = 'migrate'
        AND (path = $place OR (starts_with(path, $place) AND path[len($place) + 1] IN ('/', '#', '!')))
),
verdicts AS (
    SELECT event_id, unnest(from_json(payload->'$.suspicions', '[{{"rule": "VARCHAR", "verdict": "VARCHAR"}}]')) AS s
    FROM results
    UNION ALL
    SELECT (payload->>'$.result_id')::UUID AS event_id,
        {{'rule': payload->>'$.rule', 'verdict': payload->>'$.verdict'}} AS s
    FROM stored
    WHERE type = 'ResultSuspected'
)
SELECT DISTINCT event_id, s.rule AS rule, s.verdict AS verdict FROM results LEFT JOIN verdicts USING (event_id)
"""
_PROVENANCE = """
SELECT provenance, count(*) FROM (
    SELECT CASE WHEN bool_or(verdict = 'simulated') THEN 'simulated' WHEN count(verdict) > 0 THEN 'suspect'
        ELSE 'imported' END AS provenance
    FROM marks GROUP BY event_id)
GROUP BY provenance ORDER BY provenance
"""
_RULES = """
SELECT rule, verdict, count(*) FROM marks WHERE rule IS NOT NULL GROUP BY rule, verdict ORDER BY count(*) DESC, rule
"""


@dataclass(frozen=True)
class VerdictSummary:
    """`provenance` counts each result once; `rules` are (rule, verdict, results), the most frequent first."""

    provenance: dict[str, int]
    rules: tuple[tuple[str, str, int], ...]


def summarize_verdicts(log: EventLog, place: Path) -> VerdictSummary:
    """Return the verdicts on every result imported from this file or folder."""
    with duckdb.connect(":memory:") as con:
        con.execute("SET arrow_lossless_conversion = true; SET TimeZone = 'UTC'")
        stored = stored_events(con, log, log.snapshot().segments)
        con.execute(_MARKS.format(stored=stored), {"place": str(place)})
        provenance = dict(con.execute(_PROVENANCE).fetchall())
        return VerdictSummary(provenance, tuple(con.execute(_RULES).fetchall()))
