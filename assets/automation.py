"""Automation conditions and freshness policies of the assets.

The sensor `log_moved` reports a change of the log; from there each asset follows its inputs once their checks passed.
Decisions (a shift, a checked commit, a model) are events and cause one more round, which finds nothing new.
"""

from __future__ import annotations

from datetime import timedelta

import dagster as dg

_When = dg.AutomationCondition

ON_MOVED_LOG = (
    _When.any_deps_updated().allow(dg.AssetSelection.assets("event_log")).since_last_handled() & ~_When.in_progress()
).with_label("the log moved")
"""Condition that the log changed. Imports and measurements append to the log, so their own updates do not count."""

ON_CHECKED_UPDATE = (_When.eager() & _When.all_deps_blocking_checks_passed()).with_label(
    "what it is made of is new and checked"
)

ONCE_POSSIBLE = (
    _When.missing()
    & _When.any_deps_updated().since_last_handled()
    & _When.all_deps_blocking_checks_passed()
    & ~_When.any_deps_missing()
    & ~_When.any_deps_in_progress()
    & ~_When.in_progress()
).with_label("there is none, and perhaps enough to learn from now")
"""Condition that a first predictor is possible. Later ones come at night, because training slows measurements down."""

LAB_AT_WORK = dg.FreshnessPolicy.time_window(fail_window=timedelta(days=7), warn_window=timedelta(days=2))
"""Policy for assets that are stale once nobody has measured for days."""
A_MODEL_OF_THIS_MONTH = dg.FreshnessPolicy.time_window(fail_window=timedelta(days=60), warn_window=timedelta(days=30))
A_REPORT_EACH_DAY = dg.FreshnessPolicy.cron(deadline_cron="0 8 * * *", lower_bound_delta=timedelta(hours=8))

automation = dg.AutomationConditionSensorDefinition(
    "automation",
    target=dg.AssetSelection.all(),
    default_status=dg.DefaultSensorStatus.RUNNING,  # Dagster's own would wait to be started
    minimum_interval_seconds=10,
    run_tags={"accel/line": "automation"},
    description="Makes each asset anew when its condition says so.",
)
