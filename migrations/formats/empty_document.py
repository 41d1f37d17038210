"""Files that hold an empty list or object: somebody collected results, and there were none."""

from __future__ import annotations

from migrations.sources.documents import Document

NOT_RESULTS = "an empty list or object"


def detect(document: Document) -> float:
    """Return high confidence where there is nothing."""
    return 0.9 if document.kind == "json" and document.value in ([], {}) else 0.0
