"""Charts as the service has them: of the tables, or of what was held out of the predictor. HTTP is not here."""

from __future__ import annotations

import altair as alt

from accel_platform.analysis.query.filters import Selection
from accel_platform.reports.charts.registry import Drawable, chart, drawing
from accel_platform.settings import Settings
from accel_platform.warehouse.reader import Reader
from predictor.training import artifact
from predictor.training.evaluation_pairs import holdout_rows


def drawn(
    name: str, reader: Reader, settings: Settings, selection: Selection, *, drawable: Drawable | None = None
) -> alt.ConcatChart:
    """A chart of what the selection leaves, `drawable` as in `chart`. Raises NothingToDraw with the reason, NotFound
    for the name."""
    outside = {"predicted": lambda: holdout_rows(settings, selection)}
    return chart(name, reader, selection, drawable=drawable, outside=outside)


def made_of(name: str, settings: Settings) -> str:
    """What a chart depends on beside the tables: the predictor it is made of, if any. Raises NotFound for the name."""
    return "" if drawing(name).read is not None else artifact.current_id(settings) or "none"
