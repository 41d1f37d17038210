"""The asset `predictor`: trained on the published tables."""

from collections.abc import Iterator
from typing import Any

import dagster as dg

from accel_platform.bench.plan.run_locks import lock_host
from assets import metadata_previews
from assets.automation import MONTHLY_MODEL, WHEN_FIRST_TRAINABLE
from assets.data_versions import snapshot_metadata
from assets.failures import explain_failures
from assets.matrix import compat_matrix
from assets.resources import Installation

_FAMILIES_DRAWN = 25


@dg.asset(
    deps=[compat_matrix],
    group_name="answer",
    kinds={"lightgbm"},
    owners=["team:performance"],
    output_required=False,
    automation_condition=WHEN_FIRST_TRAINABLE,
    freshness_policy=MONTHLY_MODEL,
)
@explain_failures
def predictor(
    context: dg.AssetExecutionContext, accel: Installation
) -> Iterator[dg.MaterializeResult[Any] | dg.AssetObservation]:
    """Train the predictor, and promote it if it is not worse than the one that serves.

    With too little evidence nothing is trained: the asset stays, and an observation says why.
    """
    from predictor.training.train import NotEnoughEvidence, metric_rows, train

    try:
        with lock_host(accel.settings, context.log.info):
            report = train(accel.settings, accel.log, progress=context.log.info)
    except NotEnoughEvidence as too_little:
        context.log.warning(f"not trained: {too_little}")
        yield dg.AssetObservation("predictor", metadata={"trained": False, "reason": str(too_little)})
        return
    errors = metric_rows(report.metrics)
    by_family = [
        {"mode": mode, "family": family, "median_error": error}
        for mode, by_regime in report.metrics["latency"].items()
        for family, error in by_regime.get("family", {}).get("median_ape_by_group", {}).items()
    ]
    skipped = [{"cells": count, "left out because": reason} for reason, count in report.skipped.items()]
    yield dg.MaterializeResult(
        data_version=dg.DataVersion(report.snapshot_id),
        metadata={
            **snapshot_metadata(report.snapshot_id),
            "dagster/row_count": report.rows,
            "predictor_id": report.predictor_id,
            "trained_now": report.new,
            "families": report.families,
            "promoted": report.promoted,
            "why": report.reason,
            **{
                f"median_error/{mode}/{regime}": found["median_ape"]
                for mode, by_regime in report.metrics["latency"].items()
                for regime, found in by_regime.items()
            },
            **{f"compared/{mode}": dg.MetadataValue.json(found) for mode, found in report.metrics["compared"].items()},
            "skipped": metadata_previews.table(skipped, empty="Every cell was learned from."),
            "preview": metadata_previews.table(errors),
            "errors": _error_chart(by_family),
        },
    )


def _error_chart(by_family: list[dict[str, Any]]) -> dg.MarkdownMetadataValue:
    """Return a bar for each family and mode, those of the largest errors first."""
    import altair as alt

    worst = sorted(by_family, key=lambda row: row["median_error"], reverse=True)
    drawn = metadata_previews.among_first(worst, "family", _FAMILIES_DRAWN)
    title = "Median latency error on a family the model never saw"
    return metadata_previews.chart(
        alt.Chart({"values": drawn}, title=title if len(drawn) == len(worst) else f"{title}: the largest")
        .mark_bar()
        .encode(
            x=alt.X("median_error:Q", title=None).axis(format="%"),
            y=alt.Y("family:N", title=None).sort(field="median_error", op="max", order="descending"),
            yOffset=alt.YOffset("mode:N"),  # because stacked bars would add the errors of different modes
            color=alt.Color("mode:N"),
        )
        .properties(width=480, height=alt.Step(8))
    )
