"""What was measured elsewhere, into the event log: old benchmark files, and campaigns of other installations.

Which old shapes are understood is decided in `migrations`.
"""

from pathlib import Path
from typing import Any

import dagster as dg
from pydantic import Field

from assets import previews
from assets.resources import REPOSITORY, Installation
from migrations.importer import DocumentReport, migrate


class HistoryConfig(dg.Config):
    """Where old results lie."""

    paths: list[str] = Field(
        default=[str(REPOSITORY / "samples" / "legacy")],
        description="Files or directories of old benchmark results; by default the samples of this repository.",
    )


class CampaignConfig(dg.Config):
    """Which campaigns to start from."""

    paths: list[str] = Field(
        default=[str(path) for path in sorted((REPOSITORY / "samples" / "reference").glob("*.parquet"))],
        description="Files that `accel bench export` wrote; by default the reference campaign of this repository.",
    )


@dg.asset(group_name="observe", kinds={"parquet"}, owners=["team:performance"], op_tags={"dagster/priority": "1"})
def reference_campaign(
    context: dg.AssetExecutionContext, config: CampaignConfig, accel: Installation
) -> dg.MaterializeResult[Any]:
    """What others measured with this platform, hosts, versions and raw samples included.

    It stands beside this host's own figures and never in their place: what this host can measure, it measures.
    """
    taken = [(Path(path), accel.log.adopt(Path(path))) for path in config.paths]
    events = sum(one.events for _, one in taken)
    context.log.info(
        f"{events} events of {len(taken)} reference campaigns, {sum(one.new for _, one in taken)} of them new"
    )
    files = [{"file": path.name, "events": one.events, "new": one.new} for path, one in taken]
    return dg.MaterializeResult(
        metadata={"dagster/row_count": events, "preview": previews.table(files, empty="No campaigns.")}
    )


@dg.asset(
    group_name="observe",
    kinds={"json", "parquet"},
    owners=["team:performance"],
    op_tags={"dagster/priority": "1"},
)
def legacy_history(
    context: dg.AssetExecutionContext, config: HistoryConfig, accel: Installation
) -> dg.MaterializeResult[Any]:
    """Old result files as events: every file imported, recognised as holding no results, or quarantined with a reason.

    A file that the log already holds is not read into it again.
    """

    def progress(number: int, total: int, document: DocumentReport) -> None:
        if number % 25 == 0 or number == total:
            context.log.info(f"{number}/{total} files, last: {Path(document.source_path).name}")

    report = migrate([Path(path) for path in config.paths], accel.log, on_progress=progress)
    outcomes = ", ".join(f"{count} {outcome.replace('_', ' ')}" for outcome, count in sorted(report.outcomes.items()))
    context.log.info(
        f"{outcomes or 'no files'}; {report.records} new records, {report.suspects} suspected or simulated"
    )
    documents = [
        {
            "file": Path(d.source_path).name,
            "format": d.format,
            "outcome": "already imported" if d.already else d.outcome,
            "records": d.records,
            "failures": d.failures,
            "suspects": d.suspects,
            "reason": d.reason,
        }
        for d in report.documents
    ]
    return dg.MaterializeResult(
        metadata={
            "dagster/row_count": sum(d.records for d in report.documents),
            "files": report.found,
            "new_events": report.events,
            "outcomes": dg.MetadataValue.json(report.outcomes),
            "preview": previews.table(documents, empty="No files under the given paths."),
        }
    )
