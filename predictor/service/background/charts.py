"""Charts of the tables, and of the predictor's held-out results."""

from __future__ import annotations

import altair as alt

from accel_platform.analysis.query.filters import Selection
from accel_platform.reports.charts.registry import Drawable, chart, find_chart
from accel_platform.settings import Settings
from accel_platform.warehouse.reader import Reader
from predictor.training import artifact
from predictor.training.evaluation_pairs import holdout_rows


def draw_chart(
    name: str, reader: Reader, settings: Settings, selection: Selection, *, drawable: Drawable | None = None
) -> alt.ConcatChart:
    """Return a chart of the selected results, with `drawable` as in `chart`.

    Raises NothingToDraw with the reason, NotFound for an unknown chart.
    """
    sources = {"predicted": lambda: holdout_rows(settings, selection)}
    return chart(name, reader, selection, drawable=drawable, outside=sources)


def chart_version(name: str, settings: Settings) -> str:
    """Return the id of the predictor that a chart shows, empty for a chart of the tables; NotFound if unknown."""
    return "" if find_chart(name).read is not None else artifact.current_id(settings) or "none"
