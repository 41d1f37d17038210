"""What runs at a time of day: the nightly reading of old results. What runs is said in `jobs.py`."""

import time

import dagster as dg

from assets.history import STATE
from assets.jobs import history_line
from assets.partitions import in_inbox, legacy_sources, state_of
from assets.resources import Installation

_QUIET_S = 600
"""A source in which nothing changed for so long is not being written."""


@dg.schedule(
    job=history_line,
    cron_schedule="0 2 * * *",
    default_status=dg.DefaultScheduleStatus.RUNNING,
    description="Reads every source of the inbox that is not read as it is now, whatever kept the sensor from it.",
)
def nightly_history(context: dg.ScheduleEvaluationContext, accel: Installation) -> list[dg.RunRequest] | dg.SkipReason:
    """A run for each source whose last reading, if any, was of another state: new ones, and those whose run failed."""
    due = []
    for source, place in in_inbox(accel.settings).items():
        try:
            state = state_of(place)
        except OSError as error:
            context.log.warning(f"{source} cannot be looked at now: {error}")
            continue
        quiet = state is not None and time.time() - state.changed_at_s >= _QUIET_S
        if state is not None and quiet and state.digest != _read_state(context.instance, source):
            due.append(source)
    if not due:
        return dg.SkipReason("Every source of the inbox is read as it is.")
    context.instance.add_dynamic_partitions(str(legacy_sources.name), due)
    return [dg.RunRequest(run_key=source, partition_key=source) for source in due]


def _read_state(instance: dg.DagsterInstance, source: str) -> str | None:
    """The state in which a source was last read, None if it never was."""
    wanted = dg.AssetRecordsFilter(asset_key=dg.AssetKey("legacy_history"), asset_partitions=[source])
    for record in instance.fetch_materializations(wanted, limit=1).records:
        if record.asset_materialization and STATE in record.asset_materialization.metadata:
            return str(record.asset_materialization.metadata[STATE].value)
    return None
