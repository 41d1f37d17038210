"""The jobs of the graph. What runs inside them is decided by the assets."""

from __future__ import annotations

import dagster as dg

main_line = dg.define_asset_job(
    "main_line",
    selection=dg.AssetSelection.all(),
    description="The whole line: hardware, measurements and old results to checked tables, matrix and predictor.",
)
history_line = dg.define_asset_job(
    "history_line",
    selection=dg.AssetSelection.assets("legacy_history").downstream(),
    tags={"accel/line": "history"},  # dagster.yaml runs one of these at a time
    description="One source of old results, and everything that is made of it. Nothing is measured.",
)
