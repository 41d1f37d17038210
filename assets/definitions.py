"""The one place where assets, checks, jobs, sensors, schedules and resources are put together.

Nothing is defined here but their sum.
"""

from __future__ import annotations

from typing import Any

import dagster as dg

from assets.checks import results_rules
from assets.events import hardware_inventory, measurements, raw_events
from assets.history import legacy_history, reference_campaign
from assets.jobs import history_line, main_line
from assets.matrix import compat_matrix
from assets.models import predictor
from assets.resources import Installation
from assets.schedules import nightly_history
from assets.sensors import inbox
from assets.tables import results


def build_defs(**overrides: Any) -> dg.Definitions:
    """The whole graph; an override replaces the argument of `dagster.Definitions` that it names."""
    parts: dict[str, Any] = {
        "assets": [
            hardware_inventory,
            measurements,
            legacy_history,
            reference_campaign,
            raw_events,
            results,
            compat_matrix,
            predictor,
        ],
        "asset_checks": [results_rules],
        "jobs": [main_line, history_line],
        "sensors": [inbox],
        "schedules": [nightly_history],
        "resources": {"accel": Installation()},
        # Measuring starts processes of its own and must not compete with other steps; the rest takes seconds.
        "executor": dg.in_process_executor,
    }
    return dg.Definitions(**(parts | overrides))


defs = build_defs()
