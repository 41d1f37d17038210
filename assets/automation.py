"""When assets are made without being asked, and how old they may be. What runs at a time of day is in `schedules.py`.

The graph follows the log: `log_moved` says that it moved, and from there on each asset follows what it is made of where
the checks of that were kept. What an asset decides (a shift, a checked commit, a model) is an event and moves the log
once more; the round that follows finds nothing new to decide, and rest returns.
"""

from __future__ import annotations

from datetime import timedelta

import dagster as dg

_When = dg.AutomationCondition

ON_MOVED_LOG = (
    _When.any_deps_updated().allow(dg.AssetSelection.assets("event_log")).since_last_handled() & ~_When.in_progress()
).with_label("the log moved")
"""Of what appends to the log only the log itself counts: what an import or a measurement adds is seen there."""

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
"""The first predictor comes as soon as it can, later ones at night: training takes the processor from measuring."""

LAB_AT_WORK = dg.FreshnessPolicy.time_window(fail_window=timedelta(days=7), warn_window=timedelta(days=2))
"""Nothing new in so long: does anybody measure?"""
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
