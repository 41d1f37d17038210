"""MLPerf Endpoints' `result_summary.json`: one load on an endpoint, in nanoseconds.

It names neither model nor hardware: its place may.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from migrations.normalize.records import Part
from migrations.normalize.row_access import object_of, pick, text_of
from migrations.normalize.units import count, quantity
from migrations.sources.documents import Document
from migrations.tools.load_report import LoadReport, record, statistics

_MS_PER_NS = 1e-6
_NAMES = {"avg": "mean", "median": "p50", "std_dev": "std", "min": "min", "max": "max"}
_PERCENTILES = {"50": "p50", "90": "p90", "95": "p95", "99": "p99"}


def detect(document: Document) -> float:
    """Return high confidence where counts of issued and completed samples stand beside first tokens and latency."""
    value = object_of(document.value) if document.kind == "json" else {}
    needed = {"n_samples_issued", "n_samples_completed", "ttft", "tpot", "latency"}
    return 0.95 if needed <= value.keys() else 0.0


def parse(document: Document) -> Iterator[Part]:
    """Yield one record; a run that was interrupted is a failure."""
    value = document.value
    pattern = object_of(object_of(value.get("run_config")).get("load_pattern"))
    report = LoadReport(
        answered=count(value.get("n_samples_completed")),
        failed=count(value.get("n_samples_failed")),
        concurrency=pick(pattern, "target_concurrency", "concurrency"),
        request_rate=pick(pattern, "target_qps", "qps"),
        input_tokens=quantity(object_of(value.get("input_sequence_lengths")).get("avg")),
        output_tokens=quantity(object_of(value.get("output_sequence_lengths")).get("avg")),
        first_token_ms=_of(value.get("ttft")),
        output_token_ms=_of(value.get("tpot")),
        whole_ms=_of(value.get("latency")),
        requests_per_s=quantity(value.get("qps")),
        output_tokens_per_s=quantity(value.get("tps")),
        stated={"state": text_of(value.get("state")), "version": text_of(value.get("version"))},
    )
    if value.get("state") == "interrupted":
        report = LoadReport(error="the run was interrupted", failed=report.failed, stated=report.stated)
    yield record(report, document.source_path, "")


def _of(found: Any) -> dict[str, float]:
    metric: Mapping[str, Any] = object_of(found)
    percentiles = {key.removesuffix(".0"): value for key, value in object_of(metric.get("percentiles")).items()}
    return {**statistics(metric, _MS_PER_NS, _NAMES), **statistics(percentiles, _MS_PER_NS, _PERCENTILES)}
