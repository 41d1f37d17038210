"""Schedules, in UTC."""

import time
from pathlib import Path

import dagster as dg

from accel_platform.bench.plan.config import NIGHTLY, read_config
from accel_platform.errors import AccelError
from accel_platform.settings import Settings
from assets.data_versions import last_snapshot_id
from assets.legacy_imports import STATE
from assets.partitions import inbox_sources, legacy_sources, source_state
from assets.resources import Installation
from assets.triggers.jobs import compaction, history_line, report, suite, training

_QUIET_S = 600
"""A source in which nothing changed for so long is not being written."""


@dg.schedule(
    job=history_line,
    cron_schedule="0 2 * * *",
    default_status=dg.DefaultScheduleStatus.RUNNING,
    description="Reads every source of the inbox that is not read as it is now, whatever kept the sensor from it.",
)
def nightly_history(context: dg.ScheduleEvaluationContext, accel: Installation) -> list[dg.RunRequest] | dg.SkipReason:
    """Request a run for each source whose last import was of another state, or failed."""
    due = []
    for source, place in inbox_sources(accel.settings).items():
        try:
            state = source_state(place)
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


def suite_times(file: Path | None) -> str:
    """Return the cron text of a suite's own schedule; each night at one where it has none or cannot be read."""
    try:
        stated = read_config(file).schedule if file is not None else None
    except AccelError:
        stated = None  # the schedule says at its time what is wrong with the file
    return stated or NIGHTLY


@dg.schedule(
    job=suite,
    cron_schedule=suite_times(Settings().suite),
    default_status=dg.DefaultScheduleStatus.RUNNING,
    description="Asks the hosts for the suite file that ACCEL_SUITE names, at the times of its `schedule` when this "
    "code was loaded; without a file it says so, and nothing runs.",
)
def nightly_suite(accel: Installation) -> dg.RunRequest | dg.SkipReason:
    """Request the suite again and again, because a series needs figures of one commit after the other."""
    wanted = accel.settings.suite
    if wanted is None:
        return dg.SkipReason("No suite is configured: ACCEL_SUITE names none.")
    try:
        config = read_config(wanted)
    except AccelError as error:
        return dg.SkipReason(f"The suite that ACCEL_SUITE names: {error}")
    if config.schedule is None and "schedule" in config.model_fields_set:
        return dg.SkipReason(f"The schedule of {wanted} is not enabled.")
    return dg.RunRequest()


@dg.schedule(
    job=training,
    cron_schedule="0 4 * * *",
    default_status=dg.DefaultScheduleStatus.RUNNING,
    description="Trains the predictor where the tables are newer than what it was trained on.",
)
def nightly_training(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
    """Request a training, unless there is no matrix or the predictor was made of this one."""
    tables = last_snapshot_id(context, "compat_matrix")
    if tables is None:
        return dg.SkipReason("There are no tables to learn from yet.")
    if tables == last_snapshot_id(context, "predictor"):
        return dg.SkipReason("The predictor was trained on the tables as they are.")
    return dg.RunRequest()


nightly_compaction = dg.ScheduleDefinition(
    name="nightly_compaction",
    job=compaction,
    cron_schedule="30 3 * * *",
    default_status=dg.DefaultScheduleStatus.RUNNING,
    description="Packs the log's small segments, of which each command writes some.",
)
morning_report = dg.build_schedule_from_partitioned_job(
    report,
    name="morning_report",
    hour_of_day=6,
    default_status=dg.DefaultScheduleStatus.RUNNING,
    description="Reports on the day before.",
)


def _read_state(instance: dg.DagsterInstance, source: str) -> str | None:
    """Return the state in which a source was last imported, None if never."""
    wanted = dg.AssetRecordsFilter(asset_key=dg.AssetKey("legacy_history"), asset_partitions=[source])
    for record in instance.fetch_materializations(wanted, limit=1).records:
        if record.asset_materialization and STATE in record.asset_materialization.metadata:
            return str(record.asset_materialization.metadata[STATE].value)
    return None
