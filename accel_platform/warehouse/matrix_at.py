"""The compatibility matrix of a part of the evidence: of what a filter leaves, or of what was recorded by then.

By the rule of the table `compat_matrix`, over the same views: only what they are taken over is less.
"""

from __future__ import annotations

from accel_platform.warehouse import layers
from accel_platform.warehouse.build_layer import table_sql

_EVER = "judged_results AS (SELECT r.* FROM memory.main.judged_results AS r WHERE {condition})"
# Every judgement of the views is made again from what the log held by then: a result, its verification, a suspicion.
# DuckDB takes the moments of a lateral join together: all tables are read once, however many moments there are.
_DATED = """
dated_verifications AS MATERIALIZED (
    SELECT v.*, e.recorded_at FROM verifications AS v JOIN events AS e USING (event_id)
    WHERE len($models) = 0 OR v.model_id IN (
        SELECT model_id FROM result_rows WHERE list_contains($models, model_id) OR list_contains($models, model_family)
    )
),
dated_suspicions AS MATERIALIZED (
    SELECT s.*, e.recorded_at FROM suspicions AS s JOIN events AS e USING (event_id)
)
"""
_BY_THEN = f"""
result_rows AS (
    SELECT * FROM memory.main.result_rows
    WHERE recorded_at < m.moment
        AND (len($models) = 0 OR list_contains($models, model_id) OR list_contains($models, model_family))
),
verifications AS (FROM dated_verifications WHERE recorded_at < m.moment),
suspicions AS (FROM dated_suspicions WHERE recorded_at < m.moment),
suspicion_overrides AS (FROM memory.main.suspicion_overrides WHERE recorded_at < m.moment),
rejudged_results AS ({layers.REJUDGED}),
results AS ({layers.RESULTS_REJUDGED}),
judged_results AS ({layers.JUDGED})
"""


def filtered_matrix_sql(condition: str) -> str:
    """SQL for `compat_matrix` of the results `r` that hold a condition."""
    return f"WITH {_EVER.format(condition=condition)} FROM ({table_sql('compat_matrix')})"


def matrix_history_sql() -> str:
    """SQL for `compat_matrix` as it stood before each of `$moments`, a column `moment` first, of these `$models` and
    families; of all if none."""
    cells = f"WITH {_BY_THEN} FROM ({table_sql('compat_matrix')})"
    return f"WITH {_DATED} SELECT m.moment, c.* FROM (SELECT unnest($moments) AS moment) AS m, LATERAL ({cells}) AS c"
