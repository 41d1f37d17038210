"""`accel regress check`: a gate that compares a candidate's results with a baseline's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from accel_platform.analysis.regressions.thresholds import MIN_CHANGE_PERCENT
from accel_platform.cli.options import AsOf, Home, Json, min_change, output_file
from accel_platform.cli.output import line_width, note, print_error, print_json, print_table, say, settings_for

if TYPE_CHECKING:
    from accel_platform.analysis.query.run_refs import RunSet
    from accel_platform.analysis.regressions.check import Check
    from accel_platform.analysis.regressions.decision import Decision
    from accel_platform.events.types import RegressionFound
    from accel_platform.settings import Settings
    from accel_platform.warehouse.reader import Reader

_PLANS = "SELECT run_id, plan, labels FROM runs WHERE list_contains($runs, run_id) ORDER BY run_id"


CheckFormat = Literal["table", "json", "markdown", "junit"]


def check(
    *,
    baseline: Annotated[str, typer.Option(metavar="REF", help="A run's id, the commit of runs, or a git ref.")],
    candidate: Annotated[str, typer.Option(metavar="REF", help="The same, for the candidate.")],
    min_change_percent: Annotated[float, min_change("change", at_least=1, memory=True)] = MIN_CHANGE_PERCENT,
    confirm: Annotated[
        bool, typer.Option("--confirm", help="Measure suspect cells again on this host before reporting them.")
    ] = False,
    record: Annotated[bool, typer.Option("--record", help="Record regressions, for `accel regress list`.")] = False,
    markdown: Annotated[
        Path | None,
        typer.Option(callback=output_file, help="Also write Markdown for a pull request.", show_default=False),
    ] = None,
    junit: Annotated[
        Path | None,
        typer.Option(callback=output_file, help="Also write JUnit XML.", show_default=False),
    ] = None,
    as_of: AsOf = None,
    home: Home = None,
    as_json: Json = False,
    format_: Annotated[CheckFormat, typer.Option("--format", help="How to print the answer.")] = "table",
) -> None:
    """Compare a candidate's results with a baseline's, cell by cell.

    Exit code 0: no regression. 1: a regression. 2: no decision is possible, or the input is invalid.
    """
    from accel_platform.analysis.regressions.check import CANNOT_DECIDE
    from accel_platform.errors import AccelError, InvalidInput

    try:
        if as_json and format_ not in ("table", "json"):
            raise InvalidInput(f"--json and --format {format_} are two formats: choose one.")
        reject_as_of(as_of, confirm=confirm, record=record)
        settings = settings_for(home, as_of)
        checked = _run_check(settings, baseline, candidate, min_change_percent, confirm=confirm, record=record)
        _write(checked, markdown, junit, recorded=record)
    except AccelError as error:
        # Not exit code 1, because that reports a regression.
        print_error(error)
        raise typer.Exit(CANNOT_DECIDE) from error
    _print(checked, "json" if as_json else format_, recorded=record)
    if not confirm and (undecided := checked.count("suspicious")):
        cells = "1 cell looks" if undecided == 1 else f"{undecided} cells look"
        note(f"{cells} changed, which is not decided: add --confirm to measure again on the candidate's host.")
    raise typer.Exit(checked.exit_code)


def _run_check(
    settings: Settings, baseline: str, candidate: str, min_change_percent: float, *, confirm: bool, record: bool
) -> Check:
    from accel_platform.analysis.query.run_refs import resolve_runs
    from accel_platform.analysis.regressions.check import check, suspicious_cells
    from accel_platform.errors import InvalidInput

    reader = open_tables(settings)
    old, new = resolve_runs(reader, baseline), resolve_runs(reader, candidate)
    if both := set(old.run_ids) & set(new.run_ids):
        raise InvalidInput(
            f"Baseline {baseline} and candidate {candidate} both mean run {min(both)}: name two things. To hold a "
            'commit against itself, name two of its runs: `accel db query "SELECT * FROM runs"` has their ids.'
        )
    checked = check(reader, old, new, min_change_percent=min_change_percent)
    if confirm and (doubtful := suspicious_cells(checked)):
        again = _remeasure(settings, reader, new, doubtful)
        if again:
            checked = check(open_tables(settings), old, new, min_change_percent=min_change_percent, again=again)
    if record:
        from accel_platform.analysis.regressions.changepoint_history import regression_event

        found = [regression_event(d) for d in checked.decisions if d.moved]
        record_regressions(settings, found)
    return checked


def _remeasure(settings: Settings, reader: Reader, candidate: RunSet, doubtful: Sequence[Decision]) -> list[str]:
    """Remeasure the suspect cells as the candidate's runs did. Return the run ids, none for runs of other hosts."""
    import json

    from accel_platform.analysis.regressions.check import MAX_CONFIRMING_RUNS, MIN_CONFIRMING_RUNS
    from accel_platform.bench.plan.plan import result_key
    from accel_platform.bench.plan.run_options import commit_from_environment
    from accel_platform.benchmark_api import remeasure_cells
    from accel_platform.errors import InvalidInput
    from accel_platform.signals import sigterm_as_interrupt

    here = commit_from_environment()
    if here and candidate.commit and not (here.startswith(candidate.commit) or candidate.commit.startswith(here)):
        raise InvalidInput(
            f"--confirm would measure commit {here[:12]}, which the environment says is here, and not the candidate"
            f" {candidate.commit[:12]}: check that out, or leave --confirm away."
        )
    wanted = {result_key(decision.series) for decision in doubtful}
    most = max(decision.processes_needed or 0 for decision in doubtful)
    times = min(max(most, MIN_CONFIRMING_RUNS), MAX_CONFIRMING_RUNS)
    cells = (
        "1 cell is suspect: measuring it" if len(wanted) == 1 else f"{len(wanted)} cells are suspect: measuring them"
    )
    note(f"{cells} {times} times again")
    rows = reader.rows(_PLANS, {"runs": list(candidate.run_ids)})
    plans = [json.loads(row["plan"]) for row in rows]
    labels = {**json.loads(rows[-1]["labels"] or "{}"), "confirms": rows[-1]["run_id"]}
    with sigterm_as_interrupt():
        runs = remeasure_cells(plans, wanted, times, settings, labels=labels, on_progress=note)
    if not runs:
        note("None of them is of this host as it is now: nothing was measured again.")
    return runs


