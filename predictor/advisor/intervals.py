"""Arithmetic on intervals and exact numbers; the level stays what it was."""

from __future__ import annotations

from predictor.schemas.responses import Interval


def scale(interval: Interval, factor: float) -> Interval:
    """Multiply an interval by a positive number."""
    return Interval(
        p50=interval.p50 * factor,
        low=None if interval.low is None else interval.low * factor,
        high=None if interval.high is None else interval.high * factor,
        level=interval.level,
    )


def divide(numerator: float, by: Interval) -> Interval:
    """Divide a positive number by an interval; each limit follows from the other one, None from None or 0."""
    return Interval(
        p50=numerator / by.p50,
        low=numerator / by.high if by.high else None,
        high=numerator / by.low if by.low else None,
        level=by.level,
    )
