"""Jobs: those of the asset graph, and work at night that makes no asset."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import sqlalchemy as sa
from dagster._core.storage.event_log.schema import AssetCheckExecutionsTable, SqlEventLogStorageTable
from dagster._core.storage.event_log.sql_event_log import SqlEventLogStorage
from dagster._core.storage.event_log.sqlite import SqliteEventLogStorage

from accel_platform.bench.plan.config import read_config
from accel_platform.bench.plan.run_locks import lock_host
from accel_platform.bench.requests.lifecycle import request_benchmark
from accel_platform.events.compaction import compact
from accel_platform.table_io.values import count_of
from accel_platform.warehouse.disk_use import remove_leftovers
from assets.failures import explain_failures
from assets.regressions import commit_gate
from assets.report import daily_report
from assets.resources import Installation

_ALL = dg.AssetSelection.all() - dg.AssetSelection.assets(daily_report)

full_pipeline = dg.define_asset_job(
    "full_pipeline",
    selection=_ALL,
    description="The whole line: hardware, measurements and old results to checked tables, matrix and predictor.",
)
history_line = dg.define_asset_job(
    "history_line",
    # Training takes longer than all else; `nightly_training` does it once for all sources.
    selection=(dg.AssetSelection.assets("legacy_history").downstream() & _ALL) - dg.AssetSelection.assets("predictor"),
    tags={"accel/line": "history"},  # dagster.yaml runs one of these at a time
    description="One source of old results, and the tables, matrix and regressions that are made of it. Nothing is "
    "measured or trained.",
)
commit_line = dg.define_asset_job(
    "commit_line",
    selection=dg.AssetSelection.checks(commit_gate),
    tags={"accel/line": "commit"},
    description="One commit's results against its baseline's.",
)
training = dg.define_asset_job(
    "training",
    selection=dg.AssetSelection.assets("predictor"),
    description="A predictor of what is in service now.",
)
report = dg.define_asset_job(
    "report",
    selection=dg.AssetSelection.assets(daily_report),
    description="What one day brought.",
)


RUNS_KEPT = {
    dg.DagsterRunStatus.SUCCESS: timedelta(days=14),
    dg.DagsterRunStatus.CANCELED: timedelta(days=14),
    dg.DagsterRunStatus.FAILURE: timedelta(days=90),
}
"""Time that a run is kept, by how it ended."""


@dg.op(description="Asks for what the suite file of ACCEL_SUITE names, on the hosts that have its hardware.")
@explain_failures
def request_suite(context: dg.OpExecutionContext, accel: Installation) -> None:
    settings = accel.settings
    if settings.suite is None:
        raise dg.Failure(
            "There is no suite: name a file by ACCEL_SUITE. `accel bench suite --create-config` writes one."
        )
    for request_id in request_benchmark(read_config(settings.suite), accel.log, by="schedule"):
        context.log.info(f"asked for: {request_id}")


@dg.op(description="Packs small segments of the log and removes what is kept twice; every snapshot stays readable.")
@explain_failures
def pack_log(context: dg.OpExecutionContext, accel: Installation) -> None:
    # Here, because LightGBM and SciPy would cost every process of Dagster 2 s.
    from predictor.training.promotion import remove_old_predictors

    with lock_host(accel.settings, context.log.info):
        done = compact(accel.log)
    left_overs = remove_leftovers(accel.settings)
    predictors = remove_old_predictors(accel.settings, accel.log)
    context.log.info(
        f"in a new pack: {count_of(done.packed, 'segment')}; gone: {count_of(done.removed, 'file')} "
        f"that larger ones hold, {len(left_overs)} that killed processes left, "
        f"{count_of(len(predictors), 'old predictor')}"
    )
    if done.damaged:
        raise dg.Failure(f"Damaged and set aside: {', '.join(done.damaged)}. See `accel db validate`.")


@dg.op(
    description="Removes Dagster's runs of two weeks ago, failed ones of three months ago. What the pages show stays."
)
@explain_failures
def remove_old_runs(context: dg.OpExecutionContext) -> None:
    instance, now = context.instance, datetime.now(UTC)
    storage = instance.event_log_storage
    assert isinstance(storage, SqlEventLogStorage)
    shown, removed = _shown_runs(storage), 0
    for status, age in RUNS_KEPT.items():
        for run in instance.get_runs(dg.RunsFilter(statuses=[status], updated_before=now - age)):
            if run.run_id not in shown:
                _remove_run(instance, storage, run.run_id)
                removed += 1
    context.log.info(f"removed: {count_of(removed, 'old run')}")


def _shown_runs(storage: SqlEventLogStorage) -> set[str]:
    """Return the runs whose events are the newest of an asset, of one of its partitions, or of a check."""
    events, checks = SqlEventLogStorageTable.c, AssetCheckExecutionsTable.c
    kinds = [dg.DagsterEventType.ASSET_MATERIALIZATION.value, dg.DagsterEventType.ASSET_OBSERVATION.value]
    newest_events = (
        sa.select(sa.func.max(events.id))
        .where(events.dagster_event_type.in_(kinds))
        .group_by(events.dagster_event_type, events.asset_key, events.partition)
    )
    newest_checks = sa.select(sa.func.max(checks.id)).group_by(checks.asset_key, checks.check_name)
    with storage.index_connection() as con:
        return {
            *con.execute(sa.select(events.run_id).where(events.id.in_(newest_events))).scalars(),
            *con.execute(sa.select(checks.run_id).where(checks.id.in_(newest_checks))).scalars(),
        }


def _remove_run(instance: dg.DagsterInstance, storage: SqlEventLogStorage, run_id: str) -> None:
    """Remove a run with what Dagster itself leaves of one: its checks, its logs, and in SQLite its file."""
    instance.delete_run(run_id)
    with storage.index_connection() as con:
        con.execute(AssetCheckExecutionsTable.delete().where(AssetCheckExecutionsTable.c.run_id == run_id))
    instance.compute_log_manager.delete_logs(prefix=[run_id])
    if isinstance(storage, SqliteEventLogStorage):
        for ending in ("", "-wal", "-shm"):
            Path(f"{storage.path_for_shard(run_id)}{ending}").unlink(missing_ok=True)


@dg.job(tags={"accel/line": "suite"}, description="The nightly suite; off without ACCEL_SUITE.")
def suite() -> None:
    request_suite()


@dg.job(description="Many small segments of the log into few packs; what is kept twice, left over or old goes.")
def compaction() -> None:
    pack_log()
    remove_old_runs()
