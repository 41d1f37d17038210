"""Conversion of numbers, units and times of old files. What a file leaves open is None.

Memory: the old framework divided bytes by 1024 x 1024 and called it MB (its figures are multiples of 1/256, a 4 KiB
page), so its "MB" are MiB. `MIB_PER_MB` is for files with decimal megabytes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import numpy as np

MS_PER_S = 1_000.0
MS_PER_US = 1e-3
TO_MS = {"ns": 1e-6, "us": MS_PER_US, "ms": 1.0, "s": MS_PER_S, "sec": MS_PER_S}
"""Milliseconds of a unit of time, by the words of files."""
NS_PER_S = 1_000_000_000
NS_PER_MS = 1_000_000
BYTES_PER_MIB = 1_048_576
MIB_PER_MB = 1_000_000 / BYTES_PER_MIB
MIB_PER_GB = 1_000_000_000 / BYTES_PER_MIB

_COUNT_MAX = 2_000_000_000
_THOUSANDS = re.compile(r"[+-]?\d{1,3}(?:,\d{3})+(?:\.\d*)?(?:[eE][+-]?\d+)?")
_COMPACT_TIME = re.compile(r"\d{8}_\d{6}")
_APART = re.compile(
    r"(?P<year>\d{4})(?P<dash>[-/])(?P<month>\d\d)(?P=dash)(?P<day>\d\d)[ _T]"
    r"(?P<hour>\d\d)(?P<colon>[:-])(?P<minute>\d\d)(?P=colon)(?P<second>\d\d(?:\.\d{1,6})?)"
)
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_NAMED = "|".join(_MONTHS)
_IN_WORDS = re.compile(
    rf"[A-Z][a-z]{{2}}(?:, (?P<day>\d\d?) (?P<month>{_NAMED}) (?P<year>\d{{4}}) (?P<time>\d\d:\d\d:\d\d)"
    r" (?P<utc>GMT|UTC|\+0000)"
    rf"| (?P<named>{_NAMED}) +(?P<of>\d\d?) (?P<clock>\d\d:\d\d:\d\d) (?P<at_end>\d{{4}}))"
)
_EPOCH_S = (1_000_000_000, 4_000_000_000)
"""Epoch seconds are believed between 2001 and 2096; a number outside is no time."""


def number(value: Any) -> float | None:
    """Return a finite number, also from text (`1e3`, `1,234.5`); None for anything else (NaN, "", "N/A", true)."""
    if value is None or isinstance(value, bool):
        return None
    if type(value) is float:  # the most frequent case, so that the slower ones are skipped
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        if "_" in value:  # Python would read "1_000" as a number; no benchmark writes that
            return None
        # "12,5" stays unread, because 125 would be a wrong figure.
        if "," in value and _THOUSANDS.fullmatch(value.strip()):
            value = value.replace(",", "")
    try:
        parsed = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return parsed if math.isfinite(parsed) else None


def quantity(value: Any) -> float | None:
    """Return a finite number that is not negative, else None: no time, rate or size is below zero."""
    if value is None:
        return None
    parsed = number(value)
    return parsed if parsed is not None and parsed >= 0 else None


def scaled(value: Any, factor: float) -> float | None:
    """Return a quantity in another unit; None stays None."""
    parsed = quantity(value)
    if parsed is None:
        return None
    product = parsed * factor
    return product if math.isfinite(product) else None


def count(value: Any, *, at_least: int = 0) -> int | None:
    """Return a whole number from `at_least` to 2·10⁹, also from text or 4.0; else None."""
    parsed = value if type(value) is int else number(value)
    if parsed is None or parsed != int(parsed) or not at_least <= parsed <= _COUNT_MAX:
        return None
    return int(parsed)


def samples_ns(values: Any, *, ns_per_unit: int) -> tuple[int, ...]:
    """Return sample times in integer nanoseconds; none where the list is missing or one entry is no time.

    The statistics of a list with holes would not be honest.
    """
    if not isinstance(values, Sequence) or isinstance(values, str):
        return ()
    if {float, int}.issuperset(map(type, values)):
        return _plain_samples_ns(values, ns_per_unit)
    converted = [scaled(value, ns_per_unit) for value in values]
    if any(value is None or value >= 2**63 for value in converted):
        return ()
    return tuple(round(value) for value in converted if value is not None)


def _plain_samples_ns(values: Sequence[float], ns_per_unit: int) -> tuple[int, ...]:
    """Convert a list of numbers alone, which most long lists are."""
    try:
        with np.errstate(over="ignore"):
            in_ns = np.array(values, np.float64) * ns_per_unit
    except OverflowError:  # a whole number beyond any float
        return ()
    if not (np.isfinite(in_ns) & (in_ns >= 0) & (in_ns < 2**63)).all():
        return ()
    return tuple(np.rint(in_ns).astype(np.int64).tolist())


@dataclass(frozen=True)
class RecordedTime:
    """Time of an event: `at` with a known zone, `local` without a zone, else neither."""

    at: datetime | None = None
    local: datetime | None = None

    def __bool__(self) -> bool:
        return self.at is not None or self.local is not None


_UNKNOWN_TIME = RecordedTime()


def moment(value: Any) -> RecordedTime:
    """Parse the time in a file.

    Accepted are ISO 8601 with or without zone, `YYYYMMDD_HHMMSS` and its kin, the forms of e-mail and of C's `ctime`,
    and epochs in seconds, milli-, micro- or nanoseconds. Unreadable and ambiguous times (`03/05/2025`) give an empty
    one.
    """
    if value is None or value == "":
        return _UNKNOWN_TIME
    return _text_moment(value) if isinstance(value, str) else _epoch_moment(number(value))


def _epoch_moment(epoch: float | None) -> RecordedTime:
    if epoch is None:
        return _UNKNOWN_TIME
    low, high = _EPOCH_S
    seconds = next((s for unit in (1, 1e3, 1e6, 1e9) if low <= (s := epoch / unit) <= high), None)
    return _UNKNOWN_TIME if seconds is None else RecordedTime(at=datetime.fromtimestamp(seconds, UTC))


@lru_cache(maxsize=1024)
def _text_moment(value: str) -> RecordedTime:
    """Return the time in a text; the rows of one run often share it."""
    if (epoch := number(value)) is not None:
        return _epoch_moment(epoch)
    text = value.strip()
    if _COMPACT_TIME.fullmatch(text):
        text = text.replace("_", "T")
    elif found := _APART.fullmatch(text):
        text = f"{found['year']}-{found['month']}-{found['day']}T{found['hour']}:{found['minute']}:{found['second']}"
    elif found := _IN_WORDS.fullmatch(text):
        month = _MONTHS.index(found["month"] or found["named"]) + 1
        day, year = int(found["day"] or found["of"]), found["year"] or found["at_end"]
        text = f"{year}-{month:02}-{day:02}T{found['time'] or found['clock']}{'Z' if found['utc'] else ''}"
    elif text.endswith(" UTC"):
        text = text.removesuffix(" UTC") + "Z"
    try:
        # Python reads a bare "2025W101" or "20250305" too; a time of day is at least this long.
        parsed = datetime.fromisoformat(text) if len(text) > len("2025-03-05") else None
        if parsed is None or parsed.tzinfo is None:
            return RecordedTime(local=parsed)
        return RecordedTime(at=parsed.astimezone(UTC))
    except (ValueError, OverflowError):
        return _UNKNOWN_TIME


def first_moment(*values: Any) -> RecordedTime:
    """Return the first readable of several times, the most specific first."""
    for value in values:
        found = moment(value)
        if found:
            return found
    return _UNKNOWN_TIME
