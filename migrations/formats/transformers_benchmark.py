"""ONNX Runtime's `benchmark.py` of transformers: rows by engine, model, batch and length, in milliseconds."""

from __future__ import annotations

from collections.abc import Iterator

from migrations.normalize.record_builder import CellDraft, Machine, NamesInFile
from migrations.normalize.records import Record, RefusedCell
from migrations.normalize.row_access import pick, rows_of, share_of_rows, text_of
from migrations.normalize.units import count, quantity
from migrations.sources.documents import Document

_NEEDED = ("engine", "device", "precision", "model_name", "batch_size", "average_latency_ms")
_UNITS = {"average_latency_ms": "ms", "latency_95_percentile": "ms", "QPS": "items/s"}
_SETTINGS = ("optimizer", "io_binding", "providers", "inputs", "custom_layer_num", "use_gpu", "memory_pool")


def detect(document: Document) -> float:
    """Return high confidence by its columns."""
    return 0.95 * share_of_rows(document, *_NEEDED)


def parse(document: Document) -> Iterator[Record | RefusedCell]:
    """Yield one record per row."""
    for pointer, row in rows_of(document):
        engine, version = text_of(pick(row, "engine")), text_of(pick(row, "version"))
        cell = CellDraft(
            document.source_path,
            pointer,
            NamesInFile((row.get("model_name"),), row.get("device"), precision=pick(row, "precision"), runtime=engine),
            times=(row.get("datetime"),),
            machine=Machine(
                software={engine: version} if engine and version else {},
                threads=count(pick(row, "threads"), at_least=1),
                settings={name: pick(row, name) for name in _SETTINGS},
            ),
            original={"engine": engine},
        )
        size = {
            "batch_size": count(pick(row, "batch_size"), at_least=1),
            "sequence_length": count(pick(row, "sequence_length"), at_least=1),
        }
        figures = {
            "latency_mean_ms": quantity(pick(row, "average_latency_ms")),
            **{f"latency_p{which}_ms": quantity(pick(row, f"latency_{which}_percentile")) for which in (90, 95, 99)},
            "throughput_items_per_s": quantity(pick(row, "QPS", "throughput")),
            "iterations": count(pick(row, "test_times")),
        }
        if not any(value for name, value in figures.items() if name != "iterations"):
            reason = text_of(pick(row, "error", "exception")) or "the row holds no figure"
            yield cell.result("failed", size, reason=reason)
        else:
            yield cell.result("ok", {**size, **figures}, units=_UNITS)
