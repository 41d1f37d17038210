"""Flat result rows of the old database's `performance_results` and similar tables: one object, a list, CSV or Parquet.

Exports that name model and hardware only by number are refused row by row: the tables those numbers point to are not
in the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from migrations.normalize.flat_rows import is_of_the_old_framework, is_result_row, row_part
from migrations.normalize.records import NoResult, Part, child, refuse
from migrations.sources.documents import Document

_NESTED = ("status", "metadata", "batch_sizes")


def detect(document: Document) -> float:
    """Return high confidence by the columns of the rows; lower for a lone object."""
    if document.kind == "tables":
        return 0.0
    if document.columns:
        return 0.8 if is_result_row(document.columns) and is_of_the_old_framework(document.columns) else 0.0
    rows = _rows(document.value)
    known = sum(isinstance(row, dict) and is_result_row(row) for row in rows[:1000])
    flat = known > 0 and known >= 0.5 * len(rows[:1000])
    looked_at = [row for row in rows[:1000] if isinstance(row, dict)]
    if not flat or any(_is_nested(row) for row in looked_at):
        return 0.0
    return 0.9 if all(is_of_the_old_framework(row) for row in looked_at) else 0.0


def parse(document: Document) -> Iterator[Part]:
    """Yield one record per row."""
    rows = _rows(document.value)
    for index, row in enumerate(rows):
        pointer = child("", index) if isinstance(document.value, list) else ""
        if not isinstance(row, dict) or _is_nested(row):
            yield refuse(pointer, "unexpected_shape", "a row of figures was expected", row)
        else:
            yield row_part(document.source_path, pointer, row)
    if not rows:
        yield NoResult("", "a table without a row")


def _is_nested(row: dict[str, Any]) -> bool:
    """Return whether a row is a document of another format, with its figures in objects inside."""
    if any(isinstance(row.get(key), dict) for key in _NESTED):
        return True
    return not is_result_row(row) and any(isinstance(value, dict) for value in row.values())


def _rows(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
