"""Steps that compute for long: none of them does beside a measurement."""

from __future__ import annotations

import logging
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest

from accel_platform.bench.plan.run_locks import lock_host
from accel_platform.events import EventLog
from accel_platform.settings import Settings
from assets.resources import Installation


class Probed(Exception):
    """The work of a step began."""


@pytest.mark.parametrize(
    ("step", "work"),
    [
        ("assets.tables.results", "assets.tables.publish.stage"),
        ("assets.tables.results_rules", "assets.tables.publish.stage"),
        ("assets.matrix.compat_matrix", "assets.matrix.publish.stage"),
        ("assets.models.predictor", "predictor.training.train.train"),
        ("assets.legacy_imports.legacy_history", "assets.legacy_imports.migrate"),
        ("assets.report.daily_report", "assets.report.compare_tables"),
        ("assets.triggers.jobs.pack_log", "assets.triggers.jobs.compact"),
    ],
)
def test_a_step_has_the_host_to_itself(
    step: str, work: str, settings: Settings, log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def probe(*_: object, **__: object) -> None:
        with pytest.raises(TimeoutError), lock_host(settings, waits):
            pass
        raise Probed

    def waits(_: str) -> None:
        raise TimeoutError

    snapshot_id = log.save_snapshot(log.snapshot())
    monkeypatch.setattr(work, probe)
    monkeypatch.setattr("assets.report.tables_at", lambda settings, snapshot, **_: settings)
    module, _, name = step.rpartition(".")
    monkeypatch.setattr(f"{module}.require_snapshot_id", lambda *_: snapshot_id, raising=False)
    (settings.inbox_dir / "old").mkdir(parents=True)
    partition = "2026-11-01" if name == "daily_report" else "inbox/old"
    context: Any = SimpleNamespace(log=logging.getLogger(), partition_key=partition, has_partition_key=True)
    definition = getattr(import_module(module), name)
    compute: Any = (definition if isinstance(definition, dg.OpDefinition) else definition.op).compute_fn
    with pytest.raises(Probed):
        list(compute.decorated_fn(context, accel=Installation(home=str(settings.home))))
