"""An increment is audited for what is new in it, what is there twice and what is judged anew; the rest was before."""

from __future__ import annotations

import duckdb
import pytest

from accel_platform.analysis.stats.medians import MIN_PERCENTILE_SAMPLES
from accel_platform.events import EventLog
from accel_platform.events.types import ResultSuspected, RunFinished
from accel_platform.settings import Settings
from accel_platform.warehouse import publish
from accel_platform.warehouse.build_layer import table_sql
from accel_platform.warehouse.rules import RULES, audit
from factories import event, result


def _looked_at(staged: publish.StagedProjection) -> int:
    return next(check.rows for check in publish.check(staged) if check.rule == "model_named")


def test_the_audit_follows_what_is_new(settings: Settings, log: EventLog) -> None:
    claim = event(result(provenance="imported"))
    log.append([claim, *(event(result()) for _ in range(40))])
    full = publish.stage(settings)
    assert _looked_at(full) == 41
    publish.publish(settings, full)

    log.append([event(result())])
    log.append([event(ResultSuspected(result_id=claim.event_id, rule="r", verdict="suspect", evidence="e",
                                      confidence=0.5))])  # fmt: skip
    staged = publish.stage(settings)
    assert staged.mode == "incremental"
    assert _looked_at(staged) == 2
    assert all(
        verdict.rows >= 41 for verdict in publish.audit_projection(staged.projection) if verdict.rule == "model_named"
    )

    below, newest = staged.projection.layers
    with duckdb.connect(staged.projection.directory / newest.file) as con:
        con.execute(f"ATTACH '{staged.projection.directory / below.file}' AS below (READ_ONLY)")
        con.execute("INSERT INTO result_rows SELECT * FROM below.result_rows LIMIT 1")
    with pytest.raises(publish.ChecksFailed, match=r"result_id_unique \(2 rows\)"):
        publish.check(staged)
    publish.publish(settings, publish.stage(settings, full=True))


def test_an_increment_without_results_has_the_verdicts_of_an_audit_of_no_rows(
    settings: Settings, log: EventLog
) -> None:
    log.append([event(result(batch_size=size)) for size in range(1, 9)])
    publish.refresh(settings)
    log.append([event(RunFinished(status="succeeded", duration_s=1.0))])
    refreshed = publish.refresh(settings)
    assert refreshed.mode == "incremental"
    with refreshed.projection.open() as con:
        assert refreshed.checks == audit(con, "SELECT * FROM results LIMIT 0")
    log.append([event(result(batch_size=9))])
    assert {check.rows for check in publish.refresh(settings).checks if check.rule == "model_named"} == {1}


def test_a_rule_counts_the_rows_that_it_speaks_of(settings: Settings, log: EventLog) -> None:
    log.append([event(result()), event(result(provenance="imported", device_id=None, fingerprint=None, batch_size=2))])
    staged = publish.stage(settings)
    rows = {verdict.rule: verdict.rows for verdict in publish.check(staged)}
    assert (rows["model_named"], rows["measured_names_device"]) == (2, 1)


def test_each_rule_says_its_columns_and_bounds() -> None:
    told = {rule.name: rule.describe() for rule in RULES}
    assert told["batch_size_plausible"] == "batch_size is at least 1 and at most 1,000,000, where it is known."
    assert told["latency_min_positive"] == "latency_min_ms is above 0, where it is known."
    assert told["failure_has_reason"] == "reason is known where status is not ok."
    assert told["measured_names_device"] == "device_id is known where provenance is measured."
    assert all(column in told[rule.name] for rule in RULES for column in rule.columns())


def test_percentiles_of_tables_need_as_many_samples_as_those_of_measurements() -> None:
    for percent, needed in MIN_PERCENTILE_SAMPLES.items():
        assert f"p.latency_p{percent}_ms WHEN n >= {needed} THEN" in table_sql("result_fields")
