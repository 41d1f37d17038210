"""The compatibility matrix of a part of the evidence: of what a filter leaves, or of what was recorded by then.

By the rule of the table `compat_matrix`, over the same views: only what they are taken over is less.
"""

from __future__ import annotations

from accel_platform.warehouse import projection
from accel_platform.warehouse.project import sql_of

_EVER = "judged_results AS (SELECT r.* FROM memory.main.judged_results AS r WHERE {condition})"
# Every judgement of the views is made again from what the log held by then: a result, its verification, a suspicion.
_BY_THEN = f"""
known AS (SELECT event_id FROM events WHERE recorded_at < $moment),
result_rows AS (
    SELECT * FROM memory.main.result_rows
    WHERE recorded_at < $moment
        AND (len($models) = 0 OR list_contains($models, model_id) OR list_contains($models, model_family))
),
verifications AS (FROM memory.main.verifications SEMI JOIN known USING (event_id)),
suspicions AS (FROM memory.main.suspicions SEMI JOIN known USING (event_id)),
overrulings AS (FROM memory.main.overrulings WHERE recorded_at < $moment),
rejudged_results AS ({projection.REJUDGED}),
results AS ({projection.RESULTS_REJUDGED}),
judged_results AS ({projection.JUDGED})
"""


def matrix_of(condition: str) -> str:
    """SQL for `compat_matrix` of the results `r` that hold a condition."""
    return f"WITH {_EVER.format(condition=condition)} FROM ({sql_of('compat_matrix')})"


def matrix_by_then() -> str:
    """SQL for `compat_matrix` as it stood before `$moment`, of these `$models` and families; of all if none."""
    return f"WITH {_BY_THEN} FROM ({sql_of('compat_matrix')})"
