"""The benchmark suite's CSV `model_id, hardware, batch_size, sequence_length, timestamp, error`: rows of failures.

No figure column is known of it; a row without an error is a success that nobody measured, which `suspicion.py` says.
"""

from __future__ import annotations

from collections.abc import Iterator

from migrations.cells import Cell, Named
from migrations.documents import Document
from migrations.records import Record, Refused, child
from migrations.values import count

_NEEDED = {"model_id", "hardware", "batch_size", "sequence_length", "error"}


def recognise(document: Document) -> float:
    """Sure by its columns; the last one is what sets it apart."""
    return 0.9 if document.kind == "csv" and set(document.columns) >= _NEEDED else 0.0


def read(document: Document) -> Iterator[Record | Refused]:
    """One record per row."""
    for index, row in enumerate(document.value):
        named = Named((row["model_id"],), row["hardware"])
        others = {name: text for name, text in row.items() if name not in _NEEDED | {"timestamp"}}
        cell = Cell(document.source_path, child("", index), named, (row.get("timestamp"),), original=others)
        size = {
            "batch_size": count(row["batch_size"], at_least=1),
            "sequence_length": count(row["sequence_length"], at_least=1),
        }
        if row["error"].strip():
            yield cell.result("failed", size, reason=row["error"].strip())
        else:
            yield cell.result("ok", size)
