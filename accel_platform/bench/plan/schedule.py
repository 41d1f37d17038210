"""Schedules of suites: cron text, or the older object form converted to cron."""

from __future__ import annotations

import re
from typing import Any

_FIELDS = (
    ("minute", 0, 59, ()),
    ("hour", 0, 23, ()),
    ("day of the month", 1, 31, ()),
    ("month", 1, 12, ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")),
    ("day of the week", 0, 7, ("sun", "mon", "tue", "wed", "thu", "fri", "sat")),
)
_SHORTCUTS = ("@hourly", "@daily", "@midnight", "@weekly", "@monthly", "@yearly", "@annually")
_PART = re.compile(r"(?:\*|(?P<low>\w+)(?:-(?P<high>\w+))?)(?:/(?P<step>\d+))?")
_TIME = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)")
_FREQUENCIES = {"hourly": "{minute} * * * *", "daily": "{minute} {hour} * * *", "weekly": "{minute} {hour} * * 1"}
"""A week of the old guides begins on Monday."""


def parse_schedule(value: Any) -> str | None:
    """Return cron text as given, or made of `{"enabled", "frequency", "time"}`; None where that is not enabled.

    Raises ValueError with the problem.
    """
    if value is None:
        return None
    if isinstance(value, str):
        return validate_cron(value)
    if not isinstance(value, dict):
        raise ValueError('expected cron text such as "0 2 * * *", or {"enabled", "frequency", "time"}')  # noqa: TRY004
    if unknown := value.keys() - {"enabled", "frequency", "time"}:
        raise ValueError(f"unknown key {min(unknown)}, known: enabled, frequency, time")
    enabled, frequency, time = value.get("enabled", True), value.get("frequency", "daily"), value.get("time", "00:00")
    if not isinstance(enabled, bool):
        raise ValueError("enabled must be true or false")  # noqa: TRY004 - pydantic takes ValueErrors
    if frequency not in _FREQUENCIES:
        raise ValueError(f"frequency must be {', '.join(_FREQUENCIES)}, or the schedule cron text, not {frequency!r}")
    clock = _TIME.fullmatch(time) if isinstance(time, str) else None
    if clock is None:
        raise ValueError(f'time must be a time of day such as "02:00", not {time!r}')
    return _FREQUENCIES[frequency].format(hour=int(clock[1]), minute=int(clock[2])) if enabled else None


def validate_cron(cron: str) -> str:
    """Return the text with single spaces. Raises ValueError naming the wrong field."""
    text = " ".join(cron.split())
    if text.startswith("@"):
        if text not in _SHORTCUTS:
            raise ValueError(f"no schedule is called {text!r}, only {', '.join(_SHORTCUTS)}")
        return text
    fields = text.split()
    if len(fields) != len(_FIELDS):
        raise ValueError(f"cron text has 5 fields (minute, hour, day, month, weekday), {text!r} has {len(fields)}")
    for field, (name, low, high, words) in zip(fields, _FIELDS, strict=True):
        for part in field.split(","):
            if not _is_valid(part, low, high, words):
                raise ValueError(f"{part!r} is no {name} of cron text, which goes from {low} to {high}")
    return text


def _is_valid(part: str, low: int, high: int, words: tuple[str, ...]) -> bool:
    found = _PART.fullmatch(part)
    if found is None or (found["step"] is not None and int(found["step"]) == 0):
        return False
    if found["low"] is None:
        return True
    ends = [_parse_number(end, words, 1 if low else 0) for end in (found["low"], found["high"]) if end is not None]
    return all(end is not None and low <= end <= high for end in ends) and ends[0] <= ends[-1]  # type: ignore[operator]


def _parse_number(text: str, words: tuple[str, ...], first: int) -> int | None:
    if text.isascii() and text.isdigit():
        return int(text)
    return words.index(text.casefold()) + first if text.casefold() in words else None
