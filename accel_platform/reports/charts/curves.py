"""Latency, throughput and memory against batch size: a panel per model and mode, a line per device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from accel_platform.analysis.query.cells import WORK_OF_ANY_BATCH
from accel_platform.reports.charts.parts import (
    FIGURES,
    LINES,
    PLACE,
    Rows,
    color_encoding,
    combine_panels,
    describe_omitted,
    describe_shared,
    describe_spreads,
    differing_fields,
    error_bars,
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
    tooltip_encoding,
)

_PANELS = 9
_PANEL = ("model_id", *WORK_OF_ANY_BATCH)
_LINE = (*PLACE, "precision", "provenance")
_TITLES = {
    "latency": ("Latency against batch size", "latency of a batch (ms)", "ms"),
    "throughput": ("Throughput against batch size", "throughput (items/s)", "items/s"),
    "memory": ("Peak memory against batch size", "peak memory of the process (MiB)", "MiB"),
}


def curves(figure: str, cells: Rows, about: Sequence[str], *, all_of_them: bool = False) -> alt.ConcatChart:
    """Return curves of a figure (latency, throughput or memory) against batch size.

    `all_of_them` draws every panel and line, with repeated colors. Otherwise the lines of most sizes are drawn, of
    equally many those of the lowest latency. Raises NothingToDraw.
    """
    title, axis, unit = _TITLES[figure]
    field = FIGURES[figure][0]
    known = [c for c in in_fixed_order(cells) if c["batch_size"] and c[field]]
    require(known, f"No cell with a {figure} and a batch size.")
    places = group_rows(known, lambda cell: grouping_key(cell, _LINE))
    most = sorted(places.values(), key=lambda line: -_sizes(line))[: None if all_of_them else LINES]
    lined = [cell for line in most for cell in line]
    panels = group_rows(sorted(lined, key=lambda c: str(c["model_id"])), lambda cell: grouping_key(cell, _PANEL))
    chosen = sorted(panels.values(), key=lambda panel: -_sizes(panel))[: None if all_of_them else _PANELS]
    drawn = [cell for panel in chosen for cell in panel]
    apart = differing_fields(drawn, _LINE) or ["hardware"]
    names = sorted({label(cell, apart) for cell in drawn})
    titled = differing_fields(drawn, _PANEL[1:])
    marks = [
        [
            mark_row(
                c,
                figure_with_spread(c, figure),
                unit,
                batch_size=c["batch_size"],
                line=label(c, apart),
                group=str(grouping_key(c, (*_LINE, "verified"))),
            )
            for c in panel
        ]
        for panel in chosen
    ]
    parts = [
        _panel(
            rows,
            names,
            axis,
            [mark for each in marks for mark in each],
            panel_title(label(panel[0], ("model_id", *titled))),
        )
        for rows, panel in zip(marks, chosen, strict=True)
    ]
    models = len(panels) - len(chosen)
    return combine_panels(
        parts,
        title,
        drawn,
        columns=3,
        common=describe_shared(drawn, (*_LINE, *_PANEL[1:])),
        remarks=[
            describe_spreads([mark for each in marks for mark in each]) if figure != "memory" else "",
            describe_omitted(len(chosen), len(chosen) + models, "panels", "model"),
            describe_omitted(len(most), len(places), "lines", "hardware, device or precision"),
            *about,
        ],
    )


def _sizes(cells: Rows) -> int:
    return len({(cell["model_id"], cell["batch_size"]) for cell in cells})


def _panel(
    rows: list[dict[str, Any]], names: list[str], axis: str, all_rows: Rows, title: alt.TitleParams
) -> alt.LayerChart:
    sizes = sorted({row["batch_size"] for row in all_rows})
    domain = [sizes[0] / 1.2, sizes[-1] * 1.2]
    shown = sizes if len(sizes) <= 8 else [size for size in sizes if size & (size - 1) == 0][:10]
    base = alt.Chart(alt.InlineData(rows)).encode(
        x=alt.X("batch_size:Q", title="batch size (items)")
        .scale(type="log", base=2, domain=domain, nice=False)
        .axis(values=shown, format="d", grid=False),
        color=color_encoding(names),
    )
    limits = [row[name] for row in rows for name in ("low", "value", "high")]
    y = quantity_axis("value", axis, limits, alt.Y)
    line = base.mark_line(strokeWidth=2, aria=False).encode(y=y, detail="group:N")
    points = base.mark_point(filled=True, size=70, opacity=1).encode(y=y, shape=shape(all_rows), **tooltip_encoding())
    spread = error_bars(base, horizontal=False, low=quantity_axis("low", axis, limits, alt.Y))
    return alt.LayerChart(layer=[line, spread, points], width=250, height=190, title=title)
