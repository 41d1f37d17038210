"""Cards of one model on one hardware: `batch_sizes.{"1"}{throughput, latency_ms, memory_usage_mb, success}`.

Most known cards were invented. `suspicion/rules.py` marks them; here they are read as they stand.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from migrations.normalize.field_aliases import batch_in, completed, other_figures
from migrations.normalize.record_builder import CellDraft, NamesInFile, outcome, reason_unless_ok, status_of
from migrations.normalize.records import Record, RefusedCell, child, refuse
from migrations.normalize.units import quantity
from migrations.sources.documents import Document

_UNITS = {"latency_ms": "ms", "throughput": "items/s", "memory_usage_mb": "MiB, written MB"}
_CELL_KEYS = {"throughput", "latency_ms", "memory_usage_mb", "success", "error"}


def detect(document: Document) -> float:
    """Return high confidence where `batch_sizes` is an object of cells with a figure or an outcome, beside a model and
    hardware.
    """
    value = document.value
    if not isinstance(value, dict) or not isinstance(value.get("batch_sizes"), dict | list):
        return 0.0
    if not {"model", "model_key", "model_path"} & value.keys() or not {"hardware", "hardware_key"} & value.keys():
        return 0.0
    if not value["batch_sizes"]:
        return 0.6 if value.keys() & {"compatible", "success", "error"} else 0.0
    cells = [cell for _, _, cell in _cells(value["batch_sizes"]) if isinstance(cell, dict)]
    return 0.9 if any(_CELL_KEYS & cell.keys() for cell in cells) else 0.0


def parse(document: Document) -> Iterator[Record | RefusedCell]:
    """Yield one record per batch size."""
    value = document.value
    named = NamesInFile(
        (value.get("model_path"), value.get("model_key"), value.get("model")),
        value.get("hardware_key") or value.get("hardware"),
        family=value.get("model_category"),
    )
    if not value["batch_sizes"]:
        flags = value.get("success", value.get("compatible", False))
        status = "failed" if value.get("error") else status_of(flags)
        reason = reason_unless_ok(status, value, flags)
        yield CellDraft(document.source_path, "/batch_sizes", named, (value.get("timestamp"),)).result(
            status, {}, reason=reason
        )
    for pointer, key, content in _cells(value["batch_sizes"]):
        batch_size = batch_in(key)
        if not isinstance(content, dict) or batch_size is None:
            yield refuse(pointer, "unexpected_shape", f"no cell is read from batch size {key!r}", content)
            continue
        times = (content.get("timestamp"), value.get("timestamp"))
        original = {
            "model_shown": value.get("model"),
            "command": content.get("command"),
            "stated": other_figures(content),
        }
        figures = {
            "latency_mean_ms": quantity(content.get("latency_ms")),
            "throughput_items_per_s": quantity(content.get("throughput")),
            "memory_peak_mib": quantity(content.get("memory_usage_mb")),
        }
        figures = completed(figures, content, seconds=False)
        flags = (content.get("success"), content.get("status"))
        status = outcome(*flags, figures=figures, error=content.get("error"))
        yield CellDraft(document.source_path, pointer, named, times, original=original).result(
            status,
            {"batch_size": batch_size, **(figures if status == "ok" else {})},
            reason=reason_unless_ok(status, content, value, content.get("success")),
            units=_UNITS,
        )


def _cells(batch_sizes: Any) -> Iterator[tuple[str, str, Any]]:
    """Yield pointer, batch size as text, and cell; in a list each cell has its batch size inside."""
    if isinstance(batch_sizes, dict):
        yield from ((child("/batch_sizes", key), str(key), cell) for key, cell in batch_sizes.items())
        return
    for index, cell in enumerate(batch_sizes):
        size = cell.get("batch_size") if isinstance(cell, dict) else None
        yield child("/batch_sizes", index), str(size), cell
