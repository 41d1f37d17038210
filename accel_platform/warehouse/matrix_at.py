"""SQL of the compatibility matrix over a part of the evidence: filtered results, or results recorded by a moment.

It applies the rule of the table `compat_matrix` to the same views over fewer rows.
"""

from __future__ import annotations

from accel_platform.warehouse import layers
from accel_platform.warehouse.build_layer import table_sql

_EVER = "judged_results AS (SELECT r.* FROM memory.main.judged_results AS r WHERE {condition})"
# Results, verifications and suspicions are limited to those recorded by each moment, so the views judge as they did
# then. A lateral join serves all moments, because DuckDB then reads each table once.
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
_OUTPUT = ", ".join(layers.OUTPUT)
_BY_THEN = f"""
verdicts AS (
    SELECT {_OUTPUT}, bool_and(passed) AS passed FROM dated_verifications WHERE recorded_at < m.moment
    GROUP BY {_OUTPUT}
),
result_rows AS (
    SELECT r.* REPLACE (v.passed AS verified)
    FROM memory.main.result_rows AS r
    LEFT JOIN verdicts AS v ON {layers.SAME_OUTPUT}
    WHERE recorded_at < m.moment
        AND (len($models) = 0 OR list_contains($models, r.model_id) OR list_contains($models, r.model_family))
),
late_verdicts AS (FROM memory.main.late_verdicts WHERE false), -- which the verdicts include
suspicions AS (FROM dated_suspicions WHERE recorded_at < m.moment),
suspicion_overrides AS (FROM memory.main.suspicion_overrides WHERE recorded_at < m.moment),
rejudged_results AS ({layers.REJUDGED}),
results AS ({layers.RESULTS_REJUDGED}),
judged_results AS ({layers.JUDGED})
"""


def filtered_matrix_sql(condition: str) -> str:
    """Return SQL for `compat_matrix` over the results `r` that meet a condition."""
    return f"WITH {_EVER.format(condition=condition)} FROM ({table_sql('compat_matrix')})"


def matrix_history_sql() -> str:
    """Return SQL for `compat_matrix` as it stood before each of `$moments`, with `moment` as the first column.

    `$models` are model ids and families; an empty list means all.
    """
    cells = f"WITH {_BY_THEN} FROM ({table_sql('compat_matrix')})"
    return f"WITH {_DATED} SELECT m.moment, c.* FROM (SELECT unnest($moments) AS moment) AS m, LATERAL ({cells}) AS c"
