"""A configuration of optimum-benchmark: what was to be run, which the report beside it refers to."""

from __future__ import annotations

from migrations.sources.documents import Document
from migrations.tools.optimum import is_config

NOT_RESULTS = "the configuration of a benchmark, read together with the report beside it"


def detect(document: Document) -> float:
    """Return high confidence where a backend is configured and nothing is reported."""
    value = document.value
    return 0.9 if isinstance(value, dict) and is_config(value) and "report" not in value else 0.0
