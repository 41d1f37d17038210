"""Databases of the old framework in one file: its two schemas and the converter's own, with their tables joined.

A run's raw document, where it is stored, is read in place of the rows that were computed from it.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from migrations.normalize.flat_rows import is_result_row, row_part
from migrations.normalize.records import EmbeddedDocument, NoResult, Part, child, refuse
from migrations.normalize.units import NS_PER_MS, samples_ns
from migrations.sources.databases import Rows
from migrations.sources.documents import Document

_DESCRIBING = {"models", "hardware_platforms", "test_runs", "benchmark_runs", "hardware_info", "benchmark_hardware",
               "webgpu_advanced_features", "schema_version", "migrations"}  # fmt: skip
_RESULTS = {"performance_results", "benchmark_results", "benchmark_performance", "web_platform_results",
            "hardware_compatibility", "benchmark_compatibility", "cross_platform_compatibility"}  # fmt: skip
_TESTS = {"integration_test_results", "integration_test_assertions", "test_results"}
_SPECIAL = {"performance_batch_results", "raw_benchmark_data"}
_KEYS = {"hardware_id", "hardware_type", "result_id", "test_result_id", "assertion_id", "model_family", "raw_data"}
"""Columns of the old schemas that others hardly have."""
_KNOWN = _DESCRIBING | _RESULTS | _TESTS | _SPECIAL


def detect(document: Document) -> float:
    """Return high confidence where tables with names of the old schemas have their keys, or are all empty.

    Other people's databases may have a table `benchmark_results` as well.
    """
    tables = document.value if document.kind == "tables" else {}
    known = [rows for name, rows in tables.items() if name in _KNOWN]
    columns = {column for rows in known for row in rows[:1] for column in row}
    of_runs = "run_id" in columns and "benchmark_runs" in tables
    return 0.9 if known and (not columns or of_runs or columns & _KEYS) else 0.0


def parse(document: Document) -> Iterator[Part]:
    """Yield the results of every table; a table nobody knows is refused with its rows."""
    tables: dict[str, Rows] = document.value
    joined = _JoinedTables(tables)
    batches = _by(tables.get("performance_batch_results", []), "result_id")
    raw = {_key(row.get("run_id")) for row in tables.get("raw_benchmark_data", []) if _document(row) is not None}
    for name, rows in tables.items():
        at = child("", name)
        if not rows:
            yield NoResult(at, f"the table {name}, without a row")
        elif name in _DESCRIBING or name in _TESTS:
            yield NoResult(at, f"the table {name}, which holds no result")
        elif name == "raw_benchmark_data":
            yield from _raw(at, rows)
        elif name == "performance_batch_results":
            yield from _orphans(at, rows, tables.get("performance_results", []))
        elif name not in _RESULTS and not is_result_row(rows[0]):
            yield refuse(at, "unknown_table", f"no reader knows the table {name} ({', '.join(rows[0])})", rows)
        else:
            for index, row in enumerate(rows):
                where = child(at, index)
                if name == "benchmark_results" and _key(row.get("run_id")) in raw:
                    yield NoResult(where, "a row computed from a raw document, which is read instead")
                    continue
                own = batches.get(_key(row.get("result_id")), []) if name == "performance_results" else []
                yield row_part(document.source_path, where, joined.row(row), samples_ns=_samples(row, own))


class _JoinedTables:
    """Rows joined with the tables that describe their model, hardware and run."""

    def __init__(self, tables: Mapping[str, Rows]) -> None:
        self._models = _first_by(tables.get("models", []), "model_id")
        self._hardware = _first_by(tables.get("hardware_platforms", []), "hardware_id")
        self._runs = _first_by(tables.get("test_runs", []), "run_id") | _first_by(
            tables.get("benchmark_runs", []), "id"
        )
        self._devices = _first_by(tables.get("hardware_info", []), "run_id")

    def row(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return the row, completed by its model, hardware and run. A browser platform outranks both."""
        run = self._runs.get(_key(row.get("run_id")), {})
        described = {
            **{key: run.get(key) for key in ("timestamp", "started_at", "model_id", "device", "precision")},
            **{key: self._devices.get(_key(row.get("run_id")), {}).get(key) for key in ("device_type", "device_name")},
            **{k: v for k, v in self._hardware.get(_key(row.get("hardware_id")), {}).items() if k in _OF_HARDWARE},
            **{k: v for k, v in self._models.get(_key(row.get("model_id")), {}).items() if k in _OF_MODEL},
        }
        if row.get("platform") in ("webgpu", "webnn"):
            described["hardware_type"] = row["platform"]
        return {
            **{k: v for k, v in described.items() if v is not None},
            **{k: v for k, v in row.items() if v is not None},
        }


_OF_HARDWARE = ("hardware_type", "device_name", "driver_version", "platform_version")
_OF_MODEL = ("model_name", "model_family")


def _samples(row: Mapping[str, Any], batches: Rows) -> tuple[int, ...]:
    """Return the times of a result's batches, if all have its batch size; else none."""
    if any(batch.get("batch_size") != row.get("batch_size") or not batch.get("latency_ms") for batch in batches):
        return ()
    ordered = sorted(batches, key=lambda batch: str(batch.get("batch_index")).zfill(12))
    return samples_ns([batch["latency_ms"] for batch in ordered], ns_per_unit=NS_PER_MS)


def _orphans(at: str, rows: Rows, results: Rows) -> Iterator[Part]:
    """Yield batches that did not become samples: of another size than their result, or of no result."""
    owners = _first_by(results, "result_id")
    own = _by(rows, "result_id")
    for index, row in enumerate(rows):
        owner = owners.get(_key(row.get("result_id")))
        if owner is None:
            yield refuse(child(at, index), "result_missing", "the batch belongs to no result in this file", row)
        elif not _samples(owner, own[_key(row.get("result_id"))]):
            reason = "the batches of this result differ in size or lack a time: they are no samples of one cell"
            yield refuse(child(at, index), "unlike_batches", reason, row)
    if rows:
        yield NoResult(at, "batches of results, read as their samples")


def _raw(at: str, rows: Rows) -> Iterator[Part]:
    for index, row in enumerate(rows):
        where, value = child(child(at, index), "raw_data"), _document(row)
        if value is None:
            yield refuse(where, "unexpected_shape", "a JSON document was expected", row)
        else:
            yield EmbeddedDocument(where, value)


def _document(row: Mapping[str, Any]) -> Any:
    raw = row.get("raw_data")
    try:
        return json.loads(raw) if isinstance(raw, str) else raw
    except ValueError:
        return None


def _by(rows: Rows, column: str) -> dict[str, Rows]:
    found: dict[str, Rows] = defaultdict(list)
    for row in rows:
        found[_key(row.get(column))].append(row)
    return found


def _first_by(rows: Rows, column: str) -> dict[str, dict[str, Any]]:
    return {key: group[0] for key, group in _by(rows, column).items() if key != "None"}


def _key(value: Any) -> str:
    """Return one key for a number and its text."""
    return str(value)
