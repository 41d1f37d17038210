"""The tables that the log projects to, built but not yet in service, and their data rules as blocking checks."""

from collections.abc import Iterator
from typing import Any

import dagster as dg

from accel_platform.bench.plan.run_locks import lock_host
from accel_platform.table_io.values import count_of
from accel_platform.warehouse import publish
from accel_platform.warehouse.dictionary import describe_columns
from accel_platform.warehouse.layers import Projection
from accel_platform.warehouse.rules import RULES, Rule
from assets import metadata_previews
from assets.automation import MEASURED_RECENTLY, ON_CHECKED_UPDATE
from assets.data_versions import checked_at, require_snapshot_id, snapshot_metadata
from assets.events import raw_events
from assets.failures import explain_failures
from assets.resources import Installation

_PREVIEW = f"""
SELECT model_id, hardware, batch_size, sequence_length, status, provenance, latency_p50_ms, throughput_items_per_s,
    memory_peak_mib, reason
FROM results ORDER BY result_id DESC LIMIT {metadata_previews.SHOWN}
"""
_LATENCIES = """
SELECT model_id, hardware, provenance,
    CASE WHEN batch_size = 1 THEN '1' WHEN batch_size <= 8 THEN '2 to 8' WHEN batch_size <= 64 THEN '9 to 64'
        WHEN batch_size > 64 THEN 'above 64' ELSE 'unknown' END AS batch,
    quantile_cont(coalesce(latency_p50_ms, latency_mean_ms), 0.5) AS latency_ms
FROM results
WHERE status = 'ok' AND provenance IN ('measured', 'imported') AND coalesce(latency_p50_ms, latency_mean_ms) > 0
    AND mode = 'inference' AND model_id IN (
        SELECT model_id FROM results WHERE mode = 'inference' GROUP BY ALL ORDER BY count(*) DESC, model_id LIMIT 30
    )
GROUP BY ALL ORDER BY ALL
"""


@dg.asset(
    deps=[raw_events],
    group_name="answer",
    kinds={"duckdb"},
    owners=["team:performance"],
    automation_condition=ON_CHECKED_UPDATE,
    freshness_policy=MEASURED_RECENTLY,
)
@explain_failures
def results(context: dg.AssetExecutionContext, accel: Installation) -> dg.MaterializeResult[Any]:
    """Build the tables from the log: every observation a row; rows that break a data rule are set aside.

    Only events newer than the published tables are computed. Nobody reads the new tables before `compat_matrix`.
    """
    snapshot_id = require_snapshot_id(context, "raw_events")
    with lock_host(accel.settings, context.log.info):
        staged = publish.stage(accel.settings, snapshot=accel.log.load_snapshot(snapshot_id))
    counts = staged.projection.count_rows()
    context.log.info(
        f"projected {count_of(counts['results'], 'result')} from {count_of(counts['events'], 'event')} "
        f"({'nothing new' if staged.mode == 'current' else staged.mode}, {staged.seconds:.2f} s)"
    )
    return dg.MaterializeResult(
        data_version=dg.DataVersion(snapshot_id),
        metadata={
            **snapshot_metadata(snapshot_id),
            "dagster/row_count": counts["results"],
            **metadata_previews.schema(describe_columns(_rows(staged.projection, "DESCRIBE results"), "results")),
            "projection": staged.mode,
            "seconds": round(staged.seconds, 2),
            "tables": metadata_previews.table([{"table": name, "rows": rows} for name, rows in counts.items()]),
            "preview": metadata_previews.table(_rows(staged.projection, _PREVIEW), total=counts["results"]),
            "latencies": _latency_chart(_rows(staged.projection, _LATENCIES)),
        },
    )


def _rows(projection: Projection, sql: str) -> list[dict[str, Any]]:
    with projection.open() as con:
        cursor = con.execute(sql)
        names = [column[0] for column in cursor.description or ()]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def _latency_chart(rows: list[dict[str, Any]]) -> dg.MarkdownMetadataValue:
    import altair as alt

    return metadata_previews.chart(
        alt.Chart({"values": rows}, title="Median latency of one forward pass of a batch")
        .mark_point(filled=True, size=60)
        .encode(
            x=alt.X("latency_ms:Q", title="milliseconds").scale(type="log"),
            y=alt.Y("model_id:N", title=None),
            color=alt.Color("hardware:N").scale(scheme="tableau20"),
            shape=alt.Shape("batch:N", title="batch size"),
        )
        .properties(width=480)
    )


RULE_CHECKS = [dg.AssetCheckKey(results.key, rule.name) for rule in RULES]


def _spec(rule: Rule) -> dg.AssetCheckSpec:
    return dg.AssetCheckSpec(rule.name, asset=results, blocking=True, description=rule.describe())


@dg.multi_asset_check(name="results_rules", specs=[_spec(rule) for rule in RULES], can_subset=True)
@explain_failures
def results_rules(context: dg.AssetCheckExecutionContext, accel: Installation) -> Iterator[dg.AssetCheckResult]:
    """Check the unpublished tables with Great Expectations; one broken rule blocks their publication."""
    snapshot_id = require_snapshot_id(context, "results")
    try:
        with lock_host(accel.settings, context.log.info):
            staged = publish.stage(accel.settings, snapshot=accel.log.load_snapshot(snapshot_id))
            verdicts = publish.check(staged, by_expectations=True)
    except publish.ChecksFailed as failed:
        verdicts = failed.checks
        context.log.warning(str(failed))
    else:
        context.log.info(f"{len(verdicts)} data rules hold")
    for verdict in verdicts:
        if dg.AssetCheckKey(results.key, verdict.rule) not in context.selected_asset_check_keys:
            continue
        yield dg.AssetCheckResult(
            check_name=verdict.rule,
            asset_key=results.key,
            passed=verdict.passed,
            metadata={
                **snapshot_metadata(snapshot_id),
                "expectation": verdict.expectation,
                "rows_checked": verdict.rows,
                "broken_rows": verdict.broken,
                "examples": metadata_previews.table([{"value": value} for value in verdict.examples], empty="None."),
            },
        )


def all_rules_passed(instance: dg.DagsterInstance, snapshot_id: str) -> bool:
    """Return whether every rule was checked on exactly this snapshot, and passed."""
    latest = instance.event_log_storage.get_latest_asset_check_execution_by_key(RULE_CHECKS)
    for key in RULE_CHECKS:
        record = latest.get(key)
        evaluation = record.event.asset_check_evaluation if record and record.event else None
        if evaluation is None or not evaluation.passed or checked_at(evaluation) != snapshot_id:
            return False
    return True
