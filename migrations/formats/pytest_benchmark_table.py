"""pytest-benchmark's CSV (`--benchmark-csv`, `pytest-benchmark compare --csv`): seconds, one row per test."""

from __future__ import annotations

from collections.abc import Iterator

from migrations.normalize.records import Record, RefusedCell
from migrations.normalize.row_access import pick, rows_of, share_of_rows
from migrations.normalize.units import count
from migrations.sources.documents import Document
from migrations.tools import microbenchmark


def detect(document: Document) -> float:
    """Return high confidence where rows of a name have mean, deviation and rounds."""
    if document.kind != "csv":
        return 0.0
    return 0.9 * share_of_rows(document, "name", "min", "max", "mean", "stddev", "rounds")


def parse(document: Document) -> Iterator[Record | RefusedCell]:
    """Yield one record per row."""
    for pointer, row in rows_of(document):
        others = {name: row[name] for name in row if name.startswith("param:") or name in ("group", "ops", "iqr")}
        name = pick(row, "fullname", "name")
        cell = microbenchmark.cell(document.source_path, pointer, name, tool="pytest-benchmark", original=others)
        figures = microbenchmark.latencies(row)
        if not any(figures.values()):
            yield cell.result("failed", {}, reason="the row holds no time")
        else:
            yield cell.result("ok", {**figures, "iterations": count(row.get("rounds"))}, units={"mean": "s"})
