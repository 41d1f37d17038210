"""Summary of suspicions about imported results: verdicts by rule, with counts and reasons."""

from __future__ import annotations

from typing import Any

from accel_platform.warehouse.reader import Reader

_PROVENANCE = """
SELECT provenance, count(*) AS results FROM results WHERE source = 'migrate' GROUP BY provenance ORDER BY provenance
"""
_VERDICTS = """
WITH judged AS (
    SELECT s.rule, s.verdict, s.result_id, s.evidence, s.confidence, r.source_path, o.rule IS NOT NULL AS overruled
    FROM suspicions AS s
    JOIN results AS r USING (result_id)
    LEFT JOIN (SELECT DISTINCT result_id, rule FROM suspicion_overrides) AS o USING (result_id, rule)
)
SELECT rule, verdict, count(DISTINCT result_id) AS results, count(DISTINCT source_path) AS documents,
    count(DISTINCT result_id) FILTER (WHERE overruled) AS overruled, round(avg(confidence), 2) AS confidence
FROM judged
GROUP BY rule, verdict
ORDER BY results DESC, rule, verdict
"""
_REASONS = """
SELECT evidence AS reason, count(DISTINCT result_id) AS results, min(result_id::VARCHAR) AS example,
    min(source_path) AS file
FROM suspicions JOIN results USING (result_id)
WHERE rule = ? AND verdict = ?
GROUP BY evidence
ORDER BY results DESC, evidence
LIMIT 3
"""


def count_by_provenance(reader: Reader) -> dict[str, int]:
    """Count imported results by their current provenance. Raises WarehouseEmpty before the first publish."""
    return {row["provenance"]: row["results"] for row in reader.rows(_PROVENANCE)}


def count_by_rule(reader: Reader) -> list[dict[str, Any]]:
    """Count results and overruled ones per rule and verdict, with mean confidence and the three commonest reasons."""
    return [{**row, "reasons": reader.rows(_REASONS, (row["rule"], row["verdict"]))} for row in reader.rows(_VERDICTS)]
