"""What came between two snapshots: results, medians that moved, cells of the matrix that changed. Nothing is judged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import duckdb

from accel_platform.events.types import MeasuredSeries
from accel_platform.warehouse.reader import Reader

MIN_CHANGE_PERCENT = 1.0
"""A median moves a little with every result."""

_CELL = tuple(MeasuredSeries.model_fields)
_MATRIX_CELL = ("model_id", "hardware", "device_id", "mode")

_RESULTS = "SELECT result_id::VARCHAR AS result_id, model_id, hardware, provenance FROM results"
# The matrix takes the mean, too, where a document states no median.
_MEDIANS = f"""
SELECT {", ".join(_CELL)}, quantile_cont(coalesce(latency_p50_ms, latency_mean_ms), 0.5) AS latency_ms,
    count(*) AS results
FROM usable_results
WHERE coalesce(latency_p50_ms, latency_mean_ms) IS NOT NULL
GROUP BY {", ".join(_CELL)}
"""
_MATRIX = f"SELECT {', '.join(_MATRIX_CELL)}, device_name, state, rating FROM compat_matrix"

_COUNTED = """
SELECT coalesce(a.model_id, b.model_id) AS model_id, coalesce(a.hardware, b.hardware) AS hardware,
    coalesce(a.provenance, b.provenance) AS provenance,
    count(*) FILTER (WHERE b.result_id IS NULL) AS added, count(*) FILTER (WHERE a.result_id IS NULL) AS removed
FROM results_after AS a
FULL JOIN results_before AS b ON a.result_id = b.result_id AND a.provenance = b.provenance
WHERE a.result_id IS NULL OR b.result_id IS NULL
GROUP BY ALL
ORDER BY added DESC, removed DESC, model_id, hardware, provenance
"""
_MOVED = f"""
SELECT {", ".join(f"a.{name}" for name in _CELL)}, b.latency_ms AS before_ms, a.latency_ms AS after_ms,
    100 * (a.latency_ms / b.latency_ms - 1) AS change_percent, b.results AS results_before, a.results AS results_after
FROM medians_after AS a
JOIN medians_before AS b ON {" AND ".join(f"a.{name} IS NOT DISTINCT FROM b.{name}" for name in _CELL)}
WHERE b.latency_ms > 0 AND abs(change_percent) >= $least
ORDER BY abs(change_percent) DESC, {", ".join(f"a.{name}" for name in _CELL)}
"""
_CHANGED = f"""
SELECT {", ".join(f"coalesce(a.{name}, b.{name}) AS {name}" for name in _MATRIX_CELL)},
    coalesce(a.device_name, b.device_name) AS device_name, b.state AS state_before, a.state AS state_after,
    b.rating AS rating_before, a.rating AS rating_after
FROM matrix_after AS a
FULL JOIN matrix_before AS b ON {" AND ".join(f"a.{name} IS NOT DISTINCT FROM b.{name}" for name in _MATRIX_CELL)}
WHERE a.state IS DISTINCT FROM b.state OR a.rating IS DISTINCT FROM b.rating
ORDER BY ALL
"""


@dataclass(frozen=True)
class Difference:
    """Rows as the tables name their columns. `removed` are results that are no longer there or now of another
    provenance, where they count as `added`."""

    before: str
    after: str
    results: list[dict[str, Any]]
    medians: list[dict[str, Any]]
    matrix: list[dict[str, Any]]

    @property
    def added(self) -> int:
        return sum(row["added"] for row in self.results)

    @property
    def removed(self) -> int:
        return sum(row["removed"] for row in self.results)


def difference(before: Reader, after: Reader, *, min_change_percent: float = MIN_CHANGE_PERCENT) -> Difference:
    """What is in the tables of `after` and not in those of `before`, and the other way round.

    A cell's median is that of all its usable results, under one fingerprint; it counts as moved from
    `min_change_percent` on. Raises WarehouseEmpty.
    """
    with duckdb.connect(":memory:") as con:
        for name, sql in (("results", _RESULTS), ("medians", _MEDIANS), ("matrix", _MATRIX)):
            con.register(f"{name}_before", before.arrow(sql))
            con.register(f"{name}_after", after.arrow(sql))
        return Difference(
            before.snapshot_id,
            after.snapshot_id,
            _rows(con, _COUNTED),
            _rows(con, _MOVED, {"least": min_change_percent}),
            _rows(con, _CHANGED),
        )


def _rows(con: duckdb.DuckDBPyConnection, sql: str, parameters: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    cursor = con.execute(sql, parameters)
    names = [column[0] for column in cursor.description or ()]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
