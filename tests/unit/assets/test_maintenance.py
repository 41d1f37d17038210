"""Old runs: which the nightly maintenance removes, and what stays visible."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import sqlalchemy as sa
from dagster._core.storage.runs.schema import RunsTable

from assets.triggers.jobs import RUNS_KEPT, remove_old_runs

parts = dg.StaticPartitionsDefinition(["a", "b"])


@dg.asset(partitions_def=parts)
def partitioned() -> None: ...


@dg.asset(check_specs=[dg.AssetCheckSpec("whole", asset="table")])
def table() -> Iterator[dg.MaterializeResult[None]]:
    yield dg.MaterializeResult(check_results=[dg.AssetCheckResult(passed=True)])


@dg.op
def fail() -> None:
    raise ValueError("broken")


def _age(instance: dg.DagsterInstance, run_id: str, age: timedelta) -> None:
    with instance.run_storage.connect() as con:  # type: ignore[attr-defined]
        then = (datetime.now(UTC) - age).replace(tzinfo=None)
        con.execute(sa.update(RunsTable).where(RunsTable.c.run_id == run_id).values(update_timestamp=then))


def test_old_runs_go_and_the_newest_state_of_assets_stays() -> None:
    def make(asset: dg.AssetsDefinition, partition: str | None = None) -> str:
        return dg.materialize([asset], instance=instance, partition_key=partition).run_id

    failing = dg.GraphDefinition(name="failing", node_defs=[fail]).to_job()
    with dg.DagsterInstance.ephemeral() as instance:
        runs = {
            "superseded a": make(partitioned, "a"),
            "newest a": make(partitioned, "a"),
            "newest b": make(partitioned, "b"),
            "superseded table": make(table),
            "newest table": make(table),
            "failed": failing.execute_in_process(instance=instance, raise_on_error=False).run_id,
            "failed long ago": failing.execute_in_process(instance=instance, raise_on_error=False).run_id,
        }
        for run_id in runs.values():
            _age(instance, run_id, RUNS_KEPT[dg.DagsterRunStatus.SUCCESS] + timedelta(hours=1))
        _age(instance, runs["failed long ago"], RUNS_KEPT[dg.DagsterRunStatus.FAILURE] + timedelta(hours=1))
        remove_old_runs(dg.build_op_context(instance=instance))
        left = {name for name, run_id in runs.items() if instance.has_run(run_id)}
        assert left == {"newest a", "newest b", "newest table", "failed"}
        assert instance.get_materialized_partitions(partitioned.key) == {"a", "b"}
        key = dg.AssetCheckKey(table.key, "whole")
        history = instance.event_log_storage.get_asset_check_execution_history(key, limit=10)
        assert [record.run_id for record in history] == [runs["newest table"]]


def test_an_old_run_leaves_no_file(tmp_path: Path) -> None:
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        job = dg.GraphDefinition(name="failing", node_defs=[fail]).to_job()
        old, recent = (job.execute_in_process(instance=instance, raise_on_error=False).run_id for _ in range(2))
        _age(instance, old, RUNS_KEPT[dg.DagsterRunStatus.FAILURE] + timedelta(hours=1))
        files = [path.relative_to(tmp_path) for path in tmp_path.rglob("*")]
        assert any(old in str(path) for path in files)
        remove_old_runs(dg.build_op_context(instance=instance))
        left = {path.relative_to(tmp_path) for path in tmp_path.rglob("*")}
        assert left == {path for path in files if old not in str(path)}
        assert any(recent in str(path) for path in left)
