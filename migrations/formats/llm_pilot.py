"""LLM-Pilot's load tests: users at once against one text-generation service, milliseconds and tokens/s.

Requests vary in length; their means are rounded. A request joins whatever batch the service makes, so no batch size is
recorded. The source's time to the first token is shorter than reading the weights once. It is the time to the stream's
first message, and kept as a statement alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from migrations.normalize.canonical_names import hardware_named
from migrations.normalize.record_builder import CellDraft, Machine, NamesInFile
from migrations.normalize.records import Record, RefusedCell
from migrations.normalize.row_access import rows_of, share_of_rows, text_of
from migrations.normalize.units import count, number, quantity
from migrations.sources.documents import Document

_NEEDED = ("model", "gpu", "gpus", "users", "requests", "itl_ms_p50", "output_tokens_per_s")
_STATED = ("input_tokens_mean", "output_tokens_mean", "ttft_ms_p50", "ttft_ms_p90", "ttft_ms_p99", "itl_ms_mean",
           "itl_ms_p99")  # fmt: skip


def detect(document: Document) -> float:
    """Return high confidence by its columns."""
    return 0.95 * share_of_rows(document, *_NEEDED)


def parse(document: Document) -> Iterator[Record | RefusedCell]:
    """Yield one record per load test; one of which no request came through is a failure."""
    for pointer, row in rows_of(document):
        gpu, gpus = text_of(row["gpu"]), count(row["gpus"], at_least=1)
        hardware = hardware_named(gpu)
        name = f"{gpus} x {gpu}" if gpus and gpus > 1 else gpu
        requests, failed = count(row["requests"]) or 0, count(row.get("failed")) or 0
        cell = CellDraft(
            document.source_path,
            pointer,
            NamesInFile((row["model"],), gpu, precision=row.get("precision"), runtime="tgis"),
            machine=Machine(
                device_names={hardware: name} if hardware and name else {},
                software={"tgis": "unknown version"},
                settings={"devices": gpus},
            ),
            original={
                "devices": gpus,
                "concurrency": count(row["users"], at_least=1),
                "failed_requests": failed,
                "stated": {key: number(row.get(key)) for key in _STATED},
                "note": "lengths are means over the requests",
            },
        )
        seconds = quantity(row.get("duration_s"))
        figures: dict[str, Any] = {
            "mode": "generation",
            "sequence_length": _rounded(row.get("input_tokens_mean")),
            "output_tokens": _rounded(row.get("output_tokens_mean")),
            "iterations": requests - failed if requests >= failed else None,
        }
        if requests <= failed:
            reason = f"{failed} of {requests} requests failed"
            yield cell.result("failed", {"mode": "generation"}, reason=reason)
            continue
        figures |= {
            "latency_p50_ms": quantity(row.get("latency_ms_p50")) or None,
            "time_per_output_token_ms": quantity(row["itl_ms_p50"]) or None,
            "throughput_items_per_s": (requests - failed) / seconds if seconds else None,
            "throughput_tokens_per_s": quantity(row["output_tokens_per_s"]) or None,
        }
        yield cell.result("ok", figures, units={"latency_ms_p50": "ms per request", "itl_ms_p50": "ms per token"})


def _rounded(value: Any) -> int | None:
    mean = number(value)
    return max(round(mean), 1) if mean and mean > 0 else None
