"""Exports of the old database's describing tables: models, hardware, runs, integration tests. No figure is in them."""

from __future__ import annotations

from collections.abc import Iterable

from migrations.normalize.flat_rows import is_result_row
from migrations.sources.documents import Document

NOT_RESULTS = "a table of the old database that describes models, hardware, runs or tests"

_TABLES = (
    {"model_id", "model_name", "model_family"},
    {"hardware_id", "hardware_type"},
    {"hardware_type", "device_name", "compute_units"},
    {"run_id", "test_name", "test_type"},
    {"test_result_id", "test_name", "status"},
    {"assertion_id", "assertion_name", "passed"},
    {"feature_id", "compute_shader_support"},
)
_FIGURES = ("latency", "throughput", "inference", "is_compatible", "per_second", "load_time")


def detect(document: Document) -> float:
    """Return high confidence where the columns hold those of one table, and none is a figure."""
    columns = document.columns
    if not columns and isinstance(document.value, list):
        rows = document.value
        if not rows or not all(isinstance(row, dict) and row.keys() == rows[0].keys() for row in rows):
            return 0.0
        columns = tuple(rows[0])
    if document.kind == "tables" or is_result_row(columns) or _has_figure(columns):
        return 0.0
    return 0.7 if any(table <= set(columns) for table in _TABLES) else 0.0


def _has_figure(columns: Iterable[str]) -> bool:
    return any(word in str(column) for column in columns for word in _FIGURES)
