"""Registry of charts: name, content, rows and drawing function. Add a chart here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import altair as alt

from accel_platform.analysis.query.cells import read_cells
from accel_platform.analysis.query.filters import Selection, require_known
from accel_platform.analysis.query.setups import with_distinct_runtimes
from accel_platform.analysis.regressions.trend import trend_rows
from accel_platform.analysis.summaries.baselines import speedups
from accel_platform.analysis.summaries.efficiency import efficiencies
from accel_platform.analysis.summaries.roofline import Rooflines
from accel_platform.analysis.summaries.scatter import read_scatter
from accel_platform.errors import NotFound
from accel_platform.hardware.device_names import with_distinct_names
from accel_platform.reports.charts import curves, fields, ranked, times
from accel_platform.warehouse.reader import Reader

Row = Mapping[str, Any]
Outside = Mapping[str, Callable[[], Sequence[Row]]]
"""Functions that read rows from outside this package, by chart name."""
Drawable = tuple[list[Row], list[str]]
"""Cells that may be drawn, and a sentence on the omitted ones."""
_MODALITIES = "SELECT model_id, modality FROM models WHERE modality IS NOT NULL"


@dataclass(frozen=True)
class Drawing:
    """A registered chart."""

    shows: str
    needs: str
    """The figures that it needs."""
    draw: Callable[[Sequence[Row], Sequence[str]], alt.ConcatChart]
    read: Callable[[Reader, Selection, Sequence[Row]], Sequence[Row]] | None
    """Its rows, computed from drawable cells; None if they come from outside."""


def _cells(_: Reader, __: Selection, cells: Sequence[Row]) -> Sequence[Row]:
    return cells


def _speedups(_: Reader, __: Selection, cells: Sequence[Row]) -> Sequence[Row]:
    return speedups(with_distinct_names(cells, short=True))  # because a pair names its baseline's device


def _efficiencies(reader: Reader, _: Selection, cells: Sequence[Row]) -> Sequence[Row]:
    return efficiencies(cells, Rooflines(reader).spec_of)


def _categories(reader: Reader, _: Selection, cells: Sequence[Row]) -> Sequence[Row]:
    known = {row["model_id"]: row["modality"] for row in reader.rows(_MODALITIES)}
    return [{**cell, "modality": known.get(cell["model_id"])} for cell in cells]


CHARTS: dict[str, Drawing] = {
    "latency": Drawing("latency against batch size", "cells with a latency", partial(curves.curves, "latency"), _cells),
    "throughput": Drawing(
        "throughput against batch size", "cells with a throughput", partial(curves.curves, "throughput"), _cells
    ),
    "memory": Drawing("peak memory against batch size", "cells with a peak", partial(curves.curves, "memory"), _cells),
    "hardware": Drawing("hardware compared, model by model", "cells with a latency", ranked.hardware, _cells),
    "family": Drawing("models of one family compared", "two models at one shape on one device", ranked.family, _cells),
    "speedup": Drawing(
        "speed-up against the processor",
        "cells alike but for the hardware, one of them `cpu`",
        ranked.speedup,
        _speedups,
    ),
    "heatmap": Drawing("architectures by hardware", "cells with a latency", fields.heat_map, _cells),
    "category": Drawing(
        "text, vision, audio and multimodal models compared",
        "cells of models with a category",
        ranked.category,
        _categories,
    ),
    "efficiency": Drawing(
        "items per joule and per dollar",
        "counted energy, or a device whose TDP or rent is published",
        ranked.efficiency,
        _efficiencies,
    ),
    "roofline": Drawing(
        "achieved rate under the roof of each device",
        "cells of models whose cost is known",
        fields.roofline,
        lambda reader, _, cells: Rooflines(reader).rows(cells),
    ),
    "trend": Drawing(
        "series over time, change points and commits",
        "series of three runs of ours",
        times.trend,
        lambda reader, selection, _: trend_rows(reader, selection),
    ),
    "noise": Drawing(
        "how the samples of a cell scatter",
        "results with raw samples",
        times.noise,
        lambda reader, selection, _: read_scatter(reader, selection),
    ),
    "predicted": Drawing("predicted against measured", "a predictor's held-out cells", fields.predicted, None),
}


def find_chart(name: str) -> Drawing:
    """Return the chart definition of a name. Raises NotFound, listing all names."""
    if name not in CHARTS:
        raise NotFound(f"There is no chart {name!r}. Charts: {', '.join(CHARTS)}.")
    return CHARTS[name]


def select_drawable(cells: Sequence[Row], selection: Selection) -> Drawable:
    """Return the drawable cells, and a sentence on the number and causes of omissions.

    Suspect and simulated figures are drawn only if the selection asks for them. Wrong outputs, and figures without a
    device, are never drawn.
    """
    selected: list[Row] = []
    omitted: Counter[str] = Counter()
    for cell in cells:
        reason = _unfit(cell, selection)
        if reason is None:
            unchecked = cell["verified"] is None and cell["provenance"] in ("measured", "emulated")
            selected.append({**cell, "checked": "outputs not compared" if unchecked else None})
        else:
            omitted[reason] += cell["results"]
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in sorted(omitted.items()))
    return selected, [f"Left out results: {reasons}."] if reasons else []


def chart(
    name: str,
    reader: Reader,
    selection: Selection,
    *,
    drawable: Drawable | None = None,
    outside: Outside | None = None,
) -> alt.ConcatChart:
    """Draw a chart of the selection. Raises NothingToDraw with the reason, and what `require_known` raises.

    `drawable` is the result of `select_drawable`, if the cells were read already.
    """
    kind = find_chart(name)
    if kind.read is None:
        rows = (outside or {})[name]()
        return kind.draw(rows, [f"Of the predictor in service{_filters(selection)}."])
    require_known(reader, selection)
    fit, omitted = drawable or select_drawable(read_cells(reader, selection, evidence=False), selection)
    about = [*omitted, f"Snapshot {reader.snapshot_id[:12]}{_filters(selection)}."]
    rows = with_distinct_names(kind.read(reader, selection, fit), short=True)
    return kind.draw(with_distinct_runtimes(rows), about)


def _unfit(cell: Row, selection: Selection) -> str | None:
    if cell["verified"] is False:
        return "whose outputs were found wrong"
    if cell["provenance"] in ("suspect", "simulated") and selection.provenance != cell["provenance"]:
        return f"that are {cell['provenance']}"
    if cell["device_id"] is None and cell["device_name"] is None:
        return "whose file names no device"
    return None


def _filters(selection: Selection) -> str:
    given = selection.model_dump(exclude_defaults=True, mode="json")
    filters = (
        f"{name} {', '.join(map(str, value)) if isinstance(value, list) else value}" for name, value in given.items()
    )
    return f"; only {'; '.join(filters)}" if given else ""
