"""Assembly of the asset graph from its assets, checks, jobs, sensors, schedules and resources. Add a new one here."""

from __future__ import annotations

from typing import Any

import dagster as dg

from assets.automation import automation
from assets.events import event_log, hardware_inventory, measurements, raw_events
from assets.legacy_imports import legacy_history, reference_campaign
from assets.matrix import compat_matrix
from assets.models import predictor
from assets.regressions import commit_gate, regressions
from assets.report import daily_report
from assets.resources import Installation
from assets.tables import results, results_rules
from assets.triggers.jobs import commit_line, compaction, full_pipeline, history_line, report, suite, training
from assets.triggers.schedules import (
    morning_report,
    nightly_compaction,
    nightly_history,
    nightly_suite,
    nightly_training,
)
from assets.triggers.sensors import failed_runs, inbox, log_moved, new_commits, unsent_messages


def build_defs(**overrides: Any) -> dg.Definitions:
    """Return the whole graph; an override replaces the argument of `dagster.Definitions` that it names."""
    parts: dict[str, Any] = {
        "assets": [
            event_log,
            hardware_inventory,
            measurements,
            legacy_history,
            reference_campaign,
            raw_events,
            results,
            compat_matrix,
            regressions,
            predictor,
            daily_report,
        ],
        "asset_checks": [results_rules, commit_gate],
        "jobs": [full_pipeline, history_line, commit_line, training, report, suite, compaction],
        "sensors": [automation, log_moved, inbox, new_commits, failed_runs, unsent_messages],
        "schedules": [nightly_suite, nightly_history, nightly_compaction, nightly_training, morning_report],
        "resources": {"accel": Installation()},
        # Measuring starts processes of its own and must not compete with other steps; the rest takes seconds.
        "executor": dg.in_process_executor,
    }
    return dg.Definitions(**(parts | overrides))


defs = build_defs()
