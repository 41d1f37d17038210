"""Records of PyTorch's benchmark database, a metric each, as vLLM writes them beside its own file (`*.pytorch.json`).

The records of one run together are the tool's own row, and are read as that. Other benchmarks' metrics are refused by
name.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from migrations.normalize.path_hints import neighbors
from migrations.normalize.records import EmbeddedDocument, NoResult, Part, refuse
from migrations.normalize.row_access import object_of, rows_of, share_of_rows, strays_of, text_of
from migrations.sources.documents import Document

_OWN_ROWS = ({"request_throughput", "completed"}, {"avg_latency", "latencies"}, {"elapsed_time", "requests_per_second"})
_LISTS = {"latency": "latencies"}
"""Metrics of which every value counts, and the tool's own name for the list."""
_ARGUMENTS = ("batch_size", "input_len", "output_len", "tensor_parallel_size", "dtype")


def detect(document: Document) -> float:
    """Return high confidence where rows hold the values of one metric of a model."""
    if document.kind not in ("json", "json_lines") or not share_of_rows(document, "benchmark", "model", "metric"):
        return 0.0
    first = next((row for _, row in rows_of(document) if "metric" in row), {})
    return 0.95 if "benchmark_values" in object_of(first.get("metric")) else 0.0


def parse(document: Document) -> Iterator[Part]:
    """Yield the row of each run, at its first record."""
    for pointer, value in strays_of(document):
        yield refuse(pointer, "unexpected_shape", "an object was expected", value)
    stem = PurePosixPath(document.source_path.rpartition("!")[2]).name.partition(".pytorch")[0].casefold()
    if any(map(_is_own_row, neighbors(document, containing=stem))):
        yield NoResult("", "they repeat the run in the tool's own file beside them: import that one")
        return
    runs: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for pointer, record in rows_of(document):
        metric = object_of(record.get("metric"))
        about = [record.get("benchmark"), record.get("model"), metric.get("extra_info")]
        runs.setdefault(json.dumps(about, sort_keys=True, default=str), []).append((pointer, record))
    for records in runs.values():
        row = _row(record for _, record in records)
        if _is_own_row(row):
            yield EmbeddedDocument(records[0][0], row)
            continue
        for pointer, record in records:
            name = text_of(object_of(record.get("metric")).get("name"))
            yield refuse(pointer, "metric_unknown", f"no metric is called {str(name)[:100]!r} here", record)


def _is_own_row(value: Any) -> bool:
    return any(keys <= object_of(value).keys() for keys in _OWN_ROWS)


def _row(records: Iterator[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the records of a run as one row, under the tool's own names."""
    row: dict[str, Any] = {}
    for record in records:
        benchmark, metric = object_of(record.get("benchmark")), object_of(record.get("metric"))
        arguments = object_of(object_of(benchmark.get("extra_info")).get("args"))
        row |= {name: arguments[name] for name in _ARGUMENTS if arguments.get(name) not in (None, "auto")}
        row |= object_of(metric.get("extra_info"))
        name, values = str(metric.get("name")), metric.get("benchmark_values")
        if name in _LISTS:
            row[_LISTS[name]] = values
        elif isinstance(values, list) and values:
            row[name] = values[0]
        row.setdefault("model", object_of(record.get("model")).get("name"))
    return row
