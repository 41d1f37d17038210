"""Rows of a document, whether CSV, JSON Lines, a JSON list or one object, and cells under one of several names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from migrations.normalize.records import child
from migrations.sources.documents import Document

_UNKNOWN = {"", "n/a", "na", "nan", "none", "null", "-"}


def rows_of(document: Document) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every row with its pointer. Members of a list that are no objects are passed over: `strays_of` has them."""
    if isinstance(document.value, dict):
        yield "", document.value
    elif isinstance(document.value, list):
        yield from ((f"/{i}", row) for i, row in enumerate(document.value) if isinstance(row, dict))


def strays_of(document: Document) -> Iterator[tuple[str, Any]]:
    """What stands among the rows and is none."""
    if isinstance(document.value, list) and document.kind != "text":
        yield from ((child("", i), row) for i, row in enumerate(document.value) if not isinstance(row, dict))


def share_of_rows(document: Document, *needed: str) -> float:
    """The share of rows that have all these keys; 0 where there are no rows. The first thousand are looked at."""
    if document.kind == "csv":  # all rows have the same
        return float(bool(document.value) and set(document.columns) >= set(needed))
    rows = [row for _, (_, row) in zip(range(1000), rows_of(document), strict=False)]
    return sum(row.keys() >= set(needed) for row in rows) / len(rows) if rows else 0.0


def pick(row: Mapping[str, Any], *names: str) -> Any:
    """The first of these cells that holds something; empty texts and `N/A` hold nothing. None without one."""
    for name in names:
        value = row.get(name)
        if value is not None and not (isinstance(value, str) and value.strip().casefold() in _UNKNOWN):
            return value
    return None


def text_of(value: Any) -> str | None:
    """A cell as text; None for what is no text or number, or empty."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    return str(value).strip() or None


def object_of(value: Any) -> dict[str, Any]:
    """The value where it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}
