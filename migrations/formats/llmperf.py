"""LLMPerf's summaries: `results_{metric}_s_{statistic}`, seconds per request, and the number of requests at once.

A request joins whatever batch the service makes, so no batch size is recorded; the service's hardware is not told.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from migrations.normalize.canonical_names import NOT_STATED, UNKNOWN_ENGINE
from migrations.normalize.path_hints import given_names, hardware_part, spaced
from migrations.normalize.record_builder import CellDraft, NamesInFile
from migrations.normalize.records import Record, RefusedCell
from migrations.normalize.row_access import object_of, pick, rows_of, share_of_rows
from migrations.normalize.units import MS_PER_S, count, number, quantity, scaled
from migrations.sources.documents import Document

_STATISTICS = {
    "mean": "mean", "min": "min", "max": "max", "stddev": "std", "quantiles_p50": "p50", "quantiles_p90": "p90",
    "quantiles_p95": "p95", "quantiles_p99": "p99",
}  # fmt: skip
_WHOLE, _FIRST = "results_end_to_end_latency_s", "results_ttft_s"
_EACH = "results_inter_token_latency_s"
_SECONDS_PER_MINUTE = 60


def detect(document: Document) -> float:
    """Return high confidence where a row has the number of requests at once and a request's latency."""
    return 0.95 * max(
        share_of_rows(document, "num_concurrent_requests", f"{_WHOLE}_mean"),
        share_of_rows(document, "num_concurrent_requests", "results") if _nested(document.value) else 0.0,
    )


def parse(document: Document) -> Iterator[Record | RefusedCell]:
    """Yield one record per summary."""
    for pointer, row in rows_of(document):
        found = _flat(row)
        place = hardware_part(document.source_path)
        concurrency = count(found.get("num_concurrent_requests"), at_least=1)
        cell = CellDraft(
            document.source_path,
            pointer,
            NamesInFile(
                (found.get("model"),),
                spaced(place) if place else NOT_STATED,
                runtime=given_names().engine or UNKNOWN_ENGINE,
            ),
            times=(found.get("timestamp"),),
            original={
                "hardware": place or NOT_STATED,
                "concurrency": concurrency,
                "stated": {
                    key.removeprefix("results_"): figure
                    for key, value in found.items()
                    if key.startswith("results_")
                    and key.endswith(("_mean", "_p50", "_p99", "rate"))
                    and (figure := number(value))
                },
            },
        )
        per_minute = quantity(found.get("results_num_completed_requests_per_min"))
        figures: dict[str, Any] = {
            **{
                f"latency_{field_name}_ms": scaled(found.get(f"{_WHOLE}_{statistic}"), MS_PER_S)
                for statistic, field_name in _STATISTICS.items()
            },
            "time_to_first_token_ms": _median_or_mean(found, _FIRST),
            "time_per_output_token_ms": _median_or_mean(found, _EACH),
            "throughput_items_per_s": per_minute / _SECONDS_PER_MINUTE if per_minute else None,
            "throughput_tokens_per_s": quantity(found.get("results_mean_output_throughput_token_per_s")) or None,
        }
        size = {"mode": "generation", "iterations": count(found.get("results_num_completed_requests"))}
        if not any(figures.values()):
            yield cell.result("failed", size, reason="the summary holds no figure")
        else:
            yield cell.result("ok", {**size, **figures}, units={"results_*_s": "s per request"})


def _nested(value: Any) -> bool:
    return "end_to_end_latency_s" in object_of(object_of(value).get("results"))


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    """Flatten the nesting of later versions: `results.ttft_s.quantiles.p50`."""
    found: dict[str, Any] = {}
    stack: list[tuple[str, Any, int]] = [("", row, 0)]
    while stack:
        name, value, depth = stack.pop()
        if isinstance(value, dict) and depth < 5:
            stack += [(f"{name}_{key}" if name else str(key), member, depth + 1) for key, member in value.items()]
        else:
            found[name] = value
    return found


def _median_or_mean(found: dict[str, Any], metric: str) -> float | None:
    return scaled(pick(found, f"{metric}_quantiles_p50", f"{metric}_mean"), MS_PER_S)
