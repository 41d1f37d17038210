"""A table between other lines, such as warnings before its header."""

from __future__ import annotations

import re
from collections.abc import Iterator

_NAME = re.compile(r"\s*\"?(?=[^\"]*[A-Za-z])\w[\w .()/%:\[\]@&+-]{0,79}\"?\s*")
"""A column is named by a word, no number and no sentence."""
_LEAST_COLUMNS = 3
_LOOKED_AT = 400
_LEAST_SHARE = 0.5


def table_within(text: str, delimiters: str) -> tuple[str, str] | None:
    """Return the lines of the table and all others; None without a header and rows of as many cells.

    The table must be most of the text, because a log that happens to list something is no table.
    """
    lines = text.splitlines()
    filled = sum(1 for line in lines if line.strip())
    for start, delimiter in _headers(lines, delimiters):
        cells = lines[start].count(delimiter)
        end = start + 1
        while end < len(lines) and lines[end].count(delimiter) >= cells:
            end += 1
        if end - start > 1 and end - start >= _LEAST_SHARE * filled:
            others = [line for line in (*lines[:start], *lines[end:]) if line.strip()]
            return "\n".join(lines[start:end]), "\n".join(others)
    return None


def _headers(lines: list[str], delimiters: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(lines[:_LOOKED_AT]):
        delimiter = max(delimiters, key=line.count)
        names = line.split(delimiter)
        if len(names) >= _LEAST_COLUMNS and all(_NAME.fullmatch(name) or not name.strip() for name in names):
            yield number, delimiter
