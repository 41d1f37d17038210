"""Results of one skill test: nested `status`/`examples`/`metadata`, or flat keys that begin with a hardware name."""

from __future__ import annotations

from collections.abc import Iterator

from migrations.normalize.records import NoResult, Part
from migrations.sources.documents import Document
from migrations.tools.legacy_skill_tests import is_body, read_body


def detect(document: Document) -> float:
    """Return high confidence where some key is a hardware name and a check (`cuda_init`), at the top or under
    `status`.
    """
    if document.kind != "json" or not is_body(document.value):
        return 0.0
    return 0.9 if isinstance(document.value.get("status"), dict) and "examples" in document.value else 0.8


def parse(document: Document) -> Iterator[Part]:
    """Yield one record per example, timed operation and failure; one per hardware that only says it succeeded."""
    parts = read_body(document, "", document.value, (), ())
    yield from parts or [NoResult("", "a skill test without an outcome for any hardware")]
