"""Durations as people write them: 12h, 30d, 4w."""

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
