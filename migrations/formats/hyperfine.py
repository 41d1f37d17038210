"""hyperfine: seconds of whole commands, with the time of each run where it is JSON. Commands are timed, no models.

With `--ignore-failure` it times commands that fail; one of which no run ended well is a failure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from migrations.normalize.records import Record, RefusedCell, child, refuse
from migrations.normalize.row_access import object_of, rows_of, text_of
from migrations.normalize.units import NS_PER_S, quantity, samples_ns
from migrations.sources.documents import Document
from migrations.tools import microbenchmark

_COLUMNS = ("command", "mean", "stddev", "median", "user", "system")


def detect(document: Document) -> float:
    """Return high confidence where every result has a command with user and system time."""
    if document.kind == "csv":
        return 0.95 if set(document.columns) >= set(_COLUMNS) else 0.0
    results = object_of(document.value).get("results")
    if not isinstance(results, list) or not results:
        return 0.0
    return 0.95 if any({"command", "mean", "user"} <= object_of(entry).keys() for entry in results) else 0.0


def parse(document: Document) -> Iterator[Record | RefusedCell]:
    """Yield one record per command."""
    rows: list[tuple[str, Any]] = list(rows_of(document))
    if document.kind != "csv":
        rows = [(child("/results", i), entry) for i, entry in enumerate(document.value["results"])]
    for pointer, row in rows:
        if not isinstance(row, dict):
            yield refuse(pointer, "unexpected_shape", "an object was expected", row)
            continue
        cell = microbenchmark.cell(
            document.source_path,
            pointer,
            text_of(row.get("command")),
            tool="hyperfine",
            original={
                "parameters": row.get("parameters"),
                "exit_codes": row.get("exit_codes"),
                "stated": {f"{name}_s": quantity(row.get(name)) for name in ("user", "system")},
            },
        )
        samples = samples_ns(row.get("times"), ns_per_unit=NS_PER_S)
        figures = {"samples_ns": samples} if samples else microbenchmark.latencies(row)
        if not any(figures.values()):
            yield cell.result("failed", {}, reason="the result holds no time")
        elif (codes := row.get("exit_codes")) and isinstance(codes, list) and 0 not in codes:
            yield cell.result("failed", {}, reason=f"every run failed, the first with exit code {codes[0]}")
        else:
            yield cell.result("ok", figures, units={"mean": "s", "times": "s"})
