"""Heat map, roofline and predicted-against-measured charts."""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Sequence
from typing import Any

import altair as alt

from accel_platform.analysis.query.cells import SHAPE
from accel_platform.analysis.summaries.roofline import roof_corners
from accel_platform.reports.charts.parts import (
    LINES,
    PLACE,
    Row,
    Rows,
    color_encoding,
    combine_panels,
    count_measured,
    describe_omitted,
    describe_shared,
    differing_fields,
    figure_with_spread,
    group_rows,
    grouping_key,
    in_fixed_order,
    label,
    mark_row,
    panel_title,
    quantity_axis,
    require,
    shape,
    subtitle,
    tooltip_encoding,
)
from accel_platform.reports.charts.theme import GRAY
from accel_platform.table_io.values import count_of, rounded

_COLUMN = (*PLACE, "provenance")
"""Fields of a cell that make a column of the heat map."""
_ROWS = 24
_COLUMNS = 12
_SCATTER_PANELS = 6
_POINTS = 800
"""Largest number of marks in a chart, because more are unreadable and make pages heavy."""


def heat_map(cells: Rows, about: Sequence[str]) -> alt.ConcatChart:
    """Return a heat map of architectures by hardware, in milliseconds per item.

    Each family is shown by one model at one shape, the one that most devices ran. Own measurements come before
    published figures. The color compares a cell with the best shown in its row. Raises NothingToDraw.
    """
    known = [c for c in in_fixed_order(cells) if c["latency_ms"] and c["batch_size"]]
    require(known, "No cell with a latency and a batch size.")
    panels = _one_panel_per_family(known)
    columns = group_rows([cell for panel in panels for cell in panel], _column_key)
    selected = sorted(columns.values(), key=lambda column: (not count_measured(column), -len(column)))[:_COLUMNS]
    shown = _select_rows(panels, {_column_key(column[0]) for column in selected})
    drawn = [cell for panel in shown for cell in panel]
    chart = _draw_tiles(_tiles(shown, _column_fields(drawn, selected))).properties(
        width=alt.Step(62), height=alt.Step(36), title=panel_title("family: model, in milliseconds per item")
    )
    return combine_panels(
        [chart],
        "Architectures by hardware",
        drawn,
        columns=1,
        common=describe_shared(drawn, (*_COLUMN, *SHAPE)),
        remarks=[
            "One model and shape for each family, the one that most places ran; nothing is averaged. Empty: not run.",
            describe_omitted(len(shown), len(panels), "families", "model"),
            describe_omitted(len(selected), len(columns), "places", "hardware or device"),
            *about,
        ],
    )


def _column_key(cell: Row) -> Hashable:
    return grouping_key(cell, _COLUMN)


def _one_panel_per_family(cells: Rows) -> list[list[Row]]:
    """Return for each family the cells of the model and shape that most devices ran, the most cells first."""
    panels = group_rows(cells, lambda cell: (cell["model_family"], *grouping_key(cell, ("model_id", *SHAPE))))
    ordered = sorted(
        panels.values(),
        key=lambda p: (-count_measured(p), -len(p), p[0]["batch_size"], str(p[0]["model_id"])),
    )
    best: dict[str, list[Row]] = {}
    for panel in ordered:
        best.setdefault(panel[0]["model_family"], panel)
    return list(best.values())


def _select_rows(panels: Sequence[Rows], columns: Collection[Hashable]) -> list[list[Row]]:
    """Return the families with most cells in these columns, by name, without their other cells."""
    filled = [[cell for cell in panel if _column_key(cell) in columns] for panel in panels]
    filled.sort(key=lambda panel: (-count_measured(panel), -len(panel)))
    return sorted((panel for panel in filled[:_ROWS] if panel), key=lambda panel: str(panel[0]["model_family"]))


def _column_fields(drawn: Rows, columns: Sequence[Rows]) -> Sequence[str]:
    """Return the fields that name a column: those of the place, with the provenance only if two would be named alike.

    Each tile shows its provenance.
    """
    names = differing_fields(drawn, PLACE) or ["hardware"]
    alike = len({label(column[0], names) for column in columns}) < len(columns)
    return differing_fields(drawn, _COLUMN) if alike else names


def _tiles(panels: Sequence[Rows], column_fields: Sequence[str]) -> list[dict[str, Any]]:
    """Return the marks of the heat map; `share` is a cell's speed beside the best of its row."""
    titled = differing_fields([panel[0] for panel in panels], SHAPE)
    marks = []
    for panel in panels:
        fastest = min(cell["latency_ms"] for cell in panel)
        family = panel[0]["model_family"]
        name = f"{family}: {label(panel[0], ('model_id', *titled))}"
        for cell in panel:
            each = cell["latency_ms"] / cell["batch_size"]
            figure = {**figure_with_spread(cell, "latency"), "value": each, "low": None, "high": None}
            mark = mark_row(
                cell,
                figure,
                "ms per item",
                family=name,
                column=label(cell, column_fields),
                share=fastest / cell["latency_ms"],
                text=rounded(each),
                from_=cell["provenance"],
            )
            marks.append(mark)
    return marks


