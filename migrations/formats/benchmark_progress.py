"""Progress of a series of benchmarks: which were done and which failed to start. What they measured lies elsewhere."""

from __future__ import annotations

from migrations.sources.documents import Document

NOT_RESULTS = "the progress log of a series of benchmarks"


def detect(document: Document) -> float:
    """Return high confidence where completed and failed benchmarks are lists."""
    value = document.value
    if not isinstance(value, dict):
        return 0.0
    lists = [isinstance(value.get(key), list) for key in ("completed_benchmarks", "failed_benchmarks")]
    return 0.9 if all(lists) else 0.0
