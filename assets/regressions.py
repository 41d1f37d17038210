"""Regressions: shifts in series, and commits against their baselines."""

from collections.abc import Sequence
from typing import Any

import dagster as dg
from pydantic import Field

from accel_platform.analysis.query.measured import read_series_of_runs
from accel_platform.analysis.regressions.changepoint_history import decision_id, find_shifts, record_regressions
from accel_platform.analysis.regressions.commit_gate import (
    MeasuredCommit,
    check_commit,
    measured_commits,
    record_check,
    reported_regressions,
    unchecked_commits,
)
from accel_platform.analysis.regressions.thresholds import MIN_CHANGE_PERCENT
from accel_platform.analysis.regressions.triage import read_decisions
from accel_platform.events import Event, Snapshot
from accel_platform.events.types import RegressionFound
from accel_platform.reports.regressions import markdown, name_regressions, name_shifts
from accel_platform.warehouse.dictionary import table_columns
from accel_platform.warehouse.reader import Reader
from assets import metadata_previews
from assets.automation import MEASURED_RECENTLY, ON_CHECKED_UPDATE
from assets.data_versions import last_snapshot_id, segments_of, snapshot_metadata
from assets.failures import explain_failures
from assets.matrix import compat_matrix
from assets.resources import Installation

_SOURCE = "assets.regressions"
_EARLY = {"dagster/priority": "1"}
"""Before the predictor, because its training takes a minute, and a regression should not wait for it."""
_TABLE = """
SELECT regression_id, state, direction, model_id, hardware, batch_size, measure, before_ms, after_ms, before_mib,
    after_mib, change_percent, found_by, found_at, array_to_string(commits_after, ', ') AS commits
FROM regressions ORDER BY found_at DESC, regression_id
"""


@dg.asset(
    deps=[compat_matrix],
    group_name="answer",
    kinds={"duckdb", "parquet"},
    owners=["team:performance"],
    op_tags=_EARLY,
    automation_condition=ON_CHECKED_UPDATE,
    freshness_policy=MEASURED_RECENTLY,
)
@explain_failures
def regressions(context: dg.AssetExecutionContext, accel: Installation) -> dg.MaterializeResult[Any]:
    """Find shifts in series of measurements, and list what became of each.

    Series measured since the last time are examined again. A new shift is an event, and a row of the next tables.
    """
    log, reader = accel.log, Reader(accel.settings)
    snapshot_id = reader.snapshot_id
    last = last_snapshot_id(context, "regressions")
    made_from = segments_of(log, last)
    # Also of runs that began long ago: one may be killed, and then no end tells of its last results.
    runs = log.run_ids(Snapshot(log.load_snapshot(snapshot_id).segments - made_from))
    found = find_shifts(
        read_series_of_runs(reader, runs), read_decisions(reader), min_change_percent=MIN_CHANGE_PERCENT
    )
    # What is found at first are the shifts of years ago. The check of a commit that is due tells its own.
    due = {commit.name for commit in unchecked_commits(reader)}
    shifts = [
        shift.model_copy(
            update={"notified": last is not None and shift.state == "regressed" and due.isdisjoint(shift.commits_after)}
        )
        for series in found
        for shift in series.shifts
    ]
    new = record_regressions(log, shifts, source=_SOURCE)
    _notify(context, accel, new)
    rows = reader.rows(_TABLE)
    context.log.info(f"{len(found)} series looked at; shifts: {len(new)} new, {len(rows)} in the tables")
    return dg.MaterializeResult(
        data_version=dg.DataVersion(snapshot_id),
        metadata={
            **snapshot_metadata(snapshot_id),
            "dagster/row_count": len(rows),
            **metadata_previews.schema(table_columns(reader, "regressions")),
            "open": sum(row["state"] == "open" for row in rows),
            "series_looked_at": len(found),
            "new": len(new),
            "preview": metadata_previews.table(rows, empty="No series moved."),
            "changes": _change_chart(rows),
        },
    )


def _notify(context: dg.AssetExecutionContext, accel: Installation, new: Sequence[Event]) -> None:
    """Send one message about the new shifts that are to be told, with the event of the first."""
    told = [
        (event, event.payload) for event in new if isinstance(event.payload, RegressionFound) and event.payload.notified
    ]
    if told:
        names = name_shifts([shift for _, shift in told])
        accel.notify(told[0][0], f"a series of results moved for the worse: {names}", warn=context.log.warning)


def _change_chart(rows: list[dict[str, Any]]) -> dg.MarkdownMetadataValue:
    import altair as alt

    shown = [{**row, "found_at": row["found_at"].isoformat()} for row in rows if row["change_percent"] is not None]
    return metadata_previews.chart(
        alt.Chart({"values": shown}, title="Shifts: change of the median latency, or of the peak memory")
        .mark_point(filled=True, size=60)
        .encode(
            x=alt.X("found_at:T", title=None),
            y=alt.Y("change_percent:Q", title="per cent"),
            color=alt.Color("state:N", title=None),
            shape=alt.Shape("hardware:N", title=None),
        )
        .properties(width=480)
    )


class CommitConfig(dg.Config):
    """Commit to check."""

    commit: str | None = Field(default=None, description="As its runs are labelled; default: the one measured last.")


@dg.asset_check(
    asset=regressions,
    op_tags=_EARLY,
    description="The commit measured last takes no more time or memory than its baseline, and fails no more often.",
)
@explain_failures
def commit_gate(
    context: dg.AssetCheckExecutionContext, config: CommitConfig, accel: Installation
) -> dg.AssetCheckResult:
    """Compare a commit's results with its baseline's, and record the outcome as events.

    The check blocks nothing, because tables and models hold all commits. An undecided comparison is a warning.
    """
    reader = Reader(accel.settings)
    commit = _find_commit(measured_commits(reader), config.commit)
    if commit is None:
        return dg.AssetCheckResult(
            passed=True,
            metadata={"reason": "No benchmark run is labelled with a commit: `--label commit=SHA` does that."},
        )
    checked, outcome = check_commit(reader, commit)
    regressed = checked is not None and outcome.outcome == "regressed"
    why = name_regressions(checked) if checked is not None and regressed else outcome.reason
    event = record_check(accel.log, checked, outcome, source=_SOURCE)
    found = {decision_id(d) for d in checked.decisions if d.state == "regressed"} if checked is not None else set()
    if event is not None and regressed and not found <= reported_regressions(reader):
        against = f"commit {commit.name[:12]} regressed against {str(outcome.baseline)[:12]}"
        accel.notify(event, f"{against}: {why}", warn=context.log.warning)
    context.log.info(f"commit {commit.name[:12]}: {outcome.outcome}{f' ({why})' if why else ''}")
    return dg.AssetCheckResult(
        passed=outcome.outcome == "passed",
        severity=dg.AssetCheckSeverity.ERROR if regressed else dg.AssetCheckSeverity.WARN,
        description=why,
        metadata={
            "commit": outcome.commit,
            "baseline": outcome.baseline or "none",
            "outcome": outcome.outcome,
            "cells": dg.MetadataValue.json(outcome.cells),
            "regressions": ", ".join(outcome.regressions) or "none",
            "report": dg.MetadataValue.md(markdown(checked, recorded=True) if checked else str(outcome.reason)),
        },
    )


def _find_commit(known: list[MeasuredCommit], name: str | None) -> MeasuredCommit | None:
    if name is None:
        return max(known, key=lambda commit: commit.run_ids[-1], default=None)
    found = next((commit for commit in known if commit.name == name), None)
    if found is None:
        raise dg.Failure(f"No benchmark run that ended is labelled with the commit {name}.")
    return found
