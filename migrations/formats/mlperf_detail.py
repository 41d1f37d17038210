"""MLPerf inference's `mlperf_log_detail.txt`: `:::MLLOG` lines of JSON, of which `result_*` keys hold the figures.

Some systems write the same objects as plain JSON Lines. What the load generator was asked to do is in other keys.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from migrations.normalize.records import NoResult, Part
from migrations.normalize.row_access import first_positive
from migrations.normalize.units import quantity
from migrations.sources.documents import Document
from migrations.tools import mlperf

_MARK = ":::MLLOG"
_LOAD_GENERATOR = ("loadgen_", "requested_", "effective_", "result_", "error")
"""Beginnings of keys that MLPerf inference's load generator writes."""
_RATES = (
    "result_samples_per_second", "result_completed_samples_per_sec", "result_scheduled_samples_per_sec",
    "result_qps_without_loadgen_overhead", "result_qps_with_loadgen_overhead",
)  # fmt: skip
_TOKENS = ("result_tokens_per_second", "result_completed_tokens_per_second")
_NAMES = {
    "mean": "result_mean_latency_ns", "min": "result_min_latency_ns", "max": "result_max_latency_ns",
    "percentile": "result_{}_percentile_latency_ns",
}  # fmt: skip


def detect(document: Document) -> float:
    """Return high confidence where marked lines, or objects with the load generator's keys, make up the log."""
    if document.kind == "text":
        return 0.95 if any(line.startswith(_MARK) for line in document.value[:50]) else 0.0
    rows = document.value if document.kind == "json_lines" else []
    keyed = [row for row in rows[:200] if {"key", "value", "time_ms"} <= row.keys()]
    return 0.9 if rows and len(keyed) == len(rows[:200]) else 0.0


def parse(document: Document) -> Iterator[Part]:
    """Yield one record, at the first line with a result. A log without results is of a run that broke off: a
    failure. MLPerf training, whose logs have the same marks, times no step.
    """
    found: dict[str, Any] = {}
    first = None
    errors = []
    for number, entry in _entries(document):
        key, value = str(entry.get("key")), entry.get("value")
        found[key] = value
        if first is None and key.startswith("result_"):
            first = number
        if entry.get("is_error") or key.startswith("error"):
            errors.append(str(value))
    if found and not any(key.startswith(_LOAD_GENERATOR) for key in found):
        yield NoResult("", "a log of MLPerf training: it times the way to an accuracy, and no single step")
        return
    requested = str(found.get("requested_test_mode") or found.get("effective_test_mode") or "")
    if "accuracy" in requested.casefold() or not found:
        return
    scenario = mlperf.scenario_of(found.get("effective_scenario") or found.get("requested_scenario"))
    figures = {
        "batch_size": mlperf.batch_of(scenario, found.get("effective_samples_per_query")),
        "throughput_items_per_s": first_positive(found, *_RATES),
        "throughput_tokens_per_s": first_positive(found, *_TOKENS),
        **mlperf.latencies(found, scenario, _NAMES),
    }
    about = {
        "scenario": found.get("effective_scenario") or found.get("requested_scenario"),
        "validity": found.get("result_validity"),
        "loadgen": found.get("loadgen_version"),
        "stated": {
            key: value for key, value in found.items() if key.startswith("result_") and quantity(value) is not None
        },
    }
    when = found.get("test_datetime")
    cell = mlperf.cell_of(document.source_path, f"/{first or 0}", found.get("sut_name"), when, about)
    if any(value for key, value in figures.items() if key != "batch_size"):
        yield cell.result("ok", figures, units={"latency_ns": "ns", "samples_per_sec": "items/s"})
    else:
        yield cell.result("failed", {}, reason=errors[0] if errors else "the log holds no result")


def _entries(document: Document) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(document.value):
        value = line
        if isinstance(line, str):
            if not line.startswith(_MARK):
                continue
            try:
                value = json.loads(line[len(_MARK) :])
            except ValueError:
                continue
        if isinstance(value, dict):
            yield number, value
