"""Imports into the event log: old benchmark files, and campaigns of other installations."""

import os
from collections import Counter
from pathlib import Path
from typing import Any

import dagster as dg
from pydantic import Field

from accel_platform.bench.plan.run_locks import lock_host
from accel_platform.knowledge import CAMPAIGNS
from accel_platform.table_io.values import count_of
from assets import metadata_previews
from assets.failures import explain_failures
from assets.partitions import legacy_sources, source_path, source_state
from assets.resources import Installation
from migrations.pipeline.importer import OVERDUE_CHECK, DocumentReport, migrate
from migrations.suspicion.summary import summarize_verdicts

STATE = "source_state"
"""Metadata: the state of the source when its reading began."""


class CampaignConfig(dg.Config):
    """Campaigns to start from."""

    paths: list[str] = Field(
        default=[str(path) for path in CAMPAIGNS],
        description="Files that `accel bench export` wrote; default: the shipped reference campaign.",
    )


@dg.asset(group_name="observe", kinds={"parquet"}, owners=["team:performance"], op_tags={"dagster/priority": "1"})
@explain_failures
def reference_campaign(
    context: dg.AssetExecutionContext, config: CampaignConfig, accel: Installation
) -> dg.MaterializeResult[Any]:
    """Import measurements of other hosts by this platform, with versions and raw samples.

    They stand beside this host's own results and never replace them.
    """
    taken = [(Path(path), accel.log.adopt(Path(path))) for path in config.paths]
    events = sum(one.events for _, one in taken)
    context.log.info(
        f"{count_of(events, 'event')} of {count_of(len(taken), 'reference campaign')}, "
        f"{sum(one.new for _, one in taken)} of the campaigns new"
    )
    files = [{"file": path.name, "events": one.events, "new": one.new} for path, one in taken]
    return dg.MaterializeResult(
        metadata={
            "dagster/row_count": events,
            "preview": metadata_previews.table(files, empty="No campaigns."),
            "events": metadata_previews.bars(files, "events", "file", title="Events by campaign"),
        }
    )


@dg.asset(
    partitions_def=legacy_sources,
    group_name="observe",
    kinds={"json", "parquet"},
    owners=["team:performance"],
    op_tags={"dagster/priority": "1"},
)
@explain_failures
def legacy_history(context: dg.AssetExecutionContext, accel: Installation) -> dg.MaterializeResult[Any]:
    """Import the old result files of one source: each imported, recognized as no results, or quarantined.

    Files that the log already holds are not read again.
    """
    if not context.has_partition_key:
        raise dg.Failure("Choose the source to import: it is the partition of the run, such as samples/legacy.")
    place = source_path(context.partition_key, accel.settings)
    if not place.exists():
        raise dg.Failure(f"{place} is not there: the source {context.partition_key} was moved or deleted.")
    state = source_state(place)

    def progress(number: int, total: int, document: DocumentReport) -> None:
        if number % 25 == 0 or number == total:
            context.log.info(f"file {number} of {total}: {Path(document.source_path).name}")

    with lock_host(accel.settings, context.log.info):
        report = migrate([place], accel.log, on_progress=progress)
    outcomes: dict[str, int] = dict(Counter(document.outcome for document in report.documents))
    judged = summarize_verdicts(accel.log, place)
    # The preview shows the first of them, so those come first that somebody has to look at.
    documents = sorted(report.documents, key=lambda one: (one.outcome != "quarantined", not one.suspects))
    known = report.outcomes.get("already_imported", 0)
    before = f"; known before: {count_of(known, 'file')}" if known else ""
    context.log.info(f"{_join_counts(outcomes) or 'no files'}{before}; {count_of(report.records, 'new record')}")
    if report.overdue_check:
        context.log.info(f"{OVERDUE_CHECK} New suspicions: {report.suspected_across}")
    context.log.info(f"results of this source: {_join_counts(judged.provenance) or 'none'}")
    return dg.MaterializeResult(
        metadata={
            "dagster/row_count": sum(document.records for document in report.documents),
            "files": report.found,
            "already_imported": known,
            "new_events": report.events,
            "quarantined": outcomes.get("quarantined", 0),
            "outcomes": dg.MetadataValue.json(outcomes),
            "verdicts": dg.MetadataValue.json(judged.provenance),
            "suspicions": metadata_previews.table(
                [{"rule": rule, "verdict": verdict, "results": results} for rule, verdict, results in judged.rules],
                empty="No result of this source is doubted.",
            ),
            "preview": metadata_previews.table(
                [_row(document, place) for document in documents], empty="No files in this source."
            ),
            "files_by_outcome": metadata_previews.bars(
                [{"outcome": outcome, "files": files} for outcome, files in outcomes.items()],
                "files",
                "outcome",
                title="What became of the files",
            ),
            **({STATE: state.digest} if state else {}),
        }
    )


def _join_counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in sorted(counts.items()))


def _row(document: DocumentReport, place: Path) -> dict[str, Any]:
    return {
        "file": os.path.relpath(document.source_path, place) if place.is_dir() else place.name,
        "format": document.format,
        "outcome": document.outcome,
        "new": not document.already,
        "records": document.records,
        "failures": document.failures,
        "suspects": document.suspects,
        "reason": document.reason,
    }
