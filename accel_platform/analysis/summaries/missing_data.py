"""Gaps in the data: failed, quarantined and suspect results, and unavailable hardware."""

from __future__ import annotations

from typing import Any

from accel_platform.analysis.query.filters import Selection
from accel_platform.warehouse.reader import Reader

_FAILED = """
SELECT r.hardware, r.status,
    CASE WHEN r.status = 'ok' THEN 'wrong outputs' ELSE coalesce(r.failure_class, 'not stated') END AS failure_class,
    count(*) AS results, count(DISTINCT r.model_id) AS models, max_by(r.reason, r.recorded_at) AS newest_reason
FROM judged_results AS r WHERE r.failed AND {condition}
GROUP BY ALL ORDER BY results DESC, r.hardware, failure_class
"""
_DOUBTED = """
SELECT r.provenance, s.rule, count(DISTINCT r.result_id) AS results, count(DISTINCT r.source_path) AS documents,
    any_value(s.evidence) AS example
FROM results AS r LEFT JOIN suspicions AS s USING (result_id)
WHERE r.provenance IN ('suspect', 'simulated') AND {condition}
GROUP BY ALL ORDER BY results DESC, r.provenance, s.rule
"""
_QUARANTINED = """
SELECT rule, count(*) AS records, count(DISTINCT source_path) AS documents, any_value(reason) AS example
FROM quarantine GROUP BY rule ORDER BY records DESC, rule
"""
_ABSENT = """
SELECT hardware, count(DISTINCT host_id) AS hosts, max_by(reason, observed_at) AS reason FROM devices
GROUP BY hardware HAVING NOT bool_or(available) ORDER BY hardware
"""
_COUNTS = """
SELECT count(*) AS results, count(DISTINCT r.run_id) AS runs, count(DISTINCT r.model_id) AS models,
    count(DISTINCT r.hardware) AS hardware, count(DISTINCT coalesce(r.device_id, r.device_name)) AS devices,
    min(r.occurred_at) AS oldest, max(r.occurred_at) AS newest
FROM results AS r WHERE {condition}
"""
_BY_PROVENANCE = """
SELECT r.provenance, count(*) AS results, count(*) FILTER (NOT r.failed) AS ok,
    count(*) FILTER (r.failed) AS failed, count(DISTINCT r.model_id) AS models,
    count(DISTINCT r.hardware) AS hardware, sum(r.samples)::BIGINT AS samples
FROM judged_results AS r WHERE {condition} GROUP BY r.provenance ORDER BY results DESC, r.provenance
"""
_UNCOMPARED = """
SELECT count(*) AS results FROM judged_results AS r
WHERE r.provenance IN ('measured', 'emulated') AND NOT r.failed AND r.verified IS NULL AND {condition}
"""
_DISTURBED = """
SELECT count(*) AS results FROM judged_results AS r WHERE r.disturbed AND NOT r.failed AND {condition}
"""


class MissingData:
    """Counts for a selection at one snapshot; quarantined records and absent hardware are not filtered."""

    def __init__(self, reader: Reader, selection: Selection) -> None:
        condition, values = selection.where()

        def read(sql: str) -> list[dict[str, Any]]:
            return reader.rows(sql.format(condition=condition), values)

        self.failed = read(_FAILED)
        self.doubted = read(_DOUBTED)
        [self.counts] = read(_COUNTS)
        self.by_provenance = read(_BY_PROVENANCE)
        self.unverified: int = read(_UNCOMPARED)[0]["results"]
        self.disturbed: int = read(_DISTURBED)[0]["results"]
        self.failures = sum(row["results"] for row in self.failed)
        self.doubts = sum(r["results"] for r in self.by_provenance if r["provenance"] in ("suspect", "simulated"))
        self.quarantined = reader.rows(_QUARANTINED)
        self.absent = reader.rows(_ABSENT)
