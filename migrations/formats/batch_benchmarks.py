"""Several direct benchmarks started together: each model's own document in `results.{model}.benchmark_data`.

A model whose benchmark left no document is a failure with the message of its process.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from migrations.normalize.field_aliases import batch_in, completed
from migrations.normalize.record_builder import CellDraft, NamesInFile, reason_unless_ok, status_of
from migrations.normalize.records import EmbeddedDocument, Part, child, refuse
from migrations.normalize.units import quantity
from migrations.sources.documents import Document

_UNITS = {"latency_ms": "ms", "throughput": "items/s", "memory_mb": "MiB, written MB; resident at the end"}


def detect(document: Document) -> float:
    """Return high confidence where `results` holds runs by model, with a command or the data of a direct benchmark."""
    value = document.value
    if not isinstance(value, dict) or not isinstance(value.get("results"), dict):
        return 0.0
    runs = [run for run in value["results"].values() if isinstance(run, dict)]
    if any(isinstance(run.get("benchmark_data"), dict) for run in runs):
        return 0.9
    started = "models" in value and any(run.keys() & {"benchmark_data", "output_file", "command"} for run in runs)
    return 0.9 if started else 0.0


def parse(document: Document) -> Iterator[Part]:
    """Yield the documents inside, and one failure per model without one."""
    for model, run in document.value["results"].items():
        where = child("/results", model)
        if not isinstance(run, dict):
            yield refuse(where, "unexpected_shape", "an object was expected", run)
        elif isinstance(run.get("benchmark_data"), dict):
            yield EmbeddedDocument(child(where, "benchmark_data"), run["benchmark_data"])
        else:
            yield from _without_data(document, where, model, run)


def _without_data(document: Document, where: str, model: str, run: dict[str, Any]) -> Iterator[Part]:
    """Yield the run's own account: its summary by batch size, else its status."""
    whole = document.value
    named = NamesInFile((run.get("model") or model,), run.get("hardware") or whole.get("hardware"))
    times = (run.get("timestamp"), whole.get("timestamp"))
    summary = run["summary"] if isinstance(run.get("summary"), dict) else {}
    for size, figures in summary.items():
        at = child(child(where, "summary"), size)
        if not isinstance(figures, dict):
            yield refuse(at, "unexpected_shape", "an object was expected", figures)
            continue
        known = {
            "latency_mean_ms": quantity(figures.get("latency_ms")),
            "throughput_items_per_s": quantity(figures.get("throughput")),
        }
        others = {key: value for key, value in figures.items() if key != "memory_mb"}
        known = {"batch_size": batch_in(str(size)), **completed(known, others, seconds=False)}
        cell = CellDraft(
            document.source_path, at, named, times, original={"stated": {"memory_mb": figures.get("memory_mb")}}
        )
        yield cell.result("ok", known, units=_UNITS)
    if not summary:
        status = status_of(run.get("success", run.get("status")))
        original = {"command": run.get("command"), "stderr": run.get("stderr")}
        reason = reason_unless_ok(status, run, _last_line(run.get("stderr")), run.get("success"))
        yield CellDraft(document.source_path, where, named, times, original=original).result(status, {}, reason=reason)


def _last_line(text: Any) -> str | None:
    lines = text.strip().splitlines() if isinstance(text, str) else []
    return lines[-1] if lines else None
