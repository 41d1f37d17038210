"""What changed between two snapshots, cell by cell: faster, slower, the same or undecided. The judgement is `check.py`.

What came and went at all is `snapshot_comparison.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from accel_platform.analysis.query.cells import read_cells
from accel_platform.analysis.query.filters import Selection, require_known
from accel_platform.analysis.query.run_refs import Side
from accel_platform.analysis.regressions.check import check
from accel_platform.analysis.regressions.regression_test import MIN_CHANGE_PERCENT, Decision
from accel_platform.warehouse.reader import Reader

Verdict = Literal["slower", "faster", "fails now", "works now", "undecided", "same"]

_IDENTITY = ("model_id", "hardware", "choice", "device_id", "mode", "precision", "batch_size", "sequence_length",
             "processes")  # fmt: skip
_RUNS = "SELECT run_id FROM runs WHERE kind = 'benchmark'"
# Only what shares a model with a new run can be held against it.
_TOUCHED = """
SELECT DISTINCT run_id FROM results
WHERE list_contains($old, run_id) AND model_id IN (SELECT model_id FROM results WHERE list_contains($new, run_id))
"""
_SELECTED = f"SELECT DISTINCT {', '.join(_IDENTITY)} FROM results AS r WHERE {{condition}}"


@dataclass(frozen=True)
class Changes:
    """`rows` are the cells that were measured before and again since; `only_before` and `only_after` count the others
    that the selection leaves."""

    before: str
    """Ids of the snapshots."""
    after: str
    rows: list[dict[str, Any]]
    only_before: int
    only_after: int


def changes(
    before: Reader, after: Reader, selection: Selection, *, min_change_percent: float = MIN_CHANGE_PERCENT
) -> Changes:
    """Every cell that has results before the first snapshot and new ones since, up to the second.

    Measurements of ours are judged by their samples and the noise of their series. Of figures without samples, as
    imports and stand-ins have them, only the medians can be told: their verdict is `undecided`. Raises NotFound for
    what nothing knows, WarehouseEmpty.
    """
    require_known(after, selection)
    rows = [*_measured(before, after, selection, min_change_percent), *_told(before, after, selection)]
    old, new = (
        {tuple(cell[name] for name in _IDENTITY) for cell in read_cells(reader, selection)}
        for reader in (before, after)
    )
    again = {tuple(row[name] for name in _IDENTITY) for row in rows}
    return Changes(before.snapshot_id, after.snapshot_id, rows, len((old & new) - again), len(new - old))


def _measured(before: Reader, after: Reader, selection: Selection, least: float) -> list[dict[str, Any]]:
    old, now = ({row["run_id"] for row in reader.rows(_RUNS)} for reader in (before, after))
    new = sorted(now - old)
    touched = after.rows(_TOUCHED, {"old": sorted(old), "new": new}) if new else []
    if not touched:
        return []
    sides = Side("before", tuple(row["run_id"] for row in touched), None), Side("after", tuple(new), None)
    condition, values = selection.where()
    selected = {tuple(row.values()) for row in after.rows(_SELECTED.format(condition=condition), values)}
    return [
        _row(decision)
        for decision in check(after, *sides, min_change_percent=least).decisions
        if decision.processes_before
        and decision.processes_after
        and tuple(getattr(decision.series, name) for name in _IDENTITY) in selected
    ]


def _row(decision: Decision) -> dict[str, Any]:
    failing = {"regressed": "fails now", "improved": "works now"} if decision.change_percent is None else {}
    words: dict[str, Verdict] = {"regressed": "slower", "improved": "faster", "ok": "same"}
    change = decision.change_percent
    return {
        **{name: getattr(decision.series, name) for name in _IDENTITY},
        "provenance": "measured",
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


def _told(before: Reader, after: Reader, selection: Selection) -> list[dict[str, Any]]:
    """Cells of any other provenance that have more or fewer results than before."""
    old, new = (
        {
            tuple(cell[name] for name in (*_IDENTITY, "provenance", "verified")): cell
            for cell in read_cells(reader, selection)
            if cell["provenance"] != "measured"
        }
        for reader in (before, after)
    )
    rows = []
    for key, cell in new.items():
        was = old.get(key)
        if was is None or was["results"] == cell["results"] or not was["latency_ms"] or cell["latency_ms"] is None:
            continue
        ratio = cell["latency_ms"] / was["latency_ms"]
        rows.append(
            {
                **{name: cell[name] for name in (*_IDENTITY, "provenance")},
                "verdict": "undecided",
                "before_ms": was["latency_ms"],
                "after_ms": cell["latency_ms"],
                "ratio": ratio,
                "change_percent": 100 * (ratio - 1),
                "noise_percent": None,
                "p_value": None,
                "processes_before": was["results"],
                "processes_after": cell["results"],
                "reason": f"{cell['provenance']} figures: their medians moved, and no samples of ours say why",
                "evidence": cell["evidence"],
            }
        )
    return rows
