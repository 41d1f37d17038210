"""An installation that every page of the dashboard has something to show of. The figures are made up."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from commits_world import NEW, OLD, Ci

from accel_platform.analysis.query.measured import read_measured_series
from accel_platform.analysis.regressions.changepoint_history import find_shifts, record_regressions
from accel_platform.analysis.regressions.triage import read_decisions
from accel_platform.events import EventLog
from accel_platform.events.snapshots import take_snapshot
from accel_platform.events.types import Payload, RecordQuarantined, Suspicion
from accel_platform.settings import Settings
from accel_platform.warehouse.publish import refresh
from accel_platform.warehouse.reader import Reader
from predictor_world import MODELS, append, result, world

HOSTILE = "<script>alert('x')</script>\"/onerror=1"
BEFORE = "before-the-change"
PATHS = (
    "",
    "/models",
    "/models/bert-base",
    "/hardware",
    "/hardware/cpu?device=cpu-test-8-core",
    "/matrix",
    "/matrix/cell?model=bert-base&hardware=cpu",
    "/compare",
    "/compare?model=bert-base",
    "/regressions",
    "/recommend",
    "/recommend?model=bert-base&batch_size=2",
    "/serving",
    "/serving?model=llama-3.1-8b&users=16&quantization=fp8",
    "/history",
    "/knowledge",
    "/knowledge/timm",
    "/results",
    "/runs",
    "/requests",
    "/events",
    "/matrix/history?model=bert-base&hardware=cpu",
    "/compare/changes",
    f"/compare/changes?model=bert-base&before={BEFORE}",
)


def pages_world(home: Path, grid: Iterable[Payload] | None = None) -> Settings:
    """The measured grid, a hostile import, something in quarantine, and a series that got slower."""
    settings = world(home, grid)
    doubt = Suspicion(rule="round_time", verdict="suspect", evidence=f"exactly 1 s {HOSTILE}", confidence=0.7)
    hostile = result(
        MODELS[0], "cuda", 2, provenance="suspect", model_id=HOSTILE, device=HOSTILE, source_path=f"{HOSTILE}.json",
        suspicions=(doubt,), environment={"note": HOSTILE},
    )  # fmt: skip
    aside = RecordQuarantined(source_path="old.json", rule="unreadable", reason=HOSTILE, content=HOSTILE)
    append(settings, [hostile, aside], publish=False)
    log = EventLog.open(settings)
    ci = Ci(log)
    ci.runs(8, OLD)
    take_snapshot(log, BEFORE)
    ci.runs(5, NEW, 1.4)
    refresh(settings)
    reader = Reader(settings)
    found = find_shifts(read_measured_series(reader), read_decisions(reader), min_change_percent=3.0)
    assert len(record_regressions(log, [shift for one in found for shift in one.shifts], source="test")) == 1
    refresh(settings)
    return settings
