"""The asset `daily_report`: one day of the log as a page to read."""

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

import dagster as dg

from accel_platform.analysis.regressions.snapshot_comparison import TableChanges, compare_tables
from accel_platform.atomic_write import make_directory, write_durably
from accel_platform.bench.plan.run_locks import lock_host
from accel_platform.hardware.device_names import with_distinct_names
from accel_platform.reports.regressions import short_shift, with_cells
from accel_platform.table_io.text import markdown, table_of
from accel_platform.table_io.values import count_of, rounded
from accel_platform.warehouse.reader import Reader
from accel_platform.warehouse.time_travel import tables_at
from assets import metadata_previews
from assets.automation import DAILY_REPORT
from assets.data_versions import snapshot_metadata
from assets.failures import explain_failures
from assets.regressions import regressions
from assets.resources import Installation

days = dg.DailyPartitionsDefinition(start_date="2026-01-01")
"""Days in UTC. A day's report follows from the log as it was recorded by its end, and can be made again years later."""
_SHOWN = 50
_OPEN = """
SELECT regression_id, direction, model_id, hardware, batch_size, measure, before_ms, after_ms, before_mib, after_mib,
    change_percent
FROM regressions WHERE state = 'open' ORDER BY found_at DESC, regression_id
"""


@dg.asset(
    deps=[regressions],
    partitions_def=days,
    group_name="answer",
    kinds={"markdown"},
    owners=["team:performance"],
    freshness_policy=DAILY_REPORT,
)
@explain_failures
def daily_report(context: dg.AssetExecutionContext, accel: Installation) -> dg.MaterializeResult[Any]:
    """Report on one day: new results, changed medians and matrix cells, and open regressions."""
    if not context.has_partition_key:
        raise dg.Failure("Choose the day to report on: it is the partition of the run, such as 2026-01-31.")
    day = date.fromisoformat(context.partition_key)
    log, settings = accel.log, accel.settings
    midnight = datetime.combine(day, time.min, UTC)
    before, after = (log.recorded_until(moment) for moment in (midnight, midnight + timedelta(days=1)))
    with lock_host(settings, context.log.info):
        old, new = (Reader(tables_at(settings, snapshot, progress=context.log.info)) for snapshot in (before, after))
        found = compare_tables(old, new)
    page = day_report(day, found, new)
    path = settings.home.resolve() / "reports" / "days" / f"{day}.md"
    make_directory(path.parent)
    write_durably(path, page)
    context.log.info(f"{count_of(found.added, 'result')} came on {day}; {path}")
    return dg.MaterializeResult(
        data_version=dg.DataVersion(after.id),
        metadata={
            **snapshot_metadata(after.id),
            "dagster/row_count": found.added,
            "path": dg.MetadataValue.path(path),
            "preview": dg.MetadataValue.md(page),
            "results": metadata_previews.bars(
                found.results, "added", "hardware", title=f"Results of {day} by hardware"
            ),
        },
    )


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
