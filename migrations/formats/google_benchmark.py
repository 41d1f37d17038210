"""Google Benchmark's JSON: rows of times under `benchmarks`, the host under `context`. As CSV it is another format."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from migrations.normalize.records import Part, pointer_to
from migrations.normalize.row_access import object_of
from migrations.sources.documents import Document
from migrations.tools import google_benchmark


def detect(document: Document) -> float:
    """Return high confidence where rows have a name and real and processor time, beside a context."""
    value = object_of(document.value)
    rows = value.get("benchmarks")
    if not isinstance(rows, list) or not isinstance(value.get("context"), dict):
        return 0.0
    named = [row for row in rows if isinstance(row, dict) and "name" in row]
    return 0.95 if len(named) >= 0.5 * len(rows) and _has_times(named) else 0.0


def parse(document: Document) -> Iterator[Part]:
    """Yield one record per name and number of threads."""
    run = google_benchmark.GoogleBenchmarkRun(document.source_path, document.value["context"])
    yield from run.results((pointer_to("benchmarks", i), row) for i, row in enumerate(document.value["benchmarks"]))


def _has_times(rows: Sequence[Any]) -> bool:
    timed = ("real_time", "cpu_time", "error_occurred", "rms", "big_o")
    return any(key in row for row in rows for key in timed) if rows else True
