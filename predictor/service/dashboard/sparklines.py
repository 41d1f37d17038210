"""Coordinates of sparklines and of intervals on a logarithmic scale."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_MARGIN = 4.0
_MOST_POINTS = 400


@dataclass(frozen=True)
class Spark:
    """A sparkline; `points` is the attribute of an SVG polyline."""

    points: str
    last: tuple[float, float]
    low: float
    high: float
    dots: tuple[tuple[float, float], ...]


def spark(values: Sequence[float], width: float = 120, height: float = 28) -> Spark | None:
    """Return a line through the values in order; None for fewer than two.

    Long series are reduced to the maximum of each stretch, so that no outlier is hidden.
    """
    if len(values) < 2:
        return None
    low, high = min(values), max(values)
    step = math.ceil(len(values) / _MOST_POINTS)
    drawn = [max(values[i : i + step]) for i in range(0, len(values), step)]
    across = (width - 2 * _MARGIN) / max(len(drawn) - 1, 1)
    up = (height - 2 * _MARGIN) / (high - low) if high > low else 0.0
    middle = 0.0 if high > low else (height - 2 * _MARGIN) / 2
    dots = tuple(
        (round(_MARGIN + i * across, 1), round(height - _MARGIN - middle - (value - low) * up, 1))
        for i, value in enumerate(drawn)
    )
    return Spark(" ".join(f"{x},{y}" for x, y in dots), dots[-1], low, high, dots)


@dataclass(frozen=True)
class Scale:
    """A logarithmic scale from 0 to `width`."""

    low: float
    high: float
    width: float

    def at(self, value: float) -> float:
        if self.high <= self.low:
            return self.width / 2
        share = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        return round(_MARGIN + min(share, 1.0) * (self.width - 2 * _MARGIN), 1)


def log_scale(values: Iterable[float | None], width: float = 140) -> Scale | None:
    """Return a scale over the positive values; None if there is none."""
    known = [value for value in values if value is not None and value > 0]
    return Scale(min(known), max(known), width) if known else None
