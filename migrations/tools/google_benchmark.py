"""Rows of Google Benchmark (JSON or CSV), one per repetition or aggregate, in the row's `time_unit`.

Repetitions of one name become one result whose samples are the mean times of an iteration. Aggregates (mean, median,
stddev, cv) are statistics of these, and stand alone only without repetitions. Fitted complexities (BigO, RMS) are no
times.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from migrations.normalize.record_builder import CellDraft
from migrations.normalize.records import NoResult, Record, RefusedCell, refuse
from migrations.normalize.row_access import text_of
from migrations.normalize.units import TO_MS, count, number, quantity
from migrations.tools import microbenchmark

_COARSE_NS = 100
_FITS = {"BigO", "RMS"}
_STATISTICS = {
    "mean": "latency_mean_ms", "median": "latency_p50_ms", "stddev": "latency_std_ms", "min": "latency_min_ms",
    "max": "latency_max_ms",
}  # fmt: skip
_HOST = ("host_name", "num_cpus", "mhz_per_cpu", "executable", "cpu_scaling_enabled", "caches")
_COUNTED = {
    "name", "run_name", "run_type", "iterations", "real_time", "cpu_time", "time_unit", "repetitions",
    "repetition_index", "threads", "family_index", "per_family_instance_index", "aggregate_name", "aggregate_unit",
}  # fmt: skip

Row = tuple[str, dict[str, Any]]
"""A row and its pointer."""


@dataclass(frozen=True)
class GoogleBenchmarkRun:
    """One run of a benchmark program: the file, and what its context says of the host."""

    source_path: str
    context: Mapping[str, Any]

    def results(self, rows: Iterable[tuple[str, Any]]) -> Iterator[Record | RefusedCell | NoResult]:
        """Yield one record per name and number of threads; a row with an error is a failure."""
        groups: dict[tuple[str, Any], list[Row]] = defaultdict(list)
        for pointer, row in rows:
            if not isinstance(row, dict):
                yield refuse(pointer, "unexpected_shape", "an object was expected", row)
            elif _is_flag_set(row.get("error_occurred")) or _is_flag_set(row.get("skipped")):
                reason = text_of(row.get("error_message") or row.get("skip_message")) or "an error without a message"
                yield self._cell(pointer, _name(row), row).result("failed", {}, reason=reason)
            elif _aggregate(row) in _FITS:
                yield NoResult(pointer, "a fitted complexity")
            else:
                groups[_name(row), str(row.get("threads"))].append((pointer, row))
        for (name, _), members in groups.items():
            yield self._group(name, members)

    def _group(self, name: str, rows: Sequence[Row]) -> Record | RefusedCell:
        singles = [(pointer, row) for pointer, row in rows if row.get("run_type") != "aggregate"]
        aggregates = {_aggregate(row): row for _, row in rows if row.get("run_type") == "aggregate"}
        pointer, first = (singles or rows)[0]
        figures = _repetitions(singles) or {
            field_name: _ms(aggregates[key], "real_time")
            for key, field_name in _STATISTICS.items()
            if key in aggregates
        }
        if not figures and first.get("aggregate_unit") != "percentage":
            figures = {"latency_mean_ms": _ms(first, "real_time")}
        rate = quantity(first.get("items_per_second"))
        cell = self._cell(pointer, name, first, [row for _, row in rows])
        if not any(figures.values()):
            return cell.result("failed", {}, reason="no time in a row of this name, only shares of one")
        iterations = count(first.get("iterations"))
        return cell.result(
            "ok",
            {**figures, "iterations": iterations, "throughput_items_per_s": rate or None},
            units={"real_time": str(first.get("time_unit") or "ns")},
        )

    def _cell(self, pointer: str, name: str, row: dict[str, Any], rows: Sequence[Any] = ()) -> CellDraft:
        context = self.context
        return microbenchmark.cell(
            self.source_path,
            pointer,
            name,
            tool="google-benchmark",
            times=(context.get("date"),),
            host={key: context.get(key) for key in ("host_name", "num_cpus", "mhz_per_cpu") if context.get(key)},
            software={"library": str(context["library_version"])} if context.get("library_version") else {},
            original={
                "rows": [{key: row_[key] for key in row_ if key != "name"} for row_ in rows] or None,
                "context": {
                    key: context.get(key) for key in (*_HOST, "library_build_type") if context.get(key) is not None
                },
                "counters": {
                    key: value for key, value in row.items() if key not in _COUNTED and number(value) is not None
                },
            },
        )


def _is_flag_set(value: Any) -> bool:
    """Return whether the flag is True, or `true` in a table."""
    return value is True or str(value).strip().casefold() == "true"


def _repetitions(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the mean time of an iteration in each repetition.

    Whole nanoseconds are too coarse for the quickest code, so there only the mean over repetitions is kept.
    """
    times = [ms for _, row in rows if (ms := _ms(row, "real_time")) is not None]
    if not times:
        return {}
    if min(times) * 1e6 >= _COARSE_NS and max(times) * 1e6 < 2**63:
        return {"samples_ns": tuple(round(ms * 1e6) for ms in times)}
    return {"latency_mean_ms": sum(times) / len(times)}


def _name(row: Mapping[str, Any]) -> str:
    """Return the timed name: `run_name`, or the name without the aggregate's suffix."""
    name = str(row.get("run_name") or row.get("name") or "")
    aggregate = str(row.get("aggregate_name") or "")
    return name.removesuffix(f"_{aggregate}") if aggregate else name


def _aggregate(row: Mapping[str, Any]) -> str:
    return str(row.get("aggregate_name") or str(row.get("name")).rpartition("_")[2])


def _ms(row: Mapping[str, Any], key: str) -> float | None:
    factor = TO_MS.get(str(row.get("time_unit") or "ns"))
    time = quantity(row.get(key))
    return None if time is None or factor is None else time * factor
