"""Per-model performance files: `metadata{timestamp, model, execution_time}` around the results of one skill test.

`execution_time` is that of the whole script, loading included, and no figure of any cell.
"""

from __future__ import annotations

from collections.abc import Iterator

from migrations.normalize.records import NoResult, Part
from migrations.sources.documents import Document
from migrations.tools.legacy_skill_tests import is_body, read_body


def detect(document: Document) -> float:
    """Return high confidence where metadata name a test file or model and `results` is the body of a skill test."""
    value = document.value
    if not isinstance(value, dict) or not isinstance(value.get("metadata"), dict) or "results" not in value:
        return 0.0
    if not value["metadata"].keys() & {"test_file", "execution_time"}:
        return 0.0
    return 0.9 if is_body(value["results"]) else 0.6


def parse(document: Document) -> Iterator[Part]:
    """Yield the parts of the results."""
    metadata = document.value["metadata"]
    models = (metadata.get("model"), metadata.get("model_name"), metadata.get("test_file"))
    parts = read_body(document, "/results", document.value["results"], models, (metadata.get("timestamp"),))
    yield from parts or [NoResult("/results", "a skill test without an outcome for any hardware")]