def _write(checked: Check, markdown: Path | None, junit: Path | None, *, recorded: bool) -> None:
    from accel_platform.reports import regressions
    from accel_platform.table_io.files import save_bytes

    for path, text in ((markdown, regressions.markdown), (junit, regressions.junit)):
        if path is not None:
            save_bytes(path, text(checked, recorded=recorded).encode())


def _print(checked: Check, format_: CheckFormat, *, recorded: bool) -> None:
    from accel_platform.reports import regressions

    if format_ == "markdown":
        typer.echo(regressions.markdown(checked, recorded=recorded), nl=False)
    elif format_ == "junit":
        typer.echo(regressions.junit(checked, recorded=recorded), nl=False)
    elif format_ == "json":
        print_json(as_document(checked))
    else:
        rows = [
            {
                "state": decision.state,
                "model_id": decision.series.model_id,
                "cell": text,
                **regressions.short_shift(vars(decision)),
                "noise_percent": decision.noise_percent,
                "processes": f"{decision.processes_before} / {decision.processes_after}",
                "why": regressions.why(decision),
            }
            for text, decision in regressions.named_decisions(checked)
        ]
        reasons = _take_reasons(rows)
        print_table(rows, missing="No cell was measured on either side.", keep=("change_percent",), whole=("cell",))
        for reason in reasons:
            say(reason)
        note(f"{regressions.title(checked)}.")
        if (hint := regressions.common_shift(checked)) is not None:
            note(hint)
        if (step := regressions.next_step(checked.decisions, recorded=recorded)) is not None:
            note(step)


def _take_reasons(rows: list[dict[str, Any]]) -> list[str]:
    """Return the reasons as lines and remove their column, where a terminal cannot show it whole; else nothing."""
    from accel_platform.table_io.width import fits, without_constant_columns

    width = line_width()
    if width is None or len(rows) < 2 or fits(without_constant_columns(rows)[0], width):
        return []
    reasons = [(f"{row['model_id']}, {row['cell']}", row["measure"], row.pop("why")) for row in rows]
    return [f"{cell}, {measure}: {why}" for cell, measure, why in reasons if why]


def as_document(checked: Check) -> dict[str, Any]:
    """Return the check as a JSON document."""
    from dataclasses import asdict

    from accel_platform.analysis.regressions.changepoint_history import decision_id

    cells = []
    for decision in checked.decisions:
        fields = {name: value for name, value in vars(decision).items() if name != "series"}
        cells.append({**decision.series.model_dump(), **fields, "regression_id": decision_id(decision)})
    return {
        "exit_code": checked.exit_code,
        "baseline": asdict(checked.baseline),
        "candidate": asdict(checked.candidate),
        "snapshot_id": checked.snapshot_id,
        "cells": cells,
    }


def reject_as_of(as_of: str | None, **options: bool) -> None:
    """Raise InvalidInput if --as-of is combined with an option that adds to the log."""
    from accel_platform.errors import InvalidInput

    given = [f"--{name}" for name, wanted in options.items() if wanted]
    if as_of is not None and given:
        raise InvalidInput(f"--as-of looks back, and {' and '.join(given)} would add to the log: leave one away.")


def open_tables(settings: Settings) -> Reader:
    """Return a reader of the tables, brought up to date with the log."""
    from accel_platform.warehouse.publish import bring_up_to_date
    from accel_platform.warehouse.reader import Reader

    bring_up_to_date(settings, progress=note)
    return Reader(settings)


def record_regressions(settings: Settings, found: Sequence[RegressionFound]) -> None:
    """Append new regressions to the log; known ones are skipped."""
    from accel_platform.analysis.regressions.changepoint_history import record_regressions
    from accel_platform.events import EventLog

    new = record_regressions(EventLog.open(settings), found, source="accel regress")
    note(f"{len(found)} found, {len(new)} of them new: recorded." if found else "Nothing found to record.")
