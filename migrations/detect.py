"""Detection of a document's format by its content, and a description of unknown documents."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from migrations.formats import Format, all_formats
from migrations.normalize.collections_within import documents_within, holds_documents
from migrations.sources.documents import Document

SURE_ENOUGH = 0.5
"""Below this no reader is given the document: a wrong reading is worse than a quarantine."""

SURE_INSIDE = 0.9
"""Inside a document that nobody knows only what is beyond doubt is taken for a document of its own."""
COLLECTION = "collection"

_KEYS_SHOWN = 24


def detect_format(document: Document, formats: Iterable[Format] | None = None) -> Format | None:
    """Return the format that is surest of the document, None where none is sure enough.

    An unknown JSON document that holds known ones is a collection of them.
    """
    if document.kind == "unreadable":
        return None
    candidates = all_formats() if formats is None else tuple(formats)
    best, confidence = _surest(document, candidates)
    if confidence >= SURE_ENOUGH:
        return best
    if document.kind != "json":
        return None

    def known(value: Any) -> bool:
        found, sure = _surest(Document(document.content, "json", value), candidates)
        return found is not None and found.not_results is None and sure >= SURE_INSIDE

    if not holds_documents(document, known):
        return None
    return Format(COLLECTION, lambda _: SURE_ENOUGH, lambda whole: documents_within(whole, known))


def _surest(document: Document, formats: Iterable[Format]) -> tuple[Format | None, float]:
    best, confidence = None, 0.0
    for candidate in formats:
        sure = candidate.detect(document)
        if sure > confidence:
            best, confidence = candidate, sure
    return best, confidence


def describe(document: Document) -> str:
    """Return the keys of a document two levels deep, or its columns, as a hint for a new reader."""
    if document.kind in ("csv", "rows"):
        return f"{'CSV' if document.kind == 'csv' else 'Parquet'} with columns {_some(document.columns)}"
    if document.kind == "tables":
        return f"a database with the tables {_shape(document.value, 1)}"
    if document.kind == "text":
        return f"{len(document.value)} lines of text"
    if document.kind == "json_lines":
        return f"{len(document.value)} JSON lines, the first {_shape(document.value[0], 1)}"
    return f"JSON {_shape(document.value, 2)}"


def _shape(value: Any, depth: int) -> str:
    if isinstance(value, dict):
        if depth == 0:
            return "{…}"
        return "{" + _some(f"{key}: {_shape(member, depth - 1)}" for key, member in value.items()) + "}"
    if isinstance(value, list):
        return f"[{len(value)} x {_shape(value[0], depth)}]" if value else "[]"
    return {str: "text", bool: "true/false", int: "number", float: "number"}.get(type(value), "null")


def _some(parts: Iterable[str]) -> str:
    every = list(parts)
    rest = len(every) - _KEYS_SHOWN
    return ", ".join(every[:_KEYS_SHOWN]) + (f", and {rest} more" if rest > 0 else "")