def _draw_tiles(marks: Sequence[Row]) -> alt.LayerChart:
    """Return tiles by speed, each with its figure and provenance in ink that stands out."""
    base = alt.Chart(alt.InlineData(marks)).encode(
        x=alt.X("column:N", title="hardware").axis(labelAngle=-35, orient="top", labelLimit=420),
        y=alt.Y("family:N", title=None).axis(labelLimit=380),
    )
    slowest = min(mark["share"] for mark in marks)
    scale = alt.Scale(type="log", domain=[slowest / 1.01, 1], scheme="viridis")
    legend = alt.Legend(format=".0%", orient="bottom", direction="horizontal", titleLimit=0)
    tiles = base.mark_rect(stroke=GRAY, strokeWidth=0.5).encode(
        color=alt.Color("share:Q", title="speed beside the best shown in the row", scale=scale, legend=legend),
        **tooltip_encoding(),
    )
    ink = alt.condition(f"datum.share > {math.sqrt(slowest)}", alt.value("#101418"), alt.value("#ffffff"))
    figure = base.mark_text(fontSize=11, dy=-4, aria=False).encode(text="text:N", color=ink)
    provenance = base.mark_text(fontSize=9, dy=9, aria=False).encode(text="from_:N", color=ink)
    return alt.LayerChart(layer=[tiles, figure, provenance])


