"""Charts of tables of predictions: a heat map, curves over batch sizes, hardware side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from accel_platform.reports.charts.theme import PALETTE, SHAPES
from accel_platform.table_io.values import rounded
from predictor.schemas.responses import INTERVAL_LEVEL

Rows = Sequence[dict[str, Any]]
_PROVENANCE = ("measured", "scaled", "predicted")
_LIMITS = f"limits: {INTERVAL_LEVEL:.0%} intervals where a cell has them"


def heat_map_chart(rows: Rows, *, title: str) -> alt.LayerChart:
    """Chart milliseconds per item, models by hardware, at one batch size; a cell without an answer is empty."""
    values = [
        {
            **row,
            "place": row["asked"],
            "ms_per_item": None if row["latency_ms"] is None else row["latency_ms"] / row["batch_size"],
            "text": "-" if row["latency_ms"] is None else rounded(row["latency_ms"] / row["batch_size"]),
            "how": row["provenance"] or "nothing known",
        }
        for row in rows
    ]
    answered = [value["ms_per_item"] for value in values if value["ms_per_item"] is not None]
    middle = (min(answered) * max(answered)) ** 0.5 if answered else 1.0
    base = alt.Chart({"values": values}).encode(
        x=alt.X("place:N", title=None, sort=None).axis(labelAngle=-30, orient="top", labelLimit=220),
        y=alt.Y("model:N", title=None, sort=None).axis(labelLimit=260),
    )
    cells = base.mark_rect(stroke="white").encode(
        color=alt.condition(
            "isValid(datum.ms_per_item)",
            alt.Color("ms_per_item:Q", title="ms per item")
            .scale(type="log", scheme="viridis", reverse=True)
            .legend(format=".3~r"),
            alt.value("#eeeeee"),
        ),
        tooltip=[
            "model:N", "hardware:N", "device:N", "batch_size:Q", "sequence_length:Q", "how:N",
            alt.Tooltip("latency_ms:Q", format=".4g"), alt.Tooltip("latency_low_ms:Q", format=".4g"),
            alt.Tooltip("latency_high_ms:Q", format=".4g"), alt.Tooltip("items_per_s:Q", format=".4g"), "problem:N",
        ],
    )  # fmt: skip
    dark = f"isValid(datum.ms_per_item) && datum.ms_per_item > {middle}"
    text = base.mark_text(fontSize=12).encode(
        text="text:N", color=alt.condition(dark, alt.value("white"), alt.value("black"))
    )
    basis_text = base.mark_text(fontSize=9, dy=13).encode(
        text="how:N", color=alt.condition(dark, alt.value("white"), alt.value("#333"))
    )
    sizes = {"width": alt.Step(110), "height": alt.Step(44)}
    chart: alt.LayerChart = (cells + text + basis_text).properties(title=title, **sizes)
    return chart


def batch_size_chart(rows: Rows, *, title: str) -> alt.HConcatChart:
    """Chart latency and throughput of each model over batch sizes, one line per hardware, the limits as bands."""
    answered = [row for row in rows if row["latency_ms"] is not None]
    values = _with_legend(answered)
    panels = [
        _curve(values, "latency_ms", "latency_low_ms", "latency_high_ms", "milliseconds a batch"),
        _curve(values, "items_per_s", "items_per_s_low", "items_per_s_high", "items per second"),
    ]
    chart: alt.HConcatChart = alt.hconcat(*panels).properties(title=alt.Title(title, subtitle=_LIMITS))
    return chart


def comparison_chart(rows: Rows, *, title: str) -> alt.VConcatChart:
    """Chart latency and throughput of hardware side by side at one batch size, with their limits, the best first."""
    answered = sorted((row for row in rows if row["latency_ms"] is not None), key=lambda row: float(row["latency_ms"]))
    values = _with_legend(answered)
    panels = [
        _side_by_side(values, "latency_ms", "latency_low_ms", "latency_high_ms", "milliseconds a batch"),
        _side_by_side(values, "items_per_s", "items_per_s_low", "items_per_s_high", "items per second"),
    ]
    chart: alt.VConcatChart = alt.vconcat(*panels).properties(title=alt.Title(title, subtitle=_LIMITS))
    return chart


def _with_legend(rows: Rows) -> list[dict[str, Any]]:
    """Return the rows with their `line` in a legend: the hardware, and the model where there are several."""
    several = len({row["model"] for row in rows}) > 1
    return [{**row, "line": f"{row['model']}, {row['asked']}" if several else row["asked"]} for row in rows]


def _curve(values: Rows, field: str, low: str, high: str, unit: str) -> alt.LayerChart:
    base = alt.Chart({"values": values}).encode(
        x=alt.X("batch_size:Q", title="batch size").scale(type="log", base=2).axis(format="d"),
        color=alt.Color("line:N", title=None, sort=None).legend(
            orient="bottom", columns=2, labelLimit=400, symbolOpacity=1
        ),
    )
    y = alt.Y(f"{field}:Q", title=unit).scale(type="log")
    band = base.mark_area(opacity=0.15).encode(y=alt.Y(f"{low}:Q", title=unit), y2=f"{high}:Q")
    line = base.mark_line().encode(y=y)
    points = base.mark_point(filled=True, size=60, opacity=1).encode(y=y, shape=_shape())
    chart: alt.LayerChart = (band + line + points).properties(width=320, height=260)
    return chart


def _side_by_side(values: Rows, field: str, low: str, high: str, unit: str) -> alt.LayerChart:
    base = alt.Chart({"values": values}).encode(
        y=alt.Y("line:N", title=None, sort=[row["line"] for row in values]).axis(labelLimit=320, grid=True)
    )
    x = alt.X(f"{field}:Q", title=unit).scale(type="log")
    limits = base.mark_rule(strokeWidth=2, color="#888").encode(x=alt.X(f"{low}:Q", title=unit), x2=f"{high}:Q")
    points = base.mark_point(filled=True, size=90, opacity=1).encode(
        x=x,
        shape=_shape(),
        color=alt.Color("provenance:N", title=None).scale(domain=list(_PROVENANCE), range=list(PALETTE)),
    )
    figures = base.mark_text(dy=-11, fontSize=10).encode(x=x, text=alt.Text(f"{field}:Q", format=".3~r"))
    chart: alt.LayerChart = (limits + points + figures).properties(width=460, height=alt.Step(34))
    return chart


def _shape() -> alt.Shape:
    return alt.Shape("provenance:N", title=None).scale(
        domain=list(_PROVENANCE), range=[SHAPES[name] for name in _PROVENANCE]
    )
