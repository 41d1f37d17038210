"""Ranked charts: hardware, models of a family, speed-up, efficiency and categories."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from accel_platform.analysis.query.cells import WORK, group_comparable
from accel_platform.reports.charts.parts import (
    PLACE,
    Row,
    Rows,
    combine_panels,
    count_measured,
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
    row_labels,
    shape,
    tooltip_encoding,
)
from accel_platform.reports.charts.theme import PALETTE

_PANELS = 6
_BARS = 14
_NAMES_PX = 150
_BARS_PX = 240
"""Width of a panel, of which two fit beside their names on a page."""
_WITHIN = ("model_id", *WORK)
_WHERE = (*PLACE, "precision", "provenance")


def hardware(cells: Rows, about: Sequence[str]) -> alt.ConcatChart:
    """Return latency of one model at one shape on all its hardware. Raises NothingToDraw."""
    known = require([c for c in in_fixed_order(cells) if c["latency_ms"]], "No cell with a latency.")
    chosen, of = _one_shape_each(known)
    titled = differing_fields([panel[0] for panel in chosen], _WITHIN[1:])
    return _side_by_side(
        [(label(panel[0], ("model_id", *titled)), panel) for panel in chosen],
        "Hardware compared",
        ("latency of a batch (ms)", "ms"),
        named=_WHERE,
        remarks=[describe_omitted(len(chosen), of, "models", "model"), *about],
    )


def family(cells: Rows, about: Sequence[str]) -> alt.ConcatChart:
    """Return latency of a family's models at one shape on one device. Raises NothingToDraw."""
    within = ("model_family", *_WHERE, *_WITHIN[1:])
    panels = group_rows([c for c in in_fixed_order(cells) if c["latency_ms"]], lambda cell: grouping_key(cell, within))
    several = [panel for name, panel in panels.items() if len(panel) > 1 and name[0] != "unknown"]
    require(several, "No two models of one family were run at the same shape on the same device.")
    best: dict[str, list[Row]] = {}
    for panel in sorted(several, key=len, reverse=True):
        best.setdefault(panel[0]["model_family"], panel)
    chosen = list(best.values())[:_PANELS]
    titled = differing_fields([panel[0] for panel in chosen], within[1:])
    return _side_by_side(
        [(label(panel[0], ("model_family", *titled)), panel) for panel in chosen],
        "Models of a family compared",
        ("latency of a batch (ms)", "ms"),
        named=("model_id", "verified"),
        remarks=[describe_omitted(len(chosen), len(several), "panels", "family or hardware"), *about],
    )


def speedup(pairs: Rows, about: Sequence[str]) -> alt.ConcatChart:
    """Return the speed-up over PyTorch on a CPU, at equal shapes.

    Rows are those of `analysis.summaries.baselines.speedups`. Raises NothingToDraw.
    """
    require(pairs, "No cell was run both on `cpu` and on other hardware, alike in shape, precision and provenance.")
    chosen, of = _one_shape_each(in_fixed_order(pairs))
    titled = differing_fields([panel[0] for panel in chosen], _WITHIN[1:])
    parts, marks = [], []
    for panel in chosen:
        fields = (
            *differing_fields(panel, (*PLACE, "precision", "provenance")),
            *differing_fields(panel, ("baseline",)),
        )
        names = row_labels(panel, fields or ("hardware",))
        rows = [
            mark_row(
                pair,
                {
                    "value": pair["speedup"],
                    "low": pair["speedup_low"],
                    "high": pair["speedup_high"],
                    "spread": pair["spread"],
                },
                f"times {pair['baseline']}",
                name=name,
            )
            for pair, name in zip(panel, names, strict=True)
        ]
        marks += rows
        title = label(panel[0], ("model_id", *titled))
        if differing_fields(pairs, ("baseline",)) and not differing_fields(panel, ("baseline",)):
            title = f"{title}, against {panel[0]['baseline']}"
        parts.append(_bars(rows, title, "speed-up against cpu (times)", most=True, reference=1.0, everything=marks))
    drawn = [pair for panel in chosen for pair in panel]
    return combine_panels(
        parts,
        "Speed-up against the processor",
        drawn,
        columns=2,
        common=", ".join(
            filter(
                None,
                [
                    describe_shared(drawn, (*_WITHIN[1:], "precision", "device_name", "provenance")),
                    f"baseline {drawn[0]['baseline']}" if not differing_fields(drawn, ("baseline",)) else "",
                ],
            )
        ),
        remarks=[
            "Bars: slowest over fastest result of either side." if any(m["low"] for m in marks) else "",
            describe_omitted(len(chosen), of, "models", "model"),
            *about,
        ],
    )


