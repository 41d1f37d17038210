"""Triton's perf_analyzer CSV: inferences/s and microseconds per concurrency or request rate.

The table names neither model nor hardware; the file's place may. Percentiles are of a request, which carries one batch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from migrations.cells import Cell, Named
from migrations.documents import Document
from migrations.identity import NOT_STATED
from migrations.paths import hardware_part, model_part, parts, spaced
from migrations.records import Record, Refused
from migrations.tables import pick, rows_of, share_of_rows
from migrations.values import count, quantity, scaled

_MS_PER_US = 1e-3
_PERCENTILES = ("p50", "p90", "p95", "p99")
_GENERIC = re.compile(
    r"(?:perf(?:[-_ ]?analyzer)?|results?|output|data|latency|report|bench(?:mark)?)[-_\d]*", re.IGNORECASE
)


def recognise(document: Document) -> float:
    """Sure by its columns."""
    return 0.95 * share_of_rows(document, "Inferences/Second", "Client Send", "Client Recv")


def read(document: Document) -> Iterator[Record | Refused]:
    """One record per row."""
    path = document.source_path
    model = model_part(path) or next((part for part in parts(path)[:2] if not _GENERIC.fullmatch(part)), None)
    place = hardware_part(path)
    for pointer, row in rows_of(document):
        cell = Cell(
            path,
            pointer,
            Named((pick(row, "Model") or model,), spaced(place) if place else NOT_STATED, runtime="triton"),
            original={
                "concurrency": count(pick(row, "Concurrency"), at_least=1),
                "request_rate": quantity(pick(row, "Request Rate")),
                "said_by_path": {"model": model, "hardware": place},
                "stated": {
                    f"{name} (us)": value
                    for name in row
                    if name.startswith(("Client", "Server", "Network")) and (value := quantity(row[name])) is not None
                },
            },
        )
        figures = {f"latency_{which}_ms": scaled(pick(row, f"{which} latency"), _MS_PER_US) for which in _PERCENTILES}
        figures["latency_mean_ms"] = scaled(pick(row, "Avg latency"), _MS_PER_US)
        figures["throughput_items_per_s"] = quantity(pick(row, "Inferences/Second"))
        size = {"batch_size": count(pick(row, "Batch Size", "Batch"), at_least=1)}
        if not any(figures.values()):
            yield cell.result("failed", size, reason="the row holds no figure")
        else:
            yield cell.result("ok", {**size, **figures}, units={"latency": "us", "Inferences/Second": "items/s"})
