"""Rows of a document, whether CSV, JSON Lines, a JSON list or one object, and cells under one of several names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from migrations.normalize.records import child
from migrations.normalize.units import quantity
from migrations.sources.documents import Document

NO_VALUE = {"", "n/a", "na", "nan", "none", "null", "-"}
"""Texts by which a cell says that it has no value."""


def rows_of(document: Document) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every row with its pointer, without list members that are no objects (see `strays_of`)."""
    if isinstance(document.value, dict):
        yield "", document.value
    elif isinstance(document.value, list):
        yield from ((f"/{i}", row) for i, row in enumerate(document.value) if isinstance(row, dict))


def strays_of(document: Document) -> Iterator[tuple[str, Any]]:
    """Yield the list members that are no rows."""
    if isinstance(document.value, list) and document.kind != "text":
        yield from ((child("", i), row) for i, row in enumerate(document.value) if not isinstance(row, dict))


def share_of_rows(document: Document, *needed: str) -> float:
    """Return the share of rows with all these keys among the first thousand; 0 without rows."""
    if document.kind == "csv":  # all rows have the same
        return float(bool(document.value) and set(document.columns) >= set(needed))
    counted = document.key_sets
    having = sum(rows for keys, rows in counted.items() if keys.issuperset(needed))
    return having / counted.total() if having else 0.0


def pick(row: Mapping[str, Any], *names: str) -> Any:
    """Return the first of these cells with a value; empty texts and `N/A` are none. None without one."""
    for name in names:
        value = row.get(name)
        if value is not None and not (isinstance(value, str) and value.strip().casefold() in NO_VALUE):
            return value
    return None


def first_positive(row: Mapping[str, Any], *names: str) -> float | None:
    """Return the first of these figures that is above 0; None without one."""
    return next((figure for name in names if (figure := quantity(row.get(name)))), None)


def text_of(value: Any) -> str | None:
    """Return a cell as text; None for an empty one, or for other types than text and numbers."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    return str(value).strip() or None


def cells_of_markdown(line: str) -> list[str]:
    """Return the cells of a row of a Markdown table; none for another line."""
    text = line.strip()
    return [cell.strip() for cell in text.strip("|").split("|")] if text.startswith("|") and text.endswith("|") else []


def object_of(value: Any) -> dict[str, Any]:
    """Return the value if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}