def efficiency(rows: Rows, about: Sequence[str]) -> alt.ConcatChart:
    """Return items per joule and per dollar. Rows are those of `analysis.summaries.efficiency`.

    Raises NothingToDraw.
    """
    require(
        rows,
        "No cell has counted energy, and none is of a device whose thermal design power or rent the spec sheet has.",
    )
    parts, drawn = [], []
    for measure, axis, unit in (
        ("items_per_j", "items per joule (items/J)", "items/J"),
        ("items_per_usd", "items per dollar of rent (items/USD)", "items/USD"),
    ):
        known = [row for row in in_fixed_order(rows) if row[measure]]
        chosen, _ = _one_shape_each(known) if known else ([], 0)
        for panel in chosen[: _PANELS // 2]:
            fields = [*(differing_fields(panel, _WHERE) or ["hardware"]), "how" if measure == "items_per_j" else "rent"]
            marks = [
                mark_row(
                    row,
                    {
                        "value": row[measure],
                        "low": row[f"{measure}_low"],
                        "high": row[f"{measure}_high"],
                        "spread": row["spread"],
                    },
                    f"{unit} ({row['how' if measure == 'items_per_j' else 'rent_source']})",
                    name=name,
                )
                for row, name in zip(panel, row_labels(panel, fields), strict=True)
            ]
            drawn += [*panel]
            apart = [f for f in _WITHIN[1:] if f in differing_fields([p[0] for p in chosen], _WITHIN)]
            title = label(panel[0], ("model_id", *apart))
            parts.append(_bars(marks, title, axis, most=True, everything=rows))
    return combine_panels(
        parts,
        "Efficiency per watt and per dollar",
        drawn,
        columns=2,
        common=describe_shared(drawn, (*_WHERE, *_WITHIN[1:])),
        remarks=[
            "Energy is counted where a counter was read; else at least what the thermal design power allows.",
            *about,
        ],
    )


def category(cells: Rows, about: Sequence[str]) -> alt.ConcatChart:
    """Return every model by modality on one device at one batch size, as dots without averages.

    Raises NothingToDraw.
    """
    known = [c for c in in_fixed_order(cells) if c["throughput_items_per_s"] and c.get("modality")]
    require(known, "No cell with a throughput is of a model whose category is known.")
    within = (*_WHERE, "mode", "batch_size", "processes")
    panels = sorted(group_rows(known, lambda cell: grouping_key(cell, within)).values(), key=_categories)
    chosen = panels[:_PANELS]
    titled = differing_fields([panel[0] for panel in chosen], within)
    drawn = [cell for panel in chosen for cell in panel]
    names = sorted({cell["modality"] for cell in drawn})
    parts = []
    for panel in chosen:
        rows = [
            mark_row(c, figure_with_spread(c, "throughput"), "items/s", name=c["modality"], line=c["modality"])
            for c in panel
        ]
        x = quantity_axis("value", "throughput (items/s)", [row["value"] for row in rows], alt.X, zero=False)
        base = alt.Chart(alt.InlineData(rows)).encode(y=alt.Y("name:N", title=None, sort=names).axis(labelLimit=200))
        points = base.mark_point(filled=True, size=60, opacity=0.7).encode(
            x=x,
            shape=shape(drawn),
            color=alt.Color("line:N", legend=None).scale(domain=names, range=list(PALETTE)),
            **tooltip_encoding(),
        )
        title = panel_title(label(panel[0], titled or ("hardware",)))
        values = [row["value"] for row in rows]
        spread = error_bars(
            base, horizontal=True, low=quantity_axis("low", "throughput (items/s)", values, alt.X, zero=False)
        )
        parts.append(alt.LayerChart(layer=[spread, points], width=330, height=alt.Step(34), title=title))
    return combine_panels(
        parts,
        "Categories compared",
        drawn,
        columns=2,
        common=describe_shared(drawn, within),
        remarks=[
            "One mark per model and input length; models differ in size, so marks are not averaged.",
            describe_omitted(len(chosen), len(panels), "panels", "hardware or batch size"),
            *about,
        ],
    )


def _side_by_side(
    panels: Sequence[tuple[str, list[Row]]],
    title: str,
    axis: tuple[str, str],
    *,
    named: Sequence[str],
    remarks: Sequence[str],
) -> alt.ConcatChart:
    drawn = [cell for _, panel in panels for cell in panel]
    every = [figure_with_spread(cell, "latency") for cell in drawn]
    parts = []
    for name, panel in panels:
        fields = differing_fields(panel, named) or [named[0]]
        marks = [
            mark_row(cell, figure_with_spread(cell, "latency"), axis[1], name=called)
            for cell, called in zip(panel, row_labels(panel, fields), strict=True)
        ]
        parts.append(_bars(marks, name, axis[0], most=False, everything=drawn))
    common = describe_shared(
        drawn, [*(field for field in _WHERE if field not in named or field != named[0]), *_WITHIN[1:]]
    )
    return combine_panels(parts, title, drawn, columns=2, common=common, remarks=[describe_spreads(every), *remarks])


def _bars(
    marks: list[dict[str, Any]], title: str, axis: str, *, most: bool, everything: Rows, reference: float | None = None
) -> alt.LayerChart:
    """Draw a dot with its spread for each row, best first."""
    best = sorted(marks, key=lambda mark: -mark["value"] if most else mark["value"])
    top_marks, names = best[:_BARS], [mark["name"] for mark in best[:_BARS]]
    if len(best) > _BARS:
        title = f"{title}, the best {_BARS} of {len(best)}"
    limits = [row[name] for row in top_marks for name in ("low", "value", "high")] + ([reference] if reference else [])
    x = quantity_axis("value", axis, limits, alt.X)
    base = alt.Chart(alt.InlineData(top_marks)).encode(
        y=alt.Y("name:N", title=None, sort=names).axis(
            labelLimit=300,
            labelExpr="split(datum.label, '\\n')",
            minExtent=_NAMES_PX,
            grid=True,
            ticks=False,
            domain=False,
        )
    )
    points = base.mark_point(filled=True, size=90, opacity=1, color=PALETTE[0]).encode(
        x=x, shape=shape(everything), **tooltip_encoding()
    )
    figures = base.mark_text(dy=-11, fontSize=10, aria=False).encode(x=x, text=alt.Text("value:Q", format=",.3~r"))
    layers = [error_bars(base, horizontal=True, low=quantity_axis("low", axis, limits, alt.X)), points, figures]
    if reference is not None:
        at = alt.Chart(alt.InlineData([{"at": reference}])).mark_rule(strokeDash=[4, 4], color="#808080", aria=False)
        layers.insert(0, at.encode(x=quantity_axis("at", axis, limits, alt.X)))
    return alt.LayerChart(layer=layers, width=_BARS_PX, height=alt.Step(32), title=panel_title(title))


def _one_shape_each(cells: Rows) -> tuple[list[list[Row]], int]:
    """Return the cells of one shape for each of a few models, and the number of all models.

    The models with the most measured cells come first, before those that only others ran.
    """
    groups = sorted(group_comparable(cells), key=lambda group: -count_measured(group))
    return groups[:_PANELS], len(groups)


def _categories(panel: Rows) -> tuple[Any, ...]:
    return (-len({cell["modality"] for cell in panel}), -len(panel), label(panel[0], _WHERE))
