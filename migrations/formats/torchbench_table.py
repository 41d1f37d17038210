"""PyTorch's dynamo benchmarks: `dev, name, batch_size, speedup, abs_latency, …` per model, milliseconds.

`speedup` is over eager mode on the same machine; `compilation_latency` is seconds; peak memories are decimal GB. A
table of accuracy alone (`pass`, `fail_…`) tells which models worked: those rows have no figure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from migrations.normalize.canonical_names import hardware_named
from migrations.normalize.path_hints import parts
from migrations.normalize.record_builder import CellDraft, Machine, NamesInFile
from migrations.normalize.records import Record, RefusedCell
from migrations.normalize.row_access import pick, rows_of, share_of_rows, text_of
from migrations.normalize.units import MIB_PER_GB, MS_PER_S, count, number, quantity, scaled
from migrations.sources.documents import Document

_STATED = (
    "speedup", "compression_ratio", "eager_peak_mem", "dynamo_peak_mem", "calls_captured", "unique_graphs",
    "graph_breaks", "unique_graph_breaks", "tflops", "pct_ops", "cudagraph_skips",
)  # fmt: skip
_PASSES = ("pass", "pass_due_to_skip", "true", "ok")
_PRECISIONS = ("amp", "amp_bf16", "amp_fp16", "float32", "bfloat16", "float16", "int8")


def detect(document: Document) -> float:
    """Return high confidence where rows name a device, a model, and how fast or right it was."""
    named = share_of_rows(document, "dev", "name")
    has_figures = any(
        share_of_rows(document, column) for column in ("speedup", "abs_latency", "accuracy", "latency_ms")
    )
    return 0.95 * named if has_figures else 0.0


def parse(document: Document) -> Iterator[Record | RefusedCell]:
    """Yield one record per row. A latency of 0 is how the runner writes a model that failed."""
    words = "-".join(parts(document.source_path)[:2]).replace("_", "-").split("-")
    mode = "training" if "training" in words or "train" in words else "inference"
    for pointer, row in rows_of(document):
        batch = count(row.get("batch_size"), at_least=1)
        latency = quantity(pick(row, "abs_latency", "latency_ms"))
        accuracy = text_of(pick(row, "accuracy"))
        cell = _cell(document.source_path, pointer, row)
        size = {"mode": mode, "batch_size": batch}
        if latency:
            figures = {
                "latency_p50_ms": latency,
                "compile_ms": scaled(pick(row, "compilation_latency"), MS_PER_S),
                "memory_device_peak_mib": scaled(pick(row, "dynamo_peak_mem"), MIB_PER_GB) or None,
            }
            yield cell.result("ok", {**size, **figures}, units={"abs_latency": "ms", "compilation_latency": "s"})
        elif accuracy is not None and accuracy.casefold() in _PASSES:
            yield cell.result("ok", size)
        elif latency is None and quantity(pick(row, "speedup")):
            yield cell.result("ok", size, units={"speedup": "over eager"})
        else:
            reason = (
                accuracy or text_of(pick(row, "error", "status")) or "the runner gives no time, which is how it fails"
            )
            yield cell.result("failed", size, reason=reason)


def _cell(source_path: str, pointer: str, row: Mapping[str, Any]) -> CellDraft:
    hardware = hardware_named(row.get("dev"))
    name = parts(source_path)[0] if source_path else ""
    words = name.replace("-", "_").split("_")
    precision = text_of(pick(row, "precision", "dtype")) or next(
        (text for text in _PRECISIONS if text.split("_") == [w for w in words if w in text.split("_")]), None
    )
    device = text_of(pick(row, "device_name", "gpu_name"))
    return CellDraft(
        source_path,
        pointer,
        NamesInFile((row.get("name"),), row.get("dev"), precision=precision, runtime="pytorch"),
        machine=Machine(
            device_names={hardware: device} if hardware and device else {},
            settings={"compiler": text_of(pick(row, "compiler", "backend"))},
        ),
        original={
            "file": name,
            "accuracy": pick(row, "accuracy"),
            "stated": {key: value for key in _STATED if (value := number(pick(row, key))) is not None},
        },
    )
