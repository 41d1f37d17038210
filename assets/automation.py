"""Automation conditions and freshness policies of the assets.

The sensor `log_moved` reports a change of the log. From there each asset is made anew after its inputs, once their
blocking checks passed. Assets that record decisions (a regression, a checked commit, a model) append events, so that
the log moves once more. That second round finds nothing new and ends.
"""

from __future__ import annotations

from datetime import timedelta

import dagster as dg

_When = dg.AutomationCondition

ON_MOVED_LOG = (
    _When.any_deps_updated().allow(dg.AssetSelection.assets("event_log")).since_last_handled() & ~_When.in_progress()
).with_label("the log moved")
"""Condition that the log changed: `event_log` was reported. Updates of other inputs do not count, because imports and
measurements append to the log."""

ON_CHECKED_UPDATE = (_When.eager() & _When.all_deps_blocking_checks_passed()).with_label(
    "what it is made of is new and checked"
)
"""Condition that an input is new and passed its blocking checks."""

WHEN_FIRST_TRAINABLE = (
    _When.missing()
    & _When.any_deps_updated().since_last_handled()
    & _When.all_deps_blocking_checks_passed()
    & ~_When.any_deps_missing()
    & ~_When.any_deps_in_progress()
    & ~_When.in_progress()
).with_label("there is none, and perhaps enough to learn from now")
"""Condition of a first training. Later trainings run at night, because training slows measurements down."""

MEASURED_RECENTLY = dg.FreshnessPolicy.time_window(fail_window=timedelta(days=7), warn_window=timedelta(days=2))
"""Policy of assets that change whenever somebody measures: stale after some days without."""
MONTHLY_MODEL = dg.FreshnessPolicy.time_window(fail_window=timedelta(days=60), warn_window=timedelta(days=30))
DAILY_REPORT = dg.FreshnessPolicy.cron(deadline_cron="0 8 * * *", lower_bound_delta=timedelta(hours=8))

automation = dg.AutomationConditionSensorDefinition(
    "automation",
    target=dg.AssetSelection.all(),
    default_status=dg.DefaultSensorStatus.RUNNING,  # Dagster's own would wait to be started
    minimum_interval_seconds=10,
    run_tags={"accel/line": "automation"},
    description="Makes each asset anew when its condition says so.",
)
