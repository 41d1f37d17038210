"""One model in the browser: `platform` (webgpu, webnn, wasm) beside `metrics{inference_time_ms, load_time_ms, …}`.

Many say `REAL_WEBGPU` and `is_simulation: true` at once; that is for `rules.py`. The batch size is not stated.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from migrations.normalize.canonical_names import hardware_named
from migrations.normalize.field_aliases import completed, other_figures, stated_ms
from migrations.normalize.record_builder import CellDraft, NamesInFile, outcome, reason_unless_ok
from migrations.normalize.records import Part, child
from migrations.normalize.row_access import object_of
from migrations.normalize.units import count, quantity
from migrations.sources.documents import Document

_UNITS = {
    "inference_time_ms": "ms",
    "load_time_ms": "ms",
    "memory_mb": "MiB, written MB",
    "throughput_items_per_second": "items/s",
}
_LATENCY = ("inference_time_ms", "average_inference_time_ms", "avg_inference_time_ms", "latency_ms")
_THROUGHPUT = ("throughput_items_per_second", "throughput_items_per_sec", "throughput")
_MEMORY = ("memory_mb", "memory_usage_mb", "peak_memory_mb")
_READ = (*_LATENCY, *_THROUGHPUT, *_MEMORY, "load_time_ms", "compilation_time_ms", "shader_compilation_time_ms")
_KEPT = ("implementation_type", "browser", "browser_version", "modality", "test_file", "headless", "model_key")


def detect(document: Document) -> float:
    """Return high confidence where a model and a browser platform stand beside metrics or a browser test's outcome."""
    value = document.value
    if not isinstance(value, dict) or hardware_named(value.get("platform")) not in ("webgpu", "webnn", "wasm"):
        return 0.0
    if not {"model_key", "model_name", "model"} & value.keys():
        return 0.0
    return 0.9 if {"metrics", "platform_support", "status", *_LATENCY} & value.keys() else 0.0


def parse(document: Document) -> Iterator[Part]:
    """Yield one record."""
    value = document.value
    metrics: dict[str, Any] = value if "metrics" not in value else object_of(value["metrics"])
    figures = {
        "latency_mean_ms": _first(metrics, _LATENCY),
        "load_ms": stated_ms(metrics.get("load_time_ms"), "ms"),
        "compile_ms": _first(metrics, ("compilation_time_ms", "shader_compilation_time_ms")),
        "memory_peak_mib": _first(metrics, _MEMORY),
        "throughput_items_per_s": _first(metrics, _THROUGHPUT),
    }
    figures = completed(figures, metrics, seconds=False)
    error = value.get("error") or metrics.get("error")
    status = outcome(value.get("status"), value.get("success"), figures=figures, error=error)
    names = (value.get("model_name"), value.get("model_key"), value.get("model"))
    cell = CellDraft(
        document.source_path,
        child("", "metrics") if "metrics" in value else "",
        NamesInFile(tuple(name for name in names if name), value["platform"], family=value.get("model_key")),
        times=(value.get("timestamp"),),
        original={**{key: value.get(key) for key in _KEPT}, "stated": other_figures(metrics, *_READ)},
    )
    size = {"batch_size": count(metrics.get("batch_size", value.get("batch_size")), at_least=1)}
    reason = reason_unless_ok(status, value, metrics, value.get("message"), value.get("status"))
    yield cell.result(status, {**size, **(figures if status == "ok" else {})}, reason=reason, units=_UNITS)


def _first(metrics: dict[str, Any], keys: tuple[str, ...]) -> float | None:
    return next((found for key in keys if (found := quantity(metrics.get(key))) is not None), None)
