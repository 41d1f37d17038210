"""Comparison of two snapshots: cells tested for a change, and differences of results, medians and matrix."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypedDict, cast
from uuid import UUID

import duckdb

from accel_platform.analysis.query.cells import CELL, CellShape, read_cells
from accel_platform.analysis.query.filters import Selection, require_known
from accel_platform.analysis.query.run_refs import RunSet
from accel_platform.analysis.query.setups import with_distinct_runtimes
from accel_platform.analysis.regressions.check import check
from accel_platform.analysis.regressions.decision import Decision
from accel_platform.analysis.regressions.thresholds import MIN_CHANGE_PERCENT, MIN_MEDIAN_CHANGE_PERCENT
from accel_platform.events.types import Measure, MeasuredSeries, Provenance
from accel_platform.warehouse.reader import Reader

_CELL = (*MeasuredSeries.model_fields, "image_size")
_MATRIX_CELL = ("model_id", "hardware", "device_id", "mode")

_RESULTS = "SELECT result_id::VARCHAR AS result_id, model_id, hardware, provenance FROM results"
# The matrix takes the mean, too, where a document states no median.
_MEDIANS = f"""
SELECT {", ".join(_CELL)}, quantile_cont(coalesce(latency_p50_ms, latency_mean_ms), 0.5) AS latency_ms,
    count(*) AS results
FROM usable_results
WHERE coalesce(latency_p50_ms, latency_mean_ms) IS NOT NULL
GROUP BY {", ".join(_CELL)}
"""
_MATRIX = f"SELECT {', '.join(_MATRIX_CELL)}, device_name, state, rating FROM compat_matrix"

_COUNTED = """
SELECT coalesce(a.model_id, b.model_id) AS model_id, coalesce(a.hardware, b.hardware) AS hardware,
    coalesce(a.provenance, b.provenance) AS provenance,
    count(*) FILTER (WHERE b.result_id IS NULL) AS added, count(*) FILTER (WHERE a.result_id IS NULL) AS removed
FROM results_after AS a
FULL JOIN results_before AS b ON a.result_id = b.result_id AND a.provenance = b.provenance
WHERE a.result_id IS NULL OR b.result_id IS NULL
GROUP BY ALL
ORDER BY added DESC, removed DESC, model_id, hardware, provenance
"""
_MOVED = f"""
SELECT {", ".join(f"a.{name}" for name in _CELL)}, b.latency_ms AS before_ms, a.latency_ms AS after_ms,
    100 * (a.latency_ms / b.latency_ms - 1) AS change_percent, b.results AS results_before, a.results AS results_after
FROM medians_after AS a
JOIN medians_before AS b ON {" AND ".join(f"a.{name} IS NOT DISTINCT FROM b.{name}" for name in _CELL)}
WHERE b.latency_ms > 0 AND abs(change_percent) >= $least
ORDER BY abs(change_percent) DESC, {", ".join(f"a.{name}" for name in _CELL)}
"""
_CHANGED = f"""
SELECT {", ".join(f"coalesce(a.{name}, b.{name}) AS {name}" for name in _MATRIX_CELL)},
    coalesce(a.device_name, b.device_name) AS device_name, b.state AS state_before, a.state AS state_after,
    b.rating AS rating_before, a.rating AS rating_after
FROM matrix_after AS a
FULL JOIN matrix_before AS b ON {" AND ".join(f"a.{name} IS NOT DISTINCT FROM b.{name}" for name in _MATRIX_CELL)}
WHERE a.state IS DISTINCT FROM b.state OR a.rating IS DISTINCT FROM b.rating
ORDER BY ALL
"""


class ResultCounts(TypedDict):
    """Results of one model, hardware name and provenance that came or went between two snapshots."""

    model_id: str
    hardware: str
    provenance: Provenance
    added: int
    removed: int
    """Results that are gone, or now have another provenance, under which they count as `added`."""


class MedianChange(TypedDict):
    """Move of a cell's median under one fingerprint; the first fields are those of `_CELL`."""

    model_id: str
    hardware: str
    choice: str | None
    device_id: str | None
    fingerprint: str | None
    mode: str
    precision: str | None
    batch_size: int | None
    sequence_length: int | None
    processes: int | None
    weights_sha256: str | None
    image_size: float | None
    before_ms: float
    after_ms: float
    change_percent: float
    results_before: int
    results_after: int


