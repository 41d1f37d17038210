"""The results of many skill tests in one file: `{"test_hf_bert": {flat results} or the error that ended it}`."""

from __future__ import annotations

from collections.abc import Iterator

from migrations.normalize.records import Part, child
from migrations.sources.documents import Document
from migrations.tools.legacy_skill_tests import is_body, read_body


def detect(document: Document) -> float:
    """Return high confidence where every key names a test script, and some value is a skill test's result."""
    value = document.value
    if not isinstance(value, dict) or not value or not all(str(key).startswith("test_") for key in value):
        return 0.0
    return 0.9 if any(is_body(body) for body in value.values()) else 0.0


def parse(document: Document) -> Iterator[Part]:
    """Yield the parts of each test; a test that only left an error message names no hardware and is refused with it."""
    for key, body in document.value.items():
        yield from read_body(document, child("", key), body, (key,), ())
