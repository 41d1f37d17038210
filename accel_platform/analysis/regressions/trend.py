"""Trends of any metric and provenance: one series per cell, device, fingerprint and branch, with its shifts.

`changepoint_history.py` detects shifts of own latencies for alerts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import pairwise
from statistics import fmean, median, stdev
from typing import Annotated, Any, Literal, get_args
from uuid import UUID

from pydantic import Field

from accel_platform.analysis.query.filters import Selection, require_known, require_known_branch
from accel_platform.analysis.regressions.changepoint import ChangePoint, find_changes
from accel_platform.analysis.regressions.thresholds import MIN_CHANGE_PERCENT
from accel_platform.events.types import Measure, MeasuredSeries
from accel_platform.knowledge.cards import SOURCE_PREFIX
from accel_platform.warehouse.reader import Reader

Metric = Literal[
    "latency_ms", "throughput_items_per_s", "memory_peak_mib", "first_ms", "load_ms", "energy_j_per_item"
]  # fmt: skip
METRICS: tuple[Metric, ...] = get_args(Metric)
HIGHER_IS_BETTER = ("throughput_items_per_s",)
"""Metrics of which more is better; for all others less is better."""
IDENTITY = (*MeasuredSeries.model_fields, "image_size", "provenance")
_SERIES = (*IDENTITY, "branch")

_COLUMNS = {"latency_ms": "coalesce(r.latency_p50_ms, r.latency_mean_ms)"}
# Published figures of one cell differ by who measured, not by when.
_OWN = f"NOT starts_with(r.source, '{SOURCE_PREFIX}')"
_POINTS = f"""
SELECT {", ".join(f"r.{name}" for name in IDENTITY)}, r.device_name, r.result_id, r.run_id, r.occurred_at AS at,
    u."commit", u.labels->>'$.branch' AS branch, {{column}} AS value, r.latency_std_ms, r.samples, r.noisy
FROM judged_results AS r
LEFT JOIN runs AS u USING (run_id)
WHERE r.status = 'ok' AND r.verified IS NOT FALSE AND r.model_family <> 'microbenchmark' AND {{column}} IS NOT NULL
    AND {_OWN} AND {{condition}}
ORDER BY ALL
"""
# Compared by hash, because a hash treats NULLs as equal, as a series does.
_LONGEST = f"""
 AND hash({", ".join(f"r.{name}" for name in IDENTITY)}, u.labels->>'$.branch') IN (
    SELECT hash({", ".join(f"r.{name}" for name in IDENTITY)}, u.labels->>'$.branch')
    FROM judged_results AS r LEFT JOIN runs AS u USING (run_id)
    WHERE r.status = 'ok' AND {{column}} IS NOT NULL AND r.occurred_at IS NOT NULL AND {_OWN} AND {{condition}}
    GROUP BY 1 HAVING count(*) > 2 ORDER BY count(*) DESC, 1 LIMIT {{count}}
)
"""
_KNOWN = """
SELECT first_result, regression_id, state, direction, change_percent, accepted_by, accepted_reason, rejected_by,
    rejected_reason
FROM regressions
WHERE measure = ?
"""
_MEASURES: dict[str, Measure] = {"latency_ms": "latency", "memory_peak_mib": "memory"}
"""Metrics whose shifts are recorded."""


@dataclass(frozen=True)
class Point:
    """One result. `std` is the standard deviation of its own samples, None for metrics other than latency."""

    result_id: UUID
    run_id: str | None
    at: Annotated[datetime, Field(description="When the result was measured.")]
    commit: str | None
    value: Annotated[float, Field(description="Figure of the result, in the metric's unit.")]
    std: Annotated[
        float | None,
        Field(description="Standard deviation of its own samples, in ms; null where unknown, or not of latency."),
    ]
    samples: int | None
    noisy: bool


@dataclass(frozen=True)
class Shift:
    """A lasting change, found in the points (`p_value`), recorded as a regression, or both."""

    point: Annotated[Point, Field(description="First point at the new level.")]
    commit_before: Annotated[str | None, Field(description="Commit of the point before it; null where unknown.")]
    before: Annotated[
        float | None,
        Field(description="Median before the shift, in the metric's unit; null if it is only recorded."),
    ]
    after: Annotated[
        float | None,
        Field(description="Median after the shift, in the metric's unit; null if it is only recorded."),
    ]
    change_percent: Annotated[
        float | None, Field(description="Change of the median in percent; above zero is more; null where unknown.")
    ]
    worse: Annotated[
        bool | None,
        Field(description="Whether the change is for the worse: down for throughput, up for all other metrics."),
    ]
    p_value: float | None
    """None if it is only recorded."""
    regression_id: str | None
    state: Annotated[str | None, Field(description="open, accepted, rejected or gone; null if it is not recorded.")]
    accepted_by: str | None
    accepted_reason: str | None
    rejected_by: str | None
    rejected_reason: str | None


@dataclass(frozen=True)
class Trend:
    """One series, oldest point first. `undated` counts results without a time, which are no points."""

    series: dict[str, Any]
    """Values of `IDENTITY`, the branch of the commits (None without the label of a run) and the device's name."""
    metric: Metric
    points: tuple[Point, ...]
    shifts: tuple[Shift, ...]
    undated: int

    @property
    def median(self) -> float | None:
        return median(point.value for point in self.points) if self.points else None

    @property
    def spread_percent(self) -> float | None:
        """Coefficient of variation between the points since the last shift; None for fewer than two."""
        since = self.shifts[-1].point.result_id if self.shifts else None
        ids = [point.result_id for point in self.points]
        values = [point.value for point in self.points[ids.index(since) if since else 0 :]]
        return 100 * stdev(values) / fmean(values) if len(values) > 1 and fmean(values) else None

    def document(self) -> dict[str, Any]:
        """Return the whole series with its median and spread as a JSON-ready dict."""
        return {**asdict(self), "median": self.median, "spread_percent": self.spread_percent}


