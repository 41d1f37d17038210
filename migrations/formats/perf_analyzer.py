"""Triton's perf_analyzer CSV: inferences/s and microseconds per concurrency or request rate.

The table names neither model nor hardware; the file's place may. Percentiles are of a request, which carries one batch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from migrations.normalize.canonical_names import NOT_STATED
from migrations.normalize.path_hints import hardware_part, model_part, parts, spaced
from migrations.normalize.record_builder import CellDraft, NamesInFile
from migrations.normalize.records import Record, RefusedCell
from migrations.normalize.row_access import pick, rows_of, share_of_rows
from migrations.normalize.units import BYTES_PER_MIB, MS_PER_US, count, quantity, scaled
from migrations.sources.documents import Document

_PERCENTILES = ("p50", "p90", "p95", "p99")
_PER_GPU = re.compile(r"(?P<uuid>GPU-[\w-]+):(?P<value>[\d.]+)")
_ENDING = re.compile(r"[-_](?:results?|perf|report|output)$", re.IGNORECASE)
_GENERIC = re.compile(
    r"(?:perf(?:[-_ ]?analyzer)?|results?|output|data|latency|report|bench(?:mark)?)[-_\d]*", re.IGNORECASE
)


def detect(document: Document) -> float:
    """Return high confidence by its columns."""
    return 0.95 * share_of_rows(document, "Inferences/Second", "Client Send", "Client Recv")


def parse(document: Document) -> Iterator[Record | RefusedCell]:
    """Yield one record per row."""
    path = document.source_path
    model = model_part(path) or next(
        (_ENDING.sub("", part) for part in parts(path)[:2] if not _GENERIC.fullmatch(part)), None
    )
    place = hardware_part(path)
    for pointer, row in rows_of(document):
        # Triton serves on NVIDIA's GPUs: where one was watched, it was on them.
        gpus = sorted({found["uuid"] for value in row.values() for found in _PER_GPU.finditer(value)})
        hardware = spaced(place) if place else "cuda" if gpus else NOT_STATED
        cell = CellDraft(
            path,
            pointer,
            NamesInFile((pick(row, "Model") or model,), hardware, runtime="triton"),
            original={
                "concurrency": count(pick(row, "Concurrency"), at_least=1),
                "request_rate": quantity(pick(row, "Request Rate")),
                "gpu_uuids": gpus,
                "said_by_path": {"model": model, "hardware": place},
                "stated": {
                    f"{name} (us)": value
                    for name in row
                    if name.startswith(("Client", "Server", "Network")) and (value := quantity(row[name])) is not None
                },
            },
        )
        figures = {f"latency_{which}_ms": scaled(pick(row, f"{which} latency"), MS_PER_US) for which in _PERCENTILES}
        figures["latency_mean_ms"] = scaled(pick(row, "Avg latency"), MS_PER_US)
        figures["throughput_items_per_s"] = quantity(pick(row, "Inferences/Second"))
        used = [
            float(found["value"]) / BYTES_PER_MIB for found in _PER_GPU.finditer(row.get("Max GPU Memory Usage", ""))
        ]
        figures["memory_device_peak_mib"] = max(used, default=None)
        size = {"batch_size": count(pick(row, "Batch Size", "Batch"), at_least=1)}
        if not any(figures.values()):
            yield cell.result("failed", size, reason="the row holds no figure")
        else:
            yield cell.result("ok", {**size, **figures}, units={"latency": "us", "Inferences/Second": "items/s"})
