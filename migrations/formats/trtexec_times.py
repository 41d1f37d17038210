"""`trtexec --exportTimes`: queries with the milliseconds of each part; it names neither model nor GPU."""

from __future__ import annotations

from collections.abc import Iterator

from migrations.normalize.path_hints import hardware_part, model_part, parts
from migrations.normalize.record_builder import CellDraft, NamesInFile
from migrations.normalize.records import Record, RefusedCell
from migrations.normalize.row_access import rows_of, share_of_rows, strays_of
from migrations.normalize.units import NS_PER_MS, samples_ns
from migrations.sources.documents import Document

_NEEDED = ("computeMs", "latencyMs")


def detect(document: Document) -> float:
    """Return high confidence where every query has its latency and computing time."""
    return 0.95 if document.kind == "json" and share_of_rows(document, *_NEEDED) >= 0.9 else 0.0


def parse(document: Document) -> Iterator[Record | RefusedCell]:
    """Yield one record with every query's latency as a sample."""
    rows = [row for _, row in rows_of(document)]
    path = document.source_path
    model = model_part(path) or next(iter(parts(path)), None)
    place = hardware_part(path)
    cell = CellDraft(
        path,
        "",
        NamesInFile((model,), "cuda", runtime="tensorrt"),
        original={"hardware": place or "TensorRT", "said_by_path": {"model": model, "hardware": place}},
    )
    samples = samples_ns([row.get("latencyMs") for row in rows], ns_per_unit=NS_PER_MS)
    strays = sum(1 for _ in strays_of(document))
    if not samples or strays:
        yield cell.result("failed", {}, reason="a query of the list has no latency")
    else:
        yield cell.result("ok", {"samples_ns": samples, "iterations": len(samples)}, units={"latencyMs": "ms"})