def trends(
    reader: Reader,
    selection: Selection,
    metric: Metric,
    *,
    branch: str | None = None,
    min_change_percent: float = MIN_CHANGE_PERCENT,
    longest: int | None = None,
) -> list[Trend]:
    """Return the selected series of a metric, of one branch or all; each is of one cell, provenance and fingerprint.

    Results with wrong outputs are left out. `longest` limits the answer to that many of the longest series of more than
    two results. Shifts smaller than `min_change_percent` are left out.

    Raises NotFound for an unknown name or branch, and WarehouseEmpty before the first publish.
    """
    require_known(reader, selection)
    condition, values = selection.where()
    if branch is not None:
        require_known_branch(reader, branch)
        condition, values = f"{condition} AND u.labels->>'$.branch' = $branch", {**values, "branch": branch}
    column = _COLUMNS.get(metric, f"r.{metric}")
    if longest is not None:
        condition += _LONGEST.format(column=column, condition=condition, count=longest)
    sql = _POINTS.format(column=column, condition=condition)
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in reader.rows(sql, values):
        groups.setdefault(tuple(row[name] for name in _SERIES), []).append(row)
    recorded = reader.rows(_KNOWN, (_MEASURES[metric],)) if metric in _MEASURES else []
    known = {row["first_result"]: row for row in recorded}
    return [_trend(rows, metric, known, min_change_percent) for rows in groups.values()]


def _trend(
    rows: Sequence[Mapping[str, Any]], metric: Metric, known: Mapping[UUID, Mapping[str, Any]], least: float
) -> Trend:
    dated = sorted((row for row in rows if row["at"] is not None), key=lambda row: (row["at"], row["result_id"]))
    points = tuple(
        Point(
            row["result_id"],
            row["run_id"],
            row["at"],
            row["commit"],
            row["value"],
            row["latency_std_ms"] if metric == "latency_ms" else None,
            row["samples"],
            bool(row["noisy"]),
        )
        for row in dated
    )
    changes = {change.index: change for change in find_changes([p.value for p in points], min_change_percent=least)}
    indexes = {index for index, point in enumerate(points) if point.result_id in known}
    return Trend(
        {name: rows[0][name] for name in (*_SERIES, "device_name")},
        metric,
        points,
        tuple(
            _shift(points, index, changes.get(index), known.get(points[index].result_id, {}), metric)
            for index in sorted({*changes, *indexes})
        ),
        len(rows) - len(dated),
    )


def _shift(
    points: Sequence[Point], index: int, change: ChangePoint | None, recorded: Mapping[str, Any], metric: Metric
) -> Shift:
    up = change.direction == "up" if change else recorded["direction"] == "regressed"
    return Shift(
        points[index],
        points[index - 1].commit if index else None,
        change.before if change else None,
        change.after if change else None,
        change.change_percent if change else recorded["change_percent"],
        up != (metric in HIGHER_IS_BETTER),
        change.p_value if change else None,
        recorded.get("regression_id"),
        recorded.get("state"),
        recorded.get("accepted_by"),
        recorded.get("accepted_reason"),
        recorded.get("rejected_by"),
        recorded.get("rejected_reason"),
    )


MAX_SERIES = 40
"""Largest number of series in `trend_rows`."""
MIN_POINTS = 3
"""Fewest points of a series in `trend_rows`."""


def trend_rows(reader: Reader, selection: Selection) -> list[dict[str, Any]]:
    """Return a row per latency point of the longest series: its level, and the shift that begins at it.

    `shift_percent` and `shift_p` are None where no shift begins.
    """
    found = trends(reader, selection, "latency_ms", longest=MAX_SERIES)
    return [
        row for number, trend in enumerate(found) if len(trend.points) >= MIN_POINTS for row in _rows(number, trend)
    ]


def _rows(number: int, trend: Trend) -> list[dict[str, Any]]:
    shifts = {shift.point.result_id: shift for shift in trend.shifts}
    starts = [0, *(i for i, p in enumerate(trend.points) if i and p.result_id in shifts), len(trend.points)]
    levels: list[float] = []
    for left, right in pairwise(starts):
        levels += [median(p.value for p in trend.points[left:right])] * (right - left)
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
