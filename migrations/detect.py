"""Detection of a document's format by its content, and a description of unknown documents."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from accel_platform.table_io.values import count_of
from migrations.formats import Format, all_formats
from migrations.normalize.collections_within import contains_documents, iter_documents
from migrations.sources.documents import Document

MIN_CONFIDENCE = 0.5
"""Minimum confidence for parsing, because a wrong reading is worse than a quarantine."""

MIN_EMBEDDED_CONFIDENCE = 0.9
"""Minimum confidence for a document embedded in an unknown one."""
COLLECTION = "collection"

_MAX_KEYS = 24


def detect_format(document: Document) -> Format | None:
    """Return the format that is surest of the document, None where none is sure enough.

    Unknown JSON that holds known documents, such as one per line, is a collection of them.
    """
    if document.kind == "unreadable":
        return None
    for last_resort in (False, True):
        candidates = [one for one in all_formats() if one.last_resort == last_resort]
        best, confidence = _best_match(document, candidates)
        if confidence >= MIN_CONFIDENCE:
            return best
        # Reports of tools inside are read as such, and not as rows of a table.
        if document.kind in ("json", "json_lines") and contains_documents(document, _known_among(candidates, document)):
            known = _known_among(all_formats(), document)
            return Format(COLLECTION, lambda _: MIN_CONFIDENCE, partial(iter_documents, known=known))
    return None


def _known_among(formats: Sequence[Format], document: Document) -> Callable[[Any], bool]:
    """Return a function that tells whether a value inside the document is a whole one of these formats."""

    def known(value: Any) -> bool:
        best, confidence = _best_match(Document(document.content, "json", value), formats)
        return best is not None and best.not_results is None and confidence >= MIN_EMBEDDED_CONFIDENCE

    return known


def _best_match(document: Document, formats: Iterable[Format]) -> tuple[Format | None, float]:
    best, highest = None, 0.0
    for candidate in formats:
        confidence = candidate.detect(document)
        if confidence > highest:
            best, highest = candidate, confidence
    return best, highest


def describe(document: Document) -> str:
    """Return the keys of a document two levels deep, or its columns, as a hint for a new reader."""
    if document.kind in ("csv", "rows"):
        return f"{'CSV' if document.kind == 'csv' else 'Parquet'} with columns {_join_first(document.columns)}"
    if document.kind == "tables":
        return f"a database with the tables {_shape(document.value, 1)}"
    if document.kind == "text":
        return f"{count_of(len(document.value), 'line')} of text"
    if document.kind == "json_lines":
        return f"{len(document.value)} JSON lines, the first {_shape(document.value[0], 1)}"
    return f"JSON {_shape(document.value, 2)}"


def _shape(value: Any, depth: int) -> str:
    if isinstance(value, dict):
        if depth == 0:
            return "{…}"
        return "{" + _join_first(f"{key}: {_shape(member, depth - 1)}" for key, member in value.items()) + "}"
    if isinstance(value, list):
        return f"[{len(value)} x {_shape(value[0], depth)}]" if value else "[]"
    return {str: "text", bool: "true/false", int: "number", float: "number"}.get(type(value), "null")


def _join_first(parts: Iterable[str]) -> str:
    every = list(parts)
    rest = len(every) - _MAX_KEYS
    return ", ".join(every[:_MAX_KEYS]) + (f", and {rest} more" if rest > 0 else "")