class MatrixChange(TypedDict):
    """Cell of the matrix whose state or rating changed; None where a snapshot lacks the cell."""

    model_id: str
    hardware: str
    device_id: str | None
    mode: str
    device_name: str | None
    state_before: str | None
    state_after: str | None
    rating_before: str | None
    rating_after: str | None


@dataclass(frozen=True)
class TableChanges:
    """Differences between two snapshots' tables."""

    before: str
    after: str
    results: list[ResultCounts]
    medians: list[MedianChange]
    matrix: list[MatrixChange]

    @property
    def added(self) -> int:
        return sum(row["added"] for row in self.results)

    @property
    def removed(self) -> int:
        return sum(row["removed"] for row in self.results)


def compare_tables(
    before: Reader, after: Reader, *, min_change_percent: float = MIN_MEDIAN_CHANGE_PERCENT
) -> TableChanges:
    """Return the differences between the tables of two snapshots, without a test for noise.

    A cell's median is that of all its usable results under one fingerprint; changes from `min_change_percent` on are
    listed. Raises WarehouseEmpty before the first publish.
    """
    with duckdb.connect(":memory:") as con:
        for name, sql in (("results", _RESULTS), ("medians", _MEDIANS), ("matrix", _MATRIX)):
            con.register(f"{name}_before", before.arrow(sql))
            con.register(f"{name}_after", after.arrow(sql))
        return TableChanges(
            before.snapshot_id,
            after.snapshot_id,
            cast("list[ResultCounts]", _rows(con, _COUNTED)),
            cast("list[MedianChange]", _rows(con, _MOVED, {"least": min_change_percent})),
            cast("list[MatrixChange]", _rows(con, _CHANGED)),
        )


