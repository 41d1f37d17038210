"""Qualcomm AI Hub's tables and JSON `perf` files."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from migrations.normalize.records import Record, RefusedCell, pointer_to
from migrations.normalize.row_access import rows_of, share_of_rows
from migrations.sources.documents import Document
from migrations.tools import ai_hub


def detect(document: Document) -> float:
    """Return high confidence by the table's columns, or by entries of a `perf` file."""
    if share_of_rows(document, "device", "runtime", "inference_time_ms") == 1.0:
        return 0.95
    return 0.95 if any(True for _ in ai_hub.perf_entries(document.value)) else 0.0


def parse(document: Document) -> Iterator[Record | RefusedCell]:
    """Yield one record per row of the table, or per model, device and runtime of the file."""
    if isinstance(document.value, dict):
        for steps, _, row in ai_hub.perf_entries(document.value):
            yield ai_hub.record(document.source_path, pointer_to(*steps), row)
        return
    components: dict[Any, set[Any]] = defaultdict(set)
    for _, row in rows_of(document):
        components[str(row.get("model_id"))].add(str(row.get("component")))
    for pointer, row in rows_of(document):
        is_part = len(components[str(row.get("model_id"))]) > 1
        yield ai_hub.record(document.source_path, pointer, row, is_part=is_part)
