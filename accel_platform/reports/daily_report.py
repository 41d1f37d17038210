"""Daily report in Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

from accel_platform.analysis.regressions.snapshot_comparison import TableChanges
from accel_platform.hardware.device_names import with_distinct_names
from accel_platform.reports.regressions import short_shift, with_cells
from accel_platform.table_io.text import markdown, table_of
from accel_platform.table_io.values import count_of, rounded
from accel_platform.warehouse.reader import Reader

_SHOWN = 50
_OPEN = """
SELECT regression_id, direction, model_id, hardware, batch_size, measure, before_ms, after_ms, before_mib, after_mib,
    change_percent
FROM regressions WHERE state = 'open' ORDER BY found_at DESC, regression_id
"""


def day_report(day: date, found: TableChanges, after: Reader) -> str:
    """Return a day's report: changes between the snapshots of `found`, and open regressions in `after`."""
    medians = [
        {
            "model": row["model_id"],
            "cell": row["cell"],
            "before": f"{rounded(row['before_ms'], 4)} ms",
            "after": f"{rounded(row['after_ms'], 4)} ms",
            "change": f"{row['change_percent']:+.1f} %",
        }
        for row in with_cells(found.medians)
    ]
    changed = [
        {
            "model": row["model_id"],
            "hardware": row["hardware"],
            "device": row["device_name"],
            "mode": row["mode"],
            **{side: _verdict(row[f"state_{side}"], row[f"rating_{side}"]) for side in ("before", "after")},
        }
        for row in with_distinct_names(found.matrix)
    ]
    parts = [
        f"# {day}",
        f"{count_of(found.added, 'result')} came in. Snapshot {found.before[:12]} before, {found.after[:12]} after.",
        *_section("Results", found.results),
        *_section("Medians that moved", medians),
        *_section("Compatibility that changed", changed),
        *_section("Open regressions and improvements", [_open_row(row) for row in after.rows(_OPEN)]),
    ]
    return "\n\n".join(parts) + "\n"


def _open_row(row: Mapping[str, Any]) -> dict[str, Any]:
    names = ("regression_id", "direction", "model_id", "hardware", "batch_size")
    return {**{name: row[name] for name in names}, **short_shift(row)}


def _section(heading: str, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    if not rows:
        return [f"## {heading}", "None."]
    table = "\n".join(markdown(table_of(rows[:_SHOWN])))
    return [f"## {heading}", table, *([f"and {len(rows) - _SHOWN:,} more"] if len(rows) > _SHOWN else [])]


def _verdict(state: str | None, rating: str | None) -> str | None:
    return " ".join(part for part in (state, rating) if part) or None
