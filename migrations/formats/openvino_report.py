"""OpenVINO benchmark_app's JSON: `cmd_options`, `configuration_setup` and `execution_results`, in milliseconds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from migrations.normalize.records import Record, RefusedCell
from migrations.normalize.row_access import object_of
from migrations.sources.documents import Document
from migrations.tools import benchmark_app

_SECTIONS = ("cmd_options", "configuration_setup", "execution_results")


def detect(document: Document) -> float:
    """Return high confidence where results stand beside options or setup, or where the results alone have the tool's
    names.
    """
    value = object_of(document.value)
    results = object_of(value.get("execution_results"))
    known = {"throughput", "latency_median", "latency_avg", "latency_average", "latency_min", "latency_values"}
    if "execution_results" in value and value.keys() & {"cmd_options", "configuration_setup"}:
        return 0.95
    if {"cmd_options", "configuration_setup"} <= value.keys():
        return 0.8  # the report of a run that broke off
    return 0.9 if results.keys() & known else 0.0


def parse(document: Document) -> Iterator[Record | RefusedCell]:
    """Yield one record; a run with several data shapes keeps the latencies of each."""
    found: dict[str, Any] = {}
    for section in _SECTIONS:
        for name, value in object_of(document.value.get(section)).items():
            if not isinstance(value, dict | list):
                found[benchmark_app.plain(name)] = value
    groups = object_of(document.value.get("execution_results")).get("latency_values")
    if isinstance(groups, list) and len(groups) == 1:
        found |= {benchmark_app.plain(name): value for name, value in object_of(groups[0]).items()}
    yield benchmark_app.result(
        document.source_path, "/execution_results" if "execution_results" in document.value else "", found
    )
