"""Durations as people write and read them: 12h, 30d, 4w; 45 s, 12 min."""

from __future__ import annotations

import re
from datetime import timedelta

from accel_platform.errors import InvalidInput

_UNITS = {"h": "hours", "d": "days", "w": "weeks"}


def parse_age(text: str) -> timedelta:
    """Return the duration of a text such as 30d. Raises InvalidInput for another form."""
    if (match := re.fullmatch(r"(\d{1,5})\s*([hdw])", text.strip().casefold())) is None:
        raise InvalidInput(f"An age is a number of hours, days or weeks such as 12h, 30d or 4w, not {text!r}.")
    return timedelta(**{_UNITS[match[2]]: int(match[1])})


def format_duration(seconds: float) -> str:
    """Return seconds, minutes or hours, each without decimals."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"
