"""Every measured series as points in order of time, with the shifts that a watcher of it would have told."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from statistics import median
from typing import Any
from uuid import UUID

from accel_platform.analysis.measured import read_measured
from accel_platform.analysis.selection import Selection
from accel_platform.analysis.shifts import accepted_shifts, histories
from accel_platform.warehouse.query import Reader

LEAST = 3
"""Points below which nothing is a trend."""
_DETAILS = """
SELECT r.result_id, r.device_name, r.occurred_at, r.samples, r.latency_std_ms, r.provenance FROM results AS r
WHERE r.status = 'ok' AND r.provenance = 'measured' AND {condition}
"""


def over_time(reader: Reader, selection: Selection, *, min_change_percent: float = 3.0) -> list[dict[str, Any]]:
    """A row per process of the series that the selection leaves: its median, the level it belongs to, and where a shift
    begins with it `shift_percent` and `shift_p`. Series of fewer than LEAST points are left out."""
    condition, values = selection.where()
    details = {row["result_id"]: row for row in reader.rows(_DETAILS.format(condition=condition), values)}
    measured = {
        series: [process for process in processes if process.result_id in details]
        for series, processes in read_measured(reader).items()
    }
    rows: list[dict[str, Any]] = []
    for number, history in enumerate(histories(measured, accepted_shifts(reader), min_change_percent=min_change_percent)):
        points = [p for p in measured[history.series] if p.verified and p.median_ms is not None]
        if len(points) < LEAST:
            continue
        shifts: Mapping[UUID, Any] = {shift.first_result: shift for shift in history.shifts}
        starts = [0, *(i for i, p in enumerate(points) if p.result_id in shifts and i), len(points)]
        levels = [median(p.median_ms or 0.0 for p in points[a:b]) for a, b in pairwise(starts) for _ in range(b - a)]
        for order, (point, level) in enumerate(zip(points, levels, strict=True), 1):
            about = details[point.result_id]
            deviation, shift = about["latency_std_ms"], shifts.get(point.result_id)
            assert point.median_ms is not None
            rows.append(
                {
                    **history.series.model_dump(),
                    "series": number,
                    "order": order,
                    "result_id": point.result_id,
                    "run_id": point.run_id,
                    "commit": point.commit,
                    "device_name": about["device_name"],
                    "occurred_at": about["occurred_at"],
                    "provenance": about["provenance"],
                    "samples": about["samples"],
                    "results": 1,
                    "runs": 1,
                    "noisy": point.noisy,
                    "median_ms": point.median_ms,
                    "low_ms": None if deviation is None else point.median_ms - deviation,
                    "high_ms": None if deviation is None else point.median_ms + deviation,
                    "level_ms": level,
                    "shift_percent": None if shift is None else shift.change_percent,
                    "shift_p": None if shift is None else shift.p_value,
                }
            )
    return rows