def _rows(con: duckdb.DuckDBPyConnection, sql: str, parameters: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    cursor = con.execute(sql, parameters)
    names = [column[0] for column in cursor.description or ()]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


Verdict = Literal["slower", "faster", "fails now", "works now", "undecided", "same"]
_IDENTITY = ("model_id", "hardware", "choice", "device_id", "mode", "precision", "batch_size", "sequence_length",
             "output_tokens", "image_size", "processes")  # fmt: skip
_MEASURES: tuple[Measure, ...] = ("latency",)
_RUNS = "SELECT run_id FROM runs WHERE kind = 'benchmark'"
# Only runs that share a model with a new run can be compared with it.
_TOUCHED = """
SELECT DISTINCT run_id FROM results
WHERE list_contains($old, run_id) AND model_id IN (SELECT model_id FROM results WHERE list_contains($new, run_id))
"""
_SELECTED = f"SELECT DISTINCT {', '.join(_IDENTITY)} FROM results AS r WHERE {{condition}}"


class CellChange(CellShape):
    """A cell with results before and since; with its shape, the first fields are those of `_IDENTITY`."""

    model_id: str
    hardware: str
    choice: str | None
    device_id: str | None
    mode: str
    provenance: Provenance
    runtime: str | None
    """Runtime in words, where its hardware name has several; None for own measurements."""
    verdict: Verdict
    before_ms: float | None
    after_ms: float | None
    ratio: float | None
    """Median after over before; None if one side has only failures."""
    change_percent: float | None
    noise_percent: float | None
    p_value: float | None
    processes_before: int
    processes_after: int
    """Number of processes, or of results where it was not measured here."""
    reason: str | None
    evidence: list[UUID]


@dataclass(frozen=True)
class CellChanges:
    """Selected cells of two snapshots: those with a result before and another since in `rows`, the others counted."""

    before: str
    """Id of the earlier snapshot."""
    after: str
    """Id of the later snapshot."""
    rows: list[CellChange]
    only_before: int
    """Number of cells that have a result at the earlier snapshot, and none since that compares with it."""
    only_after: int
    """Number of cells whose first result came since."""


def compare_cells(
    before: Reader, after: Reader, selection: Selection, *, min_change_percent: float = MIN_CHANGE_PERCENT
) -> CellChanges:
    """Compare every cell that has results at the first snapshot and new ones up to the second.

    Own measurements are tested by their samples and the noise of their series. Imported and emulated figures have no
    samples, so only their medians are given: their verdict is `undecided`, or `same` where these moved by less than
    `min_change_percent`. Raises NotFound for an unknown name, and WarehouseEmpty before the first publish.
    """
    require_known(after, selection)
    rows = [
        *_measured_changes(before, after, selection, min_change_percent),
        *_unsampled_changes(before, after, selection, min_change_percent),
    ]
    old, new = ({_identity(cell) for cell in read_cells(reader, selection)} for reader in (before, after))
    again = {_identity(row) for row in rows}
    return CellChanges(before.snapshot_id, after.snapshot_id, rows, len(old - again), len(new - old - again))


def _identity(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in _IDENTITY)


def _measured_changes(before: Reader, after: Reader, selection: Selection, least: float) -> list[CellChange]:
    old, now = ({row["run_id"] for row in reader.rows(_RUNS)} for reader in (before, after))
    new = sorted(now - old)
    touched = after.rows(_TOUCHED, {"old": sorted(old), "new": new}) if new else []
    if not touched:
        return []
    earlier, later = RunSet("before", tuple(row["run_id"] for row in touched), None), RunSet("after", tuple(new), None)
    condition, values = selection.where()
    selected = {tuple(row.values()) for row in after.rows(_SELECTED.format(condition=condition), values)}
    return [
        _row(decision)
        for decision in check(after, earlier, later, min_change_percent=least, measures=_MEASURES).decisions
        if decision.processes_before
        and decision.processes_after
        and tuple(_cell_of(decision.series).values()) in selected
    ]


def _cell_of(series: MeasuredSeries) -> dict[str, Any]:
    """Return the cell of a series; without an image size, because own measurements are at the model's own."""
    return {name: getattr(series, name, None) for name in _IDENTITY}


def _row(decision: Decision) -> CellChange:
    failing = {"regressed": "fails now", "improved": "works now"} if decision.change_percent is None else {}
    words: dict[str, Verdict] = {"regressed": "slower", "improved": "faster", "ok": "same"}
    change = decision.change_percent
    fields = {
        **_cell_of(decision.series),
        "provenance": "measured",
        "runtime": None,
        "verdict": failing.get(decision.state) or words.get(decision.state, "undecided"),
        "before_ms": decision.before_ms,
        "after_ms": decision.after_ms,
        "ratio": None if change is None else 1 + change / 100,
        "change_percent": change,
        "noise_percent": decision.noise_percent,
        "p_value": decision.p_value,
        "processes_before": decision.processes_before,
        "processes_after": decision.processes_after,
        "reason": decision.reason,
        "evidence": list(decision.evidence),
    }
    return cast("CellChange", fields)


def _unsampled_changes(before: Reader, after: Reader, selection: Selection, least: float) -> list[CellChange]:
    """Return cells of other provenances that have more or fewer results than before, or another median."""
    old, new = (
        {
            tuple(cell[name] for name in CELL): cell
            for cell in with_distinct_runtimes(read_cells(reader, selection))
            if cell["provenance"] != "measured"
        }
        for reader in (before, after)
    )
    changes = []
    for key, cell in new.items():
        was = old.get(key)
        if was is None or not was["latency_ms"] or cell["latency_ms"] is None:
            continue
        if (was["results"], was["latency_ms"]) != (cell["results"], cell["latency_ms"]):
            changes.append(_unsampled_change(was, cell, least))
    return changes


def _unsampled_change(was: Mapping[str, Any], cell: Mapping[str, Any], least: float) -> CellChange:
    ratio = cell["latency_ms"] / was["latency_ms"]
    moved = abs(ratio - 1) * 100 >= least
    reason = "moved, and no samples of ours say why" if moved else f"moved by less than {least:g} %"
    fields = {
        **{name: cell[name] for name in (*_IDENTITY, "provenance", "runtime")},
        "verdict": "undecided" if moved else "same",
        "before_ms": was["latency_ms"],
        "after_ms": cell["latency_ms"],
        "ratio": ratio,
        "change_percent": 100 * (ratio - 1),
        "noise_percent": None,
        "p_value": None,
        "processes_before": was["results"],
        "processes_after": cell["results"],
        "reason": f"{cell['provenance']} figures: their medians {reason}",
        "evidence": cell["evidence"],
    }
    return cast("CellChange", fields)
