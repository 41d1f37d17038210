"""The longest series of latencies as rows, a point each: what a chart or page of trends is made of."""

from __future__ import annotations

from itertools import pairwise
from statistics import median
from typing import Any

from accel_platform.analysis.query.filters import Selection
from accel_platform.analysis.regressions.trend import Trend, trends
from accel_platform.warehouse.reader import Reader

LONGEST = 40
"""Series that are looked at."""
LEAST = 3
"""Points below which nothing is a trend."""


def over_time(reader: Reader, selection: Selection) -> list[dict[str, Any]]:
    """A row per point: the level it belongs to, and where a shift begins with it `shift_percent` and `shift_p`."""
    found = trends(reader, selection, "latency_ms", longest=LONGEST)
    return [row for number, trend in enumerate(found) if len(trend.points) >= LEAST for row in _rows(number, trend)]


def _rows(number: int, trend: Trend) -> list[dict[str, Any]]:
    shifts = {shift.point.result_id: shift for shift in trend.shifts}
    starts = [0, *(i for i, p in enumerate(trend.points) if i and p.result_id in shifts), len(trend.points)]
    levels = [
        median(p.value for p in trend.points[left:right])
        for left, right in pairwise(starts)
        for _ in range(right - left)
    ]
    rows = []
    for order, (point, level) in enumerate(zip(trend.points, levels, strict=True), 1):
        shift = shifts.get(point.result_id)
        rows.append(
            {
                **trend.series,
                "series": number,
                "order": order,
                "run_id": point.run_id,
                "commit": point.commit,
                "occurred_at": point.at,
                "samples": point.samples,
                "results": 1,
                "runs": 1,
                "noisy": point.noisy,
                "median_ms": point.value,
                "low_ms": None if point.std is None else point.value - point.std,
                "high_ms": None if point.std is None else point.value + point.std,
                "level_ms": level,
                "shift_percent": None if shift is None else shift.change_percent,
                "shift_p": None if shift is None else shift.p_value,
            }
        )
    return rows
