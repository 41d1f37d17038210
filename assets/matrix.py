"""The asset `compat_matrix`, which also puts checked tables into service."""

from typing import Any

import dagster as dg

from accel_platform.bench.plan.run_locks import lock_host
from accel_platform.warehouse import publish
from accel_platform.warehouse.dictionary import table_columns
from accel_platform.warehouse.reader import Reader
from assets import metadata_previews
from assets.automation import MEASURED_RECENTLY, ON_CHECKED_UPDATE
from assets.data_versions import require_snapshot_id, snapshot_metadata
from assets.failures import explain_failures
from assets.resources import Installation
from assets.tables import all_rules_passed, results

_MATRIX = """
SELECT model_id, hardware, device_name, mode, state, rating, latency_p50_ms, batch_size, reason
FROM compat_matrix
ORDER BY greatest(last_worked_at, last_failed_at) DESC NULLS LAST, model_id, hardware, device_name, mode
"""
"""Cells with the newest results come first, because the preview and the chart show only the first of thousands."""
_MODELS_DRAWN = _DEVICES_DRAWN = 40


@dg.asset(
    deps=[results],
    group_name="answer",
    kinds={"duckdb"},
    owners=["team:performance"],
    automation_condition=ON_CHECKED_UPDATE,
    freshness_policy=MEASURED_RECENTLY,
)
@explain_failures
def compat_matrix(context: dg.AssetExecutionContext, accel: Installation) -> dg.MaterializeResult[Any]:
    """Rate which model runs on which device, and publish the tables to queries and the service.

    Tables without a full set of passed checks are audited first: nothing unchecked is published.
    """
    snapshot_id = require_snapshot_id(context, "results")
    with lock_host(accel.settings, context.log.info):
        staged = publish.stage(accel.settings, snapshot=accel.log.load_snapshot(snapshot_id))
        if not all_rules_passed(context.instance, snapshot_id):
            publish.check(staged)
        publish.publish(accel.settings, staged)
    reader = Reader(accel.settings)
    cells = reader.rows(_MATRIX)
    compatible = sum(cell["state"] == "compatible" for cell in cells)
    context.log.info(
        f"{compatible} of {len(cells)} pairs of model and device, by mode, are compatible; the tables are in service"
    )
    return dg.MaterializeResult(
        data_version=dg.DataVersion(reader.snapshot_id),
        metadata={
            **snapshot_metadata(reader.snapshot_id),
            "dagster/row_count": len(cells),
            **metadata_previews.schema(table_columns(reader, "compat_matrix")),
            "compatible": compatible,
            "failed": len(cells) - compatible,
            "path": dg.MetadataValue.path(staged.projection.directory / staged.projection.name),
            "preview": metadata_previews.table(cells, empty="No model has been measured or imported yet."),
            "ratings": _rating_chart(cells),
        },
    )


def _rating_chart(cells: list[dict[str, Any]]) -> dg.MarkdownMetadataValue:
    import altair as alt

    verdicts = [
        {
            "model": cell["model_id"],
            "device": " · ".join(
                part for part in (cell["hardware"], cell["device_name"], cell["mode"]) if part and part != "inference"
            ),
            "verdict": "failed" if cell["state"] == "failed" else cell["rating"] or "compatible, not rated",
        }
        for cell in cells
    ]
    drawn = metadata_previews.among_first(verdicts, "model", _MODELS_DRAWN)
    drawn = metadata_previews.among_first(drawn, "device", _DEVICES_DRAWN)
    title = "Compatibility" if len(drawn) == len(verdicts) else "Compatibility, where results are newest"
    scale = alt.Scale(
        domain=["high", "medium", "low", "compatible, not rated", "failed"],
        range=["#1a7f37", "#85c46c", "#e3b341", "#a8b3bd", "#cf222e"],
    )
    return metadata_previews.chart(
        alt.Chart({"values": drawn}, title=title)
        .mark_rect()
        .encode(
            x=alt.X("device:N", title=None),
            y=alt.Y("model:N", title=None),
            color=alt.Color("verdict:N", scale=scale, title=None),
        )
    )
