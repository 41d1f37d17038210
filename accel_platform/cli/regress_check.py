"""`accel regress check`: gate a change by what was measured before it and with it. The judgement is in `analysis`."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from accel_platform.cli.output import (
    AsOf,
    Home,
    Json,
    note,
    print_json,
    print_table,
    settings_for,
)

if TYPE_CHECKING:
    from accel_platform.events.types import RegressionFound
    from accel_platform.settings import Settings
    from accel_platform.warehouse.reader import Reader

if TYPE_CHECKING:
    from accel_platform.analysis.query.run_refs import Side
    from accel_platform.analysis.regressions.check import Check
    from accel_platform.analysis.regressions.regression_test import Decision
    from accel_platform.settings import Settings
    from accel_platform.warehouse.reader import Reader

CANNOT_DECIDE = 2
_PLANS = "SELECT run_id, plan, labels FROM runs WHERE list_contains($runs, run_id) ORDER BY run_id"


class CheckFormat(enum.StrEnum):
    table = "table"
    json = "json"
    markdown = "markdown"
    junit = "junit"


def check(
    *,
    baseline: Annotated[str, typer.Option(metavar="REF", help="A run's id, the commit of runs, or a git ref.")],
    candidate: Annotated[str, typer.Option(metavar="REF", help="The same, of what is to be judged.")],
    min_change_percent: Annotated[
        float, typer.Option("--min-change", min=1.0, help="Smallest change worth an alert, in per cent.")
    ] = 3.0,
    confirm: Annotated[
        bool, typer.Option("--confirm", help="Measure suspect cells again, now and here, before an alert is raised.")
    ] = False,
    record: Annotated[bool, typer.Option("--record", help="Keep what is found, for `accel regress list`.")] = False,
    markdown: Annotated[
        Path | None, typer.Option("--markdown", help="Also write Markdown for a pull request.", show_default=False)
    ] = None,
    junit: Annotated[Path | None, typer.Option("--junit", help="Also write JUnit XML.", show_default=False)] = None,
    as_of: AsOf = None,
    home: Home = None,
    as_json: Json = False,
    format_: Annotated[CheckFormat, typer.Option("--format", help="How to print the answer.")] = CheckFormat.table,
) -> None:
    """Hold a candidate's results against its baseline's, cell by cell.

    Exit code 0: nothing regressed. 1: something did. 2: nothing can be decided, or the question is wrong.
    """
    from accel_platform.errors import AccelError

    try:
        require_now(as_of, confirm=confirm, record=record)
        settings = settings_for(home, as_of)
        checked = _check(settings, baseline, candidate, min_change_percent, confirm=confirm, record=record)
        _write(checked, markdown, junit)
    except AccelError as error:
        # 1 would say that something regressed.
        note(f"accel: {error}")
        raise typer.Exit(CANNOT_DECIDE) from error
    _print(checked, CheckFormat.json if as_json else format_)
    raise typer.Exit(checked.exit_code)


def _check(
    settings: Settings, baseline: str, candidate: str, min_change_percent: float, *, confirm: bool, record: bool
) -> Check:
    from accel_platform.analysis.query.run_refs import runs_of
    from accel_platform.analysis.regressions.check import check, suspects
    from accel_platform.errors import InvalidInput

    reader = tables(settings)
    old, new = runs_of(reader, baseline), runs_of(reader, candidate)
    if both := set(old.run_ids) & set(new.run_ids):
        raise InvalidInput(f"Baseline {baseline} and candidate {candidate} both mean run {min(both)}: name two things.")
    checked = check(reader, old, new, min_change_percent=min_change_percent)
    if confirm and (doubtful := suspects(checked)):
        again = _measure_again(settings, reader, new, doubtful)
        if again:
            checked = check(tables(settings), old, new, min_change_percent=min_change_percent, again=again)
    if record:
        from accel_platform.analysis.regressions.changepoint_history import regression_of

        found = [regression_of(d) for d in checked.decisions if d.moved]
        record_found(settings, found)
    return checked


def _measure_again(settings: Settings, reader: Reader, candidate: Side, doubtful: Sequence[Decision]) -> list[str]:
    """Measure the suspect cells as the candidate's runs did; the runs, none where they are of other hosts."""
    import json

    from accel_platform.bench.plan.plan import result_key
    from accel_platform.bench.plan.run_options import commit_from_environment
    from accel_platform.bench.run.repetition import remeasure_cells
    from accel_platform.errors import InvalidInput

    here = commit_from_environment()
    if here and candidate.commit and not (here.startswith(candidate.commit) or candidate.commit.startswith(here)):
        raise InvalidInput(
            f"--confirm would measure commit {here[:12]}, which the environment says is here, and not the candidate"
            f" {candidate.commit[:12]}: check that out, or leave --confirm away."
        )
    wanted = {result_key(decision.series) for decision in doubtful}
    most = max(decision.processes_needed or 0 for decision in doubtful)
    times = min(max(most, 3), 5)
    note(f"{len(wanted)} cells are suspect: measuring them {times} times again")
    rows = reader.rows(_PLANS, {"runs": list(candidate.run_ids)})
    plans = [json.loads(row["plan"]) for row in rows]
    labels = {**json.loads(rows[-1]["labels"] or "{}"), "confirms": rows[-1]["run_id"]}
    runs = remeasure_cells(plans, wanted, times, settings, labels=labels, on_progress=note)
    if not runs:
        note("None of them is of this host as it is now: nothing was measured again.")
    return runs


