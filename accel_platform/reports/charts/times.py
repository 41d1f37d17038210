"""Charts over time and over samples: series with change points, and the scatter of a cell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from accel_platform.analysis.query.cells import SHAPE
from accel_platform.reports.charts.parts import (
    Row,
    Rows,
    color_encoding,
    combine_panels,
    describe_omitted,
    describe_shared,
    differing_fields,
    group_rows,
    label,
    panel_title,
    require,
    shape,
    tooltip_encoding,
)
from accel_platform.reports.charts.theme import GRAY, PALETTE
from accel_platform.table_io.values import count_of, rounded

_PANELS = 6
_PROCESSES = 12
_HEIGHT = 190
_TREND = ("hardware", "device_name", "branch", *SHAPE)
"""Fields that tell the series of a trend apart."""
_STEADY, _SHIFTED = PALETTE[0], PALETTE[1]


def trend(rows: Rows, about: Sequence[str]) -> alt.ConcatChart:
    """Return the median of each process in order of time, with levels and shifts marked by their commit.

    Rows are those of `trend_rows`. Raises NothingToDraw.
    """
    require(rows, "No cell has three dated results under one fingerprint.")
    ordered = sorted(rows, key=lambda row: (row["series"], row["order"]))
    series = sorted(group_rows(ordered, lambda row: row["series"]).values(), key=lambda s: (-len(_shifts(s)), -len(s)))
    chosen = series[:_PANELS]
    titled = differing_fields([points[0] for points in chosen], _TREND) or ["hardware"]
    parts = [_trend_panel(points, label(points[0], ("model_id", *titled))) for points in chosen]
    drawn = [row for points in chosen for row in points]
    return combine_panels(
        parts,
        "Trend",
        drawn,
        columns=2,
        common=describe_shared(drawn, _TREND),
        remarks=[
            "Rules: where the series shifted, by how much and at which commit. Dashed: the median of each level.",
            "Bars: one standard deviation of a run's samples to either side. No axis begins at 0.",
            describe_omitted(
                len(chosen),
                len(series),
                "series of three results or more (the longest 40)",
                "model, hardware or batch size",
            ),
            *about,
        ],
    )


def _trend_panel(points: Rows, title: str) -> alt.LayerChart:
    """Return the panel of one series; its marks are `_trend_mark`, its rules the shifts."""
    base = alt.Chart(alt.InlineData([_trend_mark(row) for row in points])).encode(
        x=alt.X("order:Q", title="run (in order of time)").axis(tickMinStep=1, format="d", grid=False).scale(nice=False)
    )
    latency = "median latency of a batch (ms)"
    bars = base.transform_filter("isValid(datum.low) && isValid(datum.high)").mark_rule(
        color=GRAY, opacity=0.7, aria=False
    )
    levels = base.mark_line(interpolate="step-after", color=GRAY, strokeDash=[3, 3], aria=False)
    dots = base.mark_point(filled=True, size=45, opacity=1, color=_STEADY)
    layers: list[Any] = [
        bars.encode(y=_axis("low", latency, alt.Y), y2=alt.Y2("high:Q")),
        levels.encode(y=_axis("level", latency, alt.Y)),
        dots.encode(y=_axis("value", latency, alt.Y), shape=shape(points), **tooltip_encoding()),
    ]
    shifts = _shifts(points)
    if shifts:
        at = alt.Chart(alt.InlineData(shifts)).encode(x=alt.X("order:Q"))
        texts = at.mark_text(align="left", dx=4, fontSize=10, color=_SHIFTED, aria=False)
        layers += [
            at.mark_rule(color=_SHIFTED, strokeWidth=2).encode(**tooltip_encoding()),
            texts.encode(text="text:N", y=alt.value(_HEIGHT - 8)),
        ]
    return alt.LayerChart(layer=layers, width=420, height=_HEIGHT, title=panel_title(title))


def _trend_mark(row: Row) -> dict[str, Any]:
    return {
        "order": row["order"],
        "value": row["median_ms"],
        "low": row["low_ms"],
        "high": row["high_ms"],
        "level": row["level_ms"],
        "state": "noisy" if row["noisy"] else "steady",
        "provenance": row["provenance"],
        "tip": f"{row['occurred_at']:%Y-%m-%d %H:%M} UTC, commit {(row['commit'] or 'not stated')[:12]}:"
        f" {rounded(row['median_ms'], 4)} ms; 1 run {row['run_id']}, {row['samples'] or 'unknown'} samples,"
        f" {row['provenance']}{', noisy' if row['noisy'] else ''}",
    }


def noise(rows: Rows, about: Sequence[str]) -> alt.ConcatChart:
    """Return every sample of the newest processes of a few cells, with median and quartiles.

    Rows are those of `analysis.summaries.scatter`. Raises NothingToDraw.
    """
    require(rows, "No result with raw samples.")
    newest_first = sorted(rows, key=lambda row: row["result_id"], reverse=True)
    cells = list(group_rows(sorted(newest_first, key=lambda row: row["cell"]), lambda row: row["cell"]).values())
    chosen = cells[:_PANELS]
    titled = differing_fields([members[0] for members in chosen], ("hardware", "device_name", *SHAPE))
    parts = [_noise_panel(members, label(members[0], ("model_id", *titled))) for members in chosen]
    drawn = [row for members in chosen for row in members[:_PROCESSES]]
    return combine_panels(
        parts,
        "Noise: how samples scatter",
        drawn,
        columns=2,
        common=describe_shared(drawn, ("hardware", "device_name", *SHAPE)),
        remarks=[
            "A line per process, newest first: samples as ticks (200 at most), middle half as bar, median as point.",
            describe_omitted(len(chosen), rows[0]["cells"], "cells", "model, hardware or batch size"),
            *about,
        ],
    )


def _noise_panel(members: Rows, title: str) -> alt.LayerChart:
    """Return the panel of one cell with a line per process, the newest first."""
    ticks, boxes = [], []
    for number, row in enumerate(members[:_PROCESSES], 1):
        name = f"{number}: {row['occurred_at']:%m-%d %H:%M}" if row["occurred_at"] else str(number)
        state = "noisy" if row["noisy"] else "steady"
        ticks += [{"name": name, "value": value, "line": state} for value in row["samples_ms"]]
        boxes.append(_noise_box(row, name, state))
    x = _axis("value", "latency of a batch (ms)", alt.X)
    y = alt.Y("name:N", title="process", sort=[box["name"] for box in boxes]).axis(grid=False, ticks=False)
    color = color_encoding(["steady", "noisy"])
    samples = alt.Chart(alt.InlineData(ticks)).mark_tick(thickness=1, opacity=0.45, aria=False)
    base = alt.Chart(alt.InlineData(boxes)).encode(y=y)
    bars = base.mark_rule(strokeWidth=5, opacity=0.55, aria=False)
    medians = base.mark_point(filled=True, size=70, opacity=1)
    layers = [
        samples.encode(x=x, y=y, color=color),
        bars.encode(x=alt.X("low:Q", title="latency of a batch (ms)"), x2=alt.X2("high:Q"), color=color),
        medians.encode(x=x, color=color, shape=shape(members), **tooltip_encoding()),
    ]
    return alt.LayerChart(layer=layers, width=380, height=alt.Step(26), title=panel_title(title))


def _noise_box(row: Row, name: str, state: str) -> dict[str, Any]:
    """Return median and quartiles of a process."""
    return {
        "name": name,
        "value": row["median_ms"],
        "low": row["q25_ms"],
        "high": row["q75_ms"],
        "tip": f"{label(row, ('model_id', 'hardware', 'device_name', *SHAPE))}:"
        f" median {rounded(row['median_ms'], 4)} ms, middle half"
        f" [{rounded(row['q25_ms'], 4)}, {rounded(row['q75_ms'], 4)}]; 1 run {row['run_id']},"
        f" {count_of(row['samples'], 'sample')}, {row['provenance']}, {state}",
        "line": state,
        "provenance": row["provenance"],
    }


def _axis(field: str, title: str, axis: type[Any]) -> Any:
    """Return an axis that does not start at 0, because small differences matter."""
    return axis(f"{field}:Q", title=title, scale=alt.Scale(zero=False, nice=True), axis=alt.Axis(tickCount=5))


def _shifts(points: Rows) -> list[dict[str, Any]]:
    return [
        {
            "order": row["order"],
            "text": f"{row['shift_percent']:+.0f} % {(row['commit'] or '')[:8]}".strip(),
            "tip": f"shift by {row['shift_percent']:+.1f} % at commit {(row['commit'] or 'not stated')[:12]},"
            + (f" p = {row['shift_p']:.1g}" if row["shift_p"] is not None else " as recorded"),
        }
        for row in points
        if row["shift_percent"] is not None
    ]
