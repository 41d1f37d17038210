"""The asset `daily_report`: one day of the log as a page to read."""

from datetime import UTC, date, datetime, time, timedelta
from typing import Any

import dagster as dg

from accel_platform.analysis.regressions.snapshot_comparison import compare_tables
from accel_platform.atomic_write import make_directory, write_durably
from accel_platform.bench.plan.run_locks import lock_host
from accel_platform.reports.daily_report import day_report
from accel_platform.table_io.values import count_of
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