def _write(checked: Check, markdown: Path | None, junit: Path | None) -> None:
    from accel_platform.errors import AccelError
    from accel_platform.reports import regressions

    for path, text in ((markdown, regressions.markdown), (junit, regressions.junit)):
        if path is None:
            continue
        try:
            path.write_text(text(checked), encoding="utf-8")
        except OSError as error:
            raise AccelError(f"{path} cannot be written: {error.strerror}.") from error


def _print(checked: Check, format_: CheckFormat) -> None:
    from accel_platform.reports import regressions

    if format_ is CheckFormat.markdown:
        typer.echo(regressions.markdown(checked), nl=False)
    elif format_ is CheckFormat.junit:
        typer.echo(regressions.junit(checked), nl=False)
    elif format_ is CheckFormat.json:
        print_json(as_document(checked))
    else:
        rows = [
            {
                "state": decision.state,
                "model_id": decision.series.model_id,
                "cell": regressions.cell(decision.series),
                "before_ms": decision.before_ms,
                "after_ms": decision.after_ms,
                "change_percent": decision.change_percent,
                "noise_percent": decision.noise_percent,
                "processes": f"{decision.processes_before} / {decision.processes_after}",
                "why": regressions.why(decision),
            }
            for decision in checked.decisions
        ]
        print_table(rows, empty="No cell was measured on either side.")
        note(f"{regressions.title(checked)}.")


def as_document(checked: Check) -> dict[str, Any]:
    """The check as JSON."""
    from dataclasses import asdict

    from accel_platform.analysis.regressions.changepoint_history import regression_id

    cells = []
    for decision in checked.decisions:
        first = decision.first_result
        alerts = decision.moved and first is not None
        told = {name: value for name, value in vars(decision).items() if name != "series"}
        cells.append(
            {
                **decision.series.model_dump(),
                **told,
                "regression_id": regression_id(decision.series, first) if alerts and first else None,
            }
        )
    return {
        "exit_code": checked.exit_code,
        "baseline": asdict(checked.baseline),
        "candidate": asdict(checked.candidate),
        "snapshot_id": checked.snapshot_id,
        "cells": cells,
    }


def require_now(as_of: str | None, **asked: bool) -> None:
    """Looking back measures nothing and finds nothing new. Raises InvalidInput for an option that would."""
    from accel_platform.errors import InvalidInput

    options = [f"--{name}" for name, wanted in asked.items() if wanted]
    if as_of is not None and options:
        raise InvalidInput(f"--as-of looks back, and {' and '.join(options)} would add to the log: leave one away.")


def tables(settings: Settings) -> Reader:
    """The tables, brought up to the log."""
    from accel_platform.warehouse.publish import bring_up_to_date
    from accel_platform.warehouse.reader import Reader

    bring_up_to_date(settings, progress=note)
    return Reader(settings)


def record_found(settings: Settings, found: Sequence[RegressionFound]) -> None:
    """Append what was found, each once: finding it again changes nothing."""
    from accel_platform.analysis.regressions.changepoint_history import record
    from accel_platform.events import EventLog

    new = record(EventLog.open(settings), found, source="accel regress")
    note(f"{len(found)} found, {new} of them new: recorded.")
