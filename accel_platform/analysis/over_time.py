"""The longest measured series as points in order of time, with the shifts that a watcher of each would have told."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from statistics import median
from typing import Any
from uuid import UUID

from accel_platform.analysis.measured import Measured, Process
from accel_platform.analysis.selection import Selection
from accel_platform.analysis.shifts import accepted_shifts, histories
from accel_platform.events.types import MeasuredSeries
from accel_platform.warehouse.query import Reader

LEAST = 3
"""Points below which nothing is a trend."""
MOST = 40
"""Series that are looked at, the longest first."""
_IDENTITY = tuple(MeasuredSeries.model_fields)
# Ids of measurements begin with their time.
_ROWS = f"""
WITH points AS (
    SELECT {", ".join(f"r.{name}" for name in _IDENTITY)}, r.result_id, r.run_id, r.threads, r.latency_p50_ms, r.noisy,
        r.device_name, r.occurred_at, r.samples, r.latency_std_ms, r.provenance,
        count(*) OVER (PARTITION BY {", ".join(f"r.{name}" for name in _IDENTITY)}) AS members
    FROM judged_results AS r
    WHERE r.provenance = 'measured' AND r.status = 'ok' AND r.verified AND r.latency_p50_ms IS NOT NULL
        AND r.precision IS NOT NULL AND r.batch_size IS NOT NULL AND {{condition}}
),
ranked AS (
    SELECT *, dense_rank() OVER (ORDER BY members DESC, {", ".join(_IDENTITY)}) AS series FROM points
    WHERE members >= {LEAST}
)
SELECT p.*, u."commit", (SELECT max(series) FROM ranked) AS series_there FROM ranked AS p
LEFT JOIN runs AS u USING (run_id)
WHERE p.series <= {MOST} ORDER BY p.series, p.result_id
"""


def over_time(reader: Reader, selection: Selection, *, min_change_percent: float = 3.0) -> list[dict[str, Any]]:
    """A row per process of the series that the selection leaves: its median, the level it belongs to, and where a shift
    begins with it `shift_percent` and `shift_p`. `series_there` is how many series have LEAST points."""
    condition, values = selection.where()
    found: dict[MeasuredSeries, list[dict[str, Any]]] = {}
    numbered: dict[int, MeasuredSeries] = {}
    for row in reader.rows(_ROWS.format(condition=condition), values):
        series = numbered.get(row["series"])
        if series is None:
            series = numbered[row["series"]] = MeasuredSeries(**{name: row[name] for name in _IDENTITY})
        found.setdefault(series, []).append(row)
    measured: Measured = {series: [_process(row) for row in rows] for series, rows in found.items()}
    told = histories(measured, accepted_shifts(reader), min_change_percent=min_change_percent)
    return [
        point
        for history in told
        for point in _points(found[history.series], {shift.first_result: shift for shift in history.shifts})
    ]


def _points(rows: list[dict[str, Any]], shifts: Mapping[UUID, Any]) -> list[dict[str, Any]]:
    starts = [0, *(i for i, row in enumerate(rows) if row["result_id"] in shifts and i), len(rows)]
    levels = [
        median(row["latency_p50_ms"] for row in rows[left:right])
        for left, right in pairwise(starts)
        for _ in range(right - left)
    ]
    points = []
    for order, (row, level) in enumerate(zip(rows, levels, strict=True), 1):
        deviation, shift = row["latency_std_ms"], shifts.get(row["result_id"])
        points.append(
            {
                **row,
                "order": order,
                "results": 1,
                "runs": 1,
                "median_ms": row["latency_p50_ms"],
                "low_ms": None if deviation is None else row["latency_p50_ms"] - deviation,
                "high_ms": None if deviation is None else row["latency_p50_ms"] + deviation,
                "level_ms": level,
                "shift_percent": None if shift is None else shift.change_percent,
                "shift_p": None if shift is None else shift.p_value,
            }
        )
    return points


def _process(row: Mapping[str, Any]) -> Process:
    return Process(
        result_id=row["result_id"],
        run_id=row["run_id"],
        commit=row["commit"],
        threads=row["threads"],
        median_ms=row["latency_p50_ms"],
        failure=None,
        verified=True,
        noisy=bool(row["noisy"]),
    )
