"""Jobs of the asset graph."""

from __future__ import annotations

import dagster as dg

from assets.regressions import commit_gate
from assets.report import daily_report

_ALL = dg.AssetSelection.all() - dg.AssetSelection.assets(daily_report)

full_pipeline = dg.define_asset_job(
    "full_pipeline",
    selection=_ALL,
    description="The whole line: hardware, measurements and old results to checked tables, matrix and predictor.",
)
history_line = dg.define_asset_job(
    "history_line",
    # Training takes longer than all else; `nightly_training` does it once for all sources.
    selection=(dg.AssetSelection.assets("legacy_history").downstream() & _ALL) - dg.AssetSelection.assets("predictor"),
    tags={"accel/line": "history"},  # dagster.yaml runs one of these at a time
    description="One source of old results, and the tables, matrix and regressions that are made of it. Nothing is "
    "measured or trained.",
)
commit_line = dg.define_asset_job(
    "commit_line",
    selection=dg.AssetSelection.checks(commit_gate),
    tags={"accel/line": "commit"},
    description="One commit's results against its baseline's.",
)
training = dg.define_asset_job(
    "training",
    selection=dg.AssetSelection.assets("predictor"),
    description="A predictor of what is in service now.",
)
report = dg.define_asset_job(
    "report",
    selection=dg.AssetSelection.assets(daily_report),
    description="What one day brought.",
)
