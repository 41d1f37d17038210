"""The benchmark suite's CSV `model_id, hardware, batch_size, sequence_length, timestamp, error`, and what more it has.

A run that failed has no further column. Those of one that worked are read by their names. A row with neither error nor
figure is a success that nobody measured, as `rules.py` says.
"""

from __future__ import annotations

from collections.abc import Iterator

from migrations.normalize.field_aliases import named_figures
from migrations.normalize.record_builder import CellDraft, NamesInFile
from migrations.normalize.records import Record, RefusedCell, child
from migrations.normalize.units import count
from migrations.sources.documents import Document

_NEEDED = {"model_id", "hardware", "batch_size", "sequence_length", "error"}


def detect(document: Document) -> float:
    """Return high confidence by its columns; the last one is what sets it apart."""
    return 0.9 if document.kind in ("csv", "rows") and set(document.columns) >= _NEEDED else 0.0


def parse(document: Document) -> Iterator[Record | RefusedCell]:
    """Yield one record per row."""
    for index, row in enumerate(document.value):
        named = NamesInFile((row["model_id"],), row["hardware"])
        others = {name: text for name, text in row.items() if name not in _NEEDED | {"timestamp"}}
        cell = CellDraft(document.source_path, child("", index), named, (row.get("timestamp"),), original=others)
        size = {
            "batch_size": count(row["batch_size"], at_least=1),
            "sequence_length": count(row["sequence_length"], at_least=1),
        }
        error = str(row["error"] or "").strip()
        if error:
            yield cell.result("failed", size, reason=error)
        else:
            yield cell.result("ok", {**size, **named_figures(others, seconds=False)})
