"""The data rules of the warehouse as blocking asset checks, one per rule."""

from collections.abc import Iterator

import dagster as dg

from accel_platform.bench.plan.run_locks import lock_host
from accel_platform.warehouse import publish
from accel_platform.warehouse.rules import RULES, Rule
from assets import metadata_previews
from assets.data_versions import checked_at, require_snapshot_id, snapshot_metadata
from assets.failures import explain_failures
from assets.resources import Installation
from assets.tables import results

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