def roofline(rows: Rows, about: Sequence[str]) -> alt.ConcatChart:
    """Return achieved rate against arithmetic intensity, under the roofline of each device.

    Rows are those of `analysis.summaries.roofline.Rooflines.rows`. Raises NothingToDraw.
    """
    known = [row for row in in_fixed_order(rows) if row["achieved_flops_per_s"]]
    reasons = sorted({row["unavailable"] for row in rows if row["unavailable"]})
    require(
        known,
        f"No cell can be placed under a roofline. {reasons[0][:1].upper() + reasons[0][1:] + '.' if reasons else ''}",
    )
    places = group_rows(known, lambda row: (*grouping_key(row, PLACE), row["precision"]))
    chosen = sorted(places.values(), key=lambda p: (p[0]["peak_flops_per_s"] is None, -len(p)))[:LINES]
    drawn = [row for place in chosen for row in place]
    chosen.sort(key=len, reverse=True)  # draw the few above the many
    thinned = [row for place in chosen for row in place[:: max(1, len(drawn) // _POINTS)]]
    without, lost = [row for row in thinned if row["peak_flops_per_s"] is None], len(rows) - len(known)
    return combine_panels(
        [_roofline_panel(thinned, [place[0] for place in chosen], drawn)],
        "Roofline",
        drawn,
        columns=1,
        common=describe_shared(drawn, (*PLACE, "precision", "mode")),
        remarks=[
            "Roof: FLOPs at the peak rate, or bytes (weights once, activations written) at full bandwidth.",
            f"Without a roof: {count_of(len(without), 'point')}, {without[0]['unavailable']}." if without else "",
            f"Without a place: {count_of(lost, 'cell')}, {reasons[0]}." if lost else "",
            describe_omitted(len(chosen), len(places), "places", "hardware, device or precision"),
            *about,
        ],
    )


def _roofline_panel(rows: Rows, roofed: Rows, drawn: Rows) -> alt.LayerChart:
    """Return a point per row and the roof of each row in `roofed`; labels and shapes are those of all `drawn` rows."""
    apart = differing_fields(drawn, (*PLACE, "precision")) or ["hardware"]
    points = [_roofline_point(row, label(row, apart)) for row in rows]
    least = min(point["intensity"] for point in points) / 2
    most = max(point["intensity"] for point in points) * 4
    roofs = [corner for row in roofed for corner in _roof(row, label(row, apart), least, most)]
    values = [mark["value"] for mark in (*points, *roofs)]
    y = quantity_axis("value", "achieved rate (GFLOP/s)", values, alt.Y, zero=False)
    x = quantity_axis("intensity", "arithmetic intensity (FLOP/byte)", [least, most], alt.X, zero=False)
    tone = color_encoding(sorted({label(row, apart) for row in drawn}))
    layers: list[alt.Chart] = []
    if roofs:
        dashes = alt.StrokeDash("roof:N", title="roof", legend=alt.Legend(orient="bottom")).scale(
            domain=["peak and bandwidth", "peak alone"], range=[[1, 0], [5, 4]]
        )
        lines = alt.Chart(alt.InlineData(roofs)).mark_line(strokeWidth=2, description="roof")
        layers.append(lines.encode(x=x, y=y, color=tone, order="intensity:Q", detail="line:N", strokeDash=dashes))
    size = 55 if len(points) < 200 else 24
    dots = alt.Chart(alt.InlineData(points)).mark_point(filled=True, size=size, opacity=0.85)
    layers.append(dots.encode(x=x, y=y, color=tone, shape=shape(drawn), **tooltip_encoding()))
    return alt.LayerChart(layer=layers, width=620, height=380)


def _roofline_point(row: Row, line: str) -> dict[str, Any]:
    share = "" if row["share"] is None else f", {row['share']:.0%} of the roof, bound by {row['bound'] or 'unknown'}"
    figure = {"value": row["achieved_flops_per_s"] / 1e9, "low": None, "high": None, "spread": "from the median"}
    return mark_row(row, figure, f"GFLOP/s{share}", intensity=row["intensity_flops_per_byte"], line=line)


def _roof(row: Row, name: str, least: float, most: float) -> list[dict[str, Any]]:
    peak, bandwidth = row["peak_flops_per_s"], row["bandwidth_bytes_per_s"]
    if peak is None:
        return []
    kind = "peak alone" if bandwidth is None else "peak and bandwidth"
    return [
        {"intensity": intensity, "value": rate / 1e9, "line": name, "roof": kind}
        for intensity, rate in roof_corners(peak, bandwidth, least, most)
    ]


def predicted(rows: Rows, about: Sequence[str]) -> alt.ConcatChart:
    """Return predicted against measured latency of held-out cells, with a panel per regime.

    Rows have `lacking`, `model_id`, `hardware`, `device_name`, shape, `predicted_ms` and `measured_ms`. Raises
    NothingToDraw.
    """
    require(rows, "Nothing was held out of a predictor: `accel train` needs more measured cells.")
    rows = in_fixed_order(rows, "measured_ms")
    every = group_rows(rows, lambda row: (row["mode"], row["lacking"]))
    panels = dict(sorted(every.items(), key=lambda item: -len(item[1]))[:_SCATTER_PANELS])
    devices = sorted(group_rows(rows, lambda row: row["device_name"]).items(), key=lambda item: -len(item[1]))[:LINES]
    names = sorted(str(name) for name, _ in devices)
    selected = [row for row in rows if row["device_name"] in names]
    parts = []
    for (mode, lacking), all_of in panels.items():
        there = [row for row in all_of if row["device_name"] in names]
        if there:
            step = max(1, len(there) * len(panels) // _POINTS)
            panel = _predicted_panel(there[::step], names)
            title = (
                f"{mode}, lacking {lacking}, {count_of(len(all_of), 'cell')}, median error {_median_error(all_of):.0%}"
            )
            parts.append(panel.properties(width=300, height=280, title=panel_title(title)))
    remarks = [
        f"{count_of(len(selected), 'cell')}, each held out of learning with what it is taken to lack.",
        "On the line the two agree.",
        f"At most {_POINTS:,} evenly chosen cells are drawn." if len(selected) > _POINTS else "",
        describe_omitted(len(panels), len(every), "panels", "mode"),
        describe_omitted(len(names), len({row["device_name"] for row in rows}), "devices", "device"),
        *about,
    ]
    subtitle_lines = subtitle(remarks)
    return alt.ConcatChart(
        concat=parts,
        columns=2,
        title=alt.TitleParams("Predicted against measured", subtitle=subtitle_lines),
        description=" ".join(["Predicted against measured.", *subtitle_lines]),
        resolve=alt.Resolve(scale=alt.ScaleResolveMap(color="shared", x="independent", y="independent")),
    )


def _predicted_panel(rows: Rows, names: Sequence[str]) -> Any:
    """Return points by device, and the diagonal on which prediction and measurement agree."""
    points = [
        {
            "measured": row["measured_ms"],
            "predicted": row["predicted_ms"],
            "line": row["device_name"],
            "tip": f"{label(row, ('model_id', *PLACE, *SHAPE))}: predicted {rounded(row['predicted_ms'], 4)} ms,"
            f" measured {rounded(row['measured_ms'], 4)} ms"
            f" ({row['predicted_ms'] / row['measured_ms'] - 1:+.0%}); 1 cell, held out",
        }
        for row in rows
    ]
    ends = [value for point in points for value in (point["measured"], point["predicted"])]
    x = quantity_axis("measured", "measured latency (ms)", ends, alt.X, zero=False)
    y = quantity_axis("predicted", "predicted latency (ms)", ends, alt.Y, zero=False)
    corners = [{"measured": end, "predicted": end} for end in (min(ends), max(ends))]
    diagonal = alt.Chart(alt.InlineData(corners)).mark_line(strokeDash=[4, 4], color=GRAY, aria=False)
    dots = alt.Chart(alt.InlineData(points)).mark_point(filled=True, size=28, opacity=0.6)
    return diagonal.encode(x=x, y=y) + dots.encode(x=x, y=y, color=color_encoding(names), **tooltip_encoding())


def _median_error(rows: Rows) -> float:
    errors: list[float] = sorted(abs(row["predicted_ms"] / row["measured_ms"] - 1) for row in rows)
    return errors[len(errors) // 2]
