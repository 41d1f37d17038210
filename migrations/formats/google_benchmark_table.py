"""Google Benchmark's CSV, also behind the lines about the host that it prints first, and the table on its console.

Neither says which row is an aggregate but by its name: `X_mean`, `X_median` and `X_stddev` beside one another are of X.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from migrations.normalize.records import Part, child
from migrations.normalize.row_access import rows_of
from migrations.sources.documents import Document
from migrations.tools import google_benchmark

_HEADER = ("name", "iterations", "real_time", "cpu_time", "time_unit")
_TITLE = re.compile(r"Benchmark\s+Time\s+CPU(?:\s+Iterations.*)?")
_ROW = re.compile(
    r"(?P<name>\S.*?)\s+(?P<real>[\d.e+]+) (?P<unit>ns|us|ms|s|%)\s+(?P<cpu>[\d.e+]+) (?:ns|us|ms|s|%)\s+"
    r"(?P<iterations>\d+)(?P<counters>(?:\s+\S+=\S+)*).*"
)
_FAILED = re.compile(r"(?P<name>\S+)\s+ERROR OCCURRED: '(?P<message>.*)'")
_DATE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\S*")
_AGGREGATE = re.compile(r"(?P<name>.+)_(?P<which>mean|median|stddev|cv|min|max|BigO|RMS)")


def detect(document: Document) -> float:
    """Return high confidence by the header of the CSV, or by that of the console's table with rows beneath."""
    if document.kind == "csv":
        return 0.95 if set(document.columns) >= set(_HEADER) else 0.0
    if document.kind != "text":
        return 0.0
    if _csv_starts(document.value) is not None:
        return 0.95
    titled = any("CPU" in line and _TITLE.fullmatch(line.strip()) for line in document.value[:400])
    return 0.9 if titled and any(_ROW.fullmatch(line.strip()) for line in document.value) else 0.0


def parse(document: Document) -> Iterator[Part]:
    """Yield one record per name."""
    context: dict[str, Any] = {}
    if document.kind == "csv":
        rows = list(rows_of(document))
    else:
        dates = (found[0] for line in document.value[:20] if (found := _DATE.match(line.strip())))
        context = {"date": next(dates, None)}
        start = _csv_starts(document.value)
        rows = list(_printed(document.value) if start is None else _behind(document.value, start))
    yield from google_benchmark.GoogleBenchmarkRun(document.source_path, context).results(_with_aggregates(rows))


def _csv_starts(lines: list[str]) -> int | None:
    header = ",".join(_HEADER)
    return next((number for number, line in enumerate(lines[:400]) if line.startswith(header)), None)


def _behind(lines: list[str], start: int) -> Iterator[tuple[str, dict[str, Any]]]:
    names = lines[start].strip().split(",")
    for number, line in enumerate(lines[start + 1 :], start + 1):
        values = next(csv.reader([line]), [])
        if len(values) == len(names):
            yield child("", number), dict(zip(names, values, strict=True))


def _printed(lines: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, line in enumerate(lines):
        if found := _FAILED.match(line.strip()):
            yield child("", number), {"name": found["name"], "error_occurred": True, "error_message": found["message"]}
        elif found := _ROW.fullmatch(line.strip()):
            unit = {"aggregate_unit": "percentage"} if found["unit"] == "%" else {"time_unit": found["unit"]}
            row = {"name": found["name"], "real_time": found["real"], "cpu_time": found["cpu"], **unit}
            yield child("", number), {**row, "iterations": found["iterations"]}


def _with_aggregates(rows: list[tuple[str, dict[str, Any]]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the rows as in the JSON, where an aggregate names its repetitions."""
    found = {pointer: _AGGREGATE.fullmatch(str(row.get("name"))) for pointer, row in rows}
    suffixes = Counter(match["name"] for match in found.values() if match)
    for pointer, row in rows:
        match = found[pointer]
        if match and suffixes[match["name"]] > 1:
            about = {"run_name": match["name"], "run_type": "aggregate", "aggregate_name": match["which"]}
            percentage = {"aggregate_unit": "percentage"} if match["which"] == "cv" else {}
            yield pointer, {**row, **about, **percentage}
        else:
            yield pointer, row
