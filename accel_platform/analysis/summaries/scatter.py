"""Raw samples of the newest processes of the cells with most processes, to show noise."""

from __future__ import annotations

from typing import Any

from accel_platform.analysis.query.cells import CELL
from accel_platform.analysis.query.filters import Selection
from accel_platform.warehouse.reader import Reader

MAX_CELLS = 6
MAX_PROCESSES_PER_CELL = 12
MAX_SAMPLES = 200
"""Largest number of samples per process, evenly spaced in order of time."""

_IDENTITY = tuple(name for name in CELL if name not in ("setup", "threads"))
"""Fields of a cell, without those that only imports have."""
_COLUMNS = ", ".join(f"r.{name}" for name in _IDENTITY)
_WHICH = """r.status = 'ok' AND r.latency_p50_ms IS NOT NULL AND r.provenance IN ('measured', 'emulated')
    AND r.verified IS DISTINCT FROM false AND {condition}"""
# Compared by hash, because a hash treats NULLs as equal, as a cell does. The greatest ids are the newest, because ids
# of measurements begin with their time.
_ROWS = f"""
WITH counted AS (
    SELECT hash({_COLUMNS}) AS cell, count(*) AS members, sum(r.samples) AS total FROM judged_results AS r
    WHERE {_WHICH} GROUP BY 1
),
best AS (
    SELECT cell, (SELECT count(*) FROM counted) AS cells FROM counted
    ORDER BY least(members, {MAX_PROCESSES_PER_CELL}) DESC, total DESC, cell LIMIT {MAX_CELLS}
),
kept AS (
    SELECT {_COLUMNS}, r.device_name, r.noisy, r.run_id, r.result_id, r.occurred_at, r.samples,
        r.latency_p50_ms AS median_ms, b.cell, b.cells
    FROM judged_results AS r JOIN best AS b ON b.cell = hash({_COLUMNS})
    WHERE {_WHICH}
    QUALIFY row_number() OVER (PARTITION BY b.cell ORDER BY r.result_id DESC) <= {MAX_PROCESSES_PER_CELL}
)
SELECT k.*, list_transform(e.samples_ns, lambda ns: ns / 1e6) AS samples_ms FROM kept AS k
JOIN events AS e ON e.event_id = k.result_id
WHERE e.samples_ns IS NOT NULL
ORDER BY k.cell, k.result_id DESC
"""


def read_scatter(reader: Reader, selection: Selection) -> list[dict[str, Any]]:
    """Return a row per process: its samples in milliseconds, their median and quartiles.

    `cells` is the number of cells that qualified. Only own measurements have samples.
    """
    condition, values = selection.where()
    rows = reader.rows(_ROWS.format(condition=condition), values)
    for row in rows:
        ordered = sorted(row["samples_ms"])
        row["q25_ms"], row["q75_ms"] = ordered[len(ordered) // 4], ordered[(3 * len(ordered)) // 4]
        row["samples_ms"] = row["samples_ms"][:: max(1, -(-len(ordered) // MAX_SAMPLES))]
        row["results"] = row["runs"] = 1
    return rows
