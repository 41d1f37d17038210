"""Direct benchmarks of one model: `batch_results.{"1"}{latencies_ms[], throughput_items_per_second, memory_mb}`.

`memory_mb` is the resident memory of the process at the end of the batch size. That is no peak, so it stays a statement
of the file, under `original`.
"""

from __future__ import annotations

from collections.abc import Iterator

from migrations.normalize.field_aliases import batch_in, completed, other_figures
from migrations.normalize.record_builder import CellDraft, NamesInFile, outcome, reason_unless_ok, status_of
from migrations.normalize.records import Record, RefusedCell, child, refuse
from migrations.normalize.units import NS_PER_MS, count, quantity, samples_ns
from migrations.sources.documents import Document

_UNITS = {
    "latencies_ms": "ms",
    "throughput_items_per_second": "items/s",
    "memory_mb": "MiB, written MB; resident at the end",
}


def detect(document: Document) -> float:
    """Return high confidence where `batch_results` has batch sizes as keys, beside a model and hardware."""
    value = document.value
    if not isinstance(value, dict) or not {"model", "hardware"} <= value.keys():
        return 0.0
    batches = value.get("batch_results", {})
    if not isinstance(batches, dict):
        return 0.0
    if not batches:
        return 0.6 if "success" in value and ("batch_results" in value or "error" in value) else 0.0
    return 0.95 if any(batch_in(str(key)) is not None for key in batches) else 0.0


def parse(document: Document) -> Iterator[Record | RefusedCell]:
    """Yield one record per batch size; a run without any is one record about the model as a whole."""
    value = document.value
    named, path = NamesInFile((value.get("model"),), value.get("hardware")), document.source_path
    batches = value.get("batch_results") or {}
    if not batches:
        status = status_of(value.get("success"))
        reason = reason_unless_ok(status, value, value.get("success"))
        place = "/batch_results" if "batch_results" in value else ""
        yield CellDraft(path, place, named, (value.get("timestamp"),)).result(status, {}, reason=reason)
    for key, content in batches.items():
        pointer = child("/batch_results", key)
        if not isinstance(content, dict):
            yield refuse(pointer, "unexpected_shape", "an object was expected", content)
            continue
        batch_size = count(content.get("batch_size"), at_least=1) or batch_in(key)
        if batch_size is None:
            yield refuse(pointer, "unexpected_shape", f"no cell is read from batch size {key!r}", content)
            continue
        samples = samples_ns(content.get("latencies_ms"), ns_per_unit=NS_PER_MS)
        mean_ms = quantity(content.get("avg_latency_ms"))
        figures = {
            "samples_ns": samples,
            "latency_mean_ms": None if samples else mean_ms,
            "throughput_items_per_s": quantity(content.get("throughput_items_per_second")),
        }
        figures = completed(figures, {k: v for k, v in content.items() if k != "memory_mb"}, seconds=False)
        whole = None if content.get("error") else value.get("success")
        flags = (content.get("success"), content.get("status"), whole)
        status = outcome(*flags, figures=figures, error=content.get("error"))
        stated = {"memory_mb": quantity(content.get("memory_mb")), "avg_latency_ms": mean_ms if samples else None}
        stated |= other_figures(content)
        original = {
            "device": content.get("device"),
            "stated": {k: v for k, v in stated.items() if v is not None} or None,
        }
        times = (content.get("timestamp"), value.get("timestamp"))
        yield CellDraft(path, pointer, named, times, original=original).result(
            status,
            {
                "batch_size": batch_size,
                **(figures if status == "ok" else {}),
            },
            reason=reason_unless_ok(status, content, value, content.get("success")),
            units=_UNITS,
        )
