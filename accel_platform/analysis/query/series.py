"""Series of numbers from a column of a CSV file, grouped or not."""

from __future__ import annotations

import csv
import difflib
import math
import statistics
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from accel_platform.errors import InvalidInput, NotFound

_SNIFFED = 65_536
Row = tuple[int, dict[str, str]]
"""A row and its line in the file."""


@dataclass(frozen=True)
class Series:
    """The known values, and the position of each among all rows (or groups), known or not."""

    values: tuple[float, ...]
    positions: tuple[int, ...]


def read_series(path: Path, *, value: str, group: str | None = None) -> Series:
    """Read the numbers of the `value` column in the order of the file.

    Parameters
    ----------
    group
        Column whose equal values make one value: the median of their rows, at the position of the first.

    Returns
    -------
    Series
        An empty or NaN cell counts as a row without a value.

    Raises
    ------
    NotFound
        If there is no such file.
    InvalidInput
        If the file is not CSV, lacks a column, or holds text that is not a number.
    """
    groups: dict[object, list[float]] = {}
    for line, row in _rows(path, [column for column in (value, group) if column is not None]):
        number = _number(path, line, row[value])
        groups.setdefault(line if group is None else row[group], []).append(number)
    known = [
        (position, statistics.median(there))
        for position, members in enumerate(groups.values())
        if (there := [member for member in members if not math.isnan(member)])
    ]
    return Series(tuple(number for _, number in known), tuple(position for position, _ in known))


def _rows(path: Path, columns: Collection[str]) -> list[Row]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            head = file.read(_SNIFFED)
            first = head.partition("\n")[0]
            # The separator most used in the header, because csv.Sniffer takes letters for separators of one column.
            delimiter = max(",;\t", key=first.count)
            file.seek(0)
            reader = csv.DictReader(file, delimiter=delimiter, restval="", skipinitialspace=True)
            names = [name.strip() for name in reader.fieldnames or ()]
            reader.fieldnames = names
            for column in columns:
                if column not in names:
                    close = difflib.get_close_matches(column, names, n=3) or names
                    raise InvalidInput(f"{path} has no column {column!r}. Try {', '.join(close) or 'another file'}.")
            return [(reader.line_num, row) for row in reader]
    except FileNotFoundError as error:
        raise NotFound(f"There is no file {path}.") from error
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InvalidInput(f"Cannot read {path} as CSV: {error}.") from error


def _number(path: Path, line: int, text: str) -> float:
    """Parse a cell; return NaN for a cell without a value."""
    if text.strip().casefold() in ("", "nan", "null", "none", "na", "n/a"):
        return math.nan
    try:
        number = float(text)
    except ValueError:
        number = math.inf
    if math.isinf(number):
        raise InvalidInput(f"{path}, line {line}: {text!r} is not a number.")
    return number
