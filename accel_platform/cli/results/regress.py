"""`accel regress`: performance shifts in series of results, and decisions about them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer

from accel_platform.analysis.regressions.thresholds import MIN_CHANGE_PERCENT, MIN_SERIES_CHANGE_PERCENT
from accel_platform.cli.options import (
    AsOf,
    Branch,
    CommandApp,
    CommonOptions,
    Json,
    ManyValues,
    OutputFormat,
    TableOptions,
    build_selection,
    min_change,
    wants_json,
    with_filters,
)
from accel_platform.cli.output import note, print_json, print_table, settings_for, write_answer
from accel_platform.cli.results import regress_check
from accel_platform.cli.results.regress_check import open_tables, record_regressions, reject_as_of
from accel_platform.table_io.values import count_of

if TYPE_CHECKING:
    from accel_platform.events.types import DecidedShift, ShiftAccepted, ShiftRejected, ShiftReopened
    from accel_platform.settings import Settings
    from accel_platform.warehouse.reader import Reader

    Decision = TypeVar("Decision", ShiftAccepted, ShiftRejected, ShiftReopened)

app = CommandApp(help="Find performance changes in series of results.", no_args_is_help=True)
app.command("check")(regress_check.check)

_FIGURES = ("measure", "before_ms", "after_ms", "before_mib", "after_mib", "change_percent")

RegressionIds = Annotated[list[str], typer.Argument(metavar="ID", help="Ids from `accel regress list`.")]
Reason = Annotated[str, typer.Option(help="The reason; stored permanently.")]
By = Annotated[str | None, typer.Option(help="Your name.", envvar=["ACCEL_USER", "USER"])]


RegressionState = Literal["open", "accepted", "rejected", "gone"]


@app.callback()
def regress() -> None:
    """Find performance changes in series of results."""


@app.command()
def series(
    path: Annotated[Path, typer.Argument(metavar="FILE.csv", help="A CSV file with a header.")],
    value: Annotated[str, typer.Option(help="The column of measurements.")],
    group: Annotated[
        str | None,
        typer.Option(
            help="Rows equal in this column, such as a build, count as one: their median.", show_default="none"
        ),
    ] = None,
    online: Annotated[
        bool,
        typer.Option("--online", help="Process value by value, as an online detector, instead of the whole series."),
    ] = False,
    min_change_percent: Annotated[float, min_change("shift")] = MIN_SERIES_CHANGE_PERCENT,
    as_json: Json = False,
    format_: OutputFormat = "table",
) -> None:
    """Find every lasting shift of a series in a CSV file: start, size and p-value.

    `index` is the position of the first changed row (or group), from 0.
    """
    from dataclasses import asdict

    from accel_platform.analysis.query.series import read_series
    from accel_platform.analysis.regressions.changepoint import find_changes, watch_changes

    read = read_series(path, value=value, group=group)
    find = watch_changes if online else find_changes
    rows = []
    for change in find(read.values, min_change_percent=min_change_percent):
        row = asdict(change)
        rows.append({**row, "index": read.positions[change.index], "known_at": read.positions[change.known_at]})
    if wants_json(as_json, format_):
        print_json(rows)
    else:
        print_table(rows, empty=f"No change in {count_of(len(read.values), 'value')}.")


@app.command(cls=ManyValues)
@with_filters("provenance")
def history(
    *,
    branch: Branch = None,
    min_change_percent: Annotated[float, min_change("shift", memory=True)] = MIN_CHANGE_PERCENT,
    record: Annotated[bool, typer.Option("--record", help="Record the shifts, for `accel regress list`.")] = False,
    as_of: AsOf = None,
    table: TableOptions,
    **filters: Any,
) -> None:
    """List the shifts of all measured series, as an online detector finds them."""
    from accel_platform.analysis.query.filters import require_known_branch, require_known_unless_found
    from accel_platform.analysis.query.measured import read_selected_series
    from accel_platform.analysis.regressions.changepoint_history import find_shifts
    from accel_platform.analysis.regressions.triage import read_decisions
    from accel_platform.reports.regressions import distinct_cells, short_shift

    reject_as_of(as_of, record=record)
    settings, chosen = settings_for(table.home, as_of), build_selection(filters)
    reader = open_tables(settings)
    require_known_branch(reader, branch)
    measured = read_selected_series(reader, chosen, branch=branch)
    require_known_unless_found([*measured], reader, chosen)
    found = find_shifts(measured, read_decisions(reader), min_change_percent=min_change_percent)
    if record:
        record_regressions(settings, [shift for series in found for shift in series.shifts])
    document = [
        {
            **one.series.model_dump(),
            "results": one.results,
            "newest_ms": one.newest_ms,
            "shifts": [shift.model_dump(mode="json") for shift in one.shifts],
        }
        for one in found
    ]
    moved = [shift for one in found for shift in one.shifts]
    shifts = [
        {
            "regression_id": shift.regression_id,
            "state": shift.state,
            "model_id": shift.model_id,
            "cell": text,
            **{name: getattr(shift, name) for name in _FIGURES},
            "commit": ", ".join(commit[:12] for commit in shift.commits_after) or None,
            "first_result": shift.first_result,
        }
        for shift, text in zip(moved, distinct_cells([dict(shift) for shift in moved]), strict=True)
    ]

    def short(row: Mapping[str, Any]) -> dict[str, Any]:
        names = ("regression_id", "state", "model_id", "cell")
        return {**{name: row[name] for name in names}, **short_shift(row), "commit": row["commit"]}

    title, empty = "Shifts of measured series", "No series moved."
    write_answer(shifts, table, title=title, document=document, short=short, empty=empty)
    note(f"{len(found):,} series of {count_of(sum(one.results for one in found), 'result')}.")


@app.command(name="list", cls=ManyValues)
@with_filters("provenance")
def list_regressions(
    *,
    state: Annotated[RegressionState | None, typer.Option(help="Only this state.", show_default="all")] = None,
    branch: Branch = None,
    as_of: AsOf = None,
    table: TableOptions,
    **filters: Any,
) -> None:
    """List recorded regressions and improvements, newest first, with their state.

    `commit` is the first at the new level, `runs` how many runs of its branch were at that level, `last_seen` the last.
    """
    from accel_platform.analysis.query.filters import require_known_branch, require_known_unless_found
    from accel_platform.analysis.regressions.triage import recorded_shifts
    from accel_platform.reports.regressions import short_shift, with_cells

    reader, chosen = open_tables(settings_for(table.home, as_of)), build_selection(filters)
    require_known_branch(reader, branch)
    rows = recorded_shifts(reader, chosen, state=state, branch=branch)
    require_known_unless_found(rows, reader, chosen)
    cells = {row["regression_id"]: row["cell"] for row in with_cells(rows)}

    def short(row: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "regression_id": row["regression_id"],
            "state": row["state"],
            "direction": row["direction"],
            "model_id": row["model_id"],
            "cell": cells[row["regression_id"]],
            **short_shift(row),
            "found_at": _to_the_minute(row["found_at"]),
            "commit": next((commit[:12] for commit in row["commits_after"] or ()), None),
            "branch": row["branch"],
            "runs": row["runs"],
            "last_seen": _to_the_minute(row["last_seen"]),
            "by": row["accepted_by"] or row["rejected_by"],
        }

    within = " under these filters" if branch or chosen.model_dump(exclude_defaults=True) else ""
    empty = f"None is {state or 'recorded'}{within}."
    write_answer(rows, table, title="Regressions and improvements", short=short, empty=empty)


def _to_the_minute(moment: datetime | None) -> str | None:
    """Return a time in UTC as short as a terminal can show it whole."""
    return None if moment is None else f"{moment.astimezone(UTC):%Y-%m-%d %H:%M}Z"


@app.command()
def accept(*, regression_ids: RegressionIds, reason: Reason, by: By = None, common: CommonOptions) -> None:
    """Accept recorded shifts: their levels become the new baselines of their series. The history stays.

    The last decision counts.
    """
    from accel_platform.analysis.regressions.triage import build_acceptance

    settings, name = settings_for(common.home), _name(by)
    reader = open_tables(settings)
    decided = _each_once(build_acceptance(reader, one, by=name, reason=reason) for one in regression_ids)
    effects = [f"{_describe(reader, one)}: the new level is the baseline from now on." for one in decided]
    _append_decisions(settings, reader, decided, effects, as_json=common.wants_json)


@app.command()
def reject(*, regression_ids: RegressionIds, reason: Reason, by: By = None, common: CommonOptions) -> None:
    """Reject recorded shifts as noise or a machine in a wrong state.

    Their results no longer count in their series, and the baselines stay. The same level measured again is a new shift.
    The last decision counts.
    """
    from accel_platform.analysis.regressions.triage import build_rejection

    settings, name = settings_for(common.home), _name(by)
    reader = open_tables(settings)
    decided = _each_once(build_rejection(reader, one, by=name, reason=reason) for one in regression_ids)
    effects = [
        f"{_describe(reader, one)}: left out from now on: {count_of(len(one.results), 'result')}; "
        "the baseline is as it was."
        for one in decided
    ]
    _append_decisions(settings, reader, decided, effects, as_json=common.wants_json)


@app.command()
def reopen(*, regression_ids: RegressionIds, reason: Reason, by: By = None, common: CommonOptions) -> None:
    """Withdraw the last decision about shifts, as if nobody had decided. The history of decisions stays."""
    from accel_platform.analysis.regressions.triage import build_reopening

    settings, name = settings_for(common.home), _name(by)
    reader = open_tables(settings)
    decided = _each_once(build_reopening(reader, one, by=name, reason=reason) for one in regression_ids)
    effects = [f"{_describe(reader, one)}: undecided again; the baseline is as it was." for one in decided]
    _append_decisions(settings, reader, decided, effects, as_json=common.wants_json)


def _describe(reader: Reader, decided: DecidedShift) -> str:
    """Return the cell of a decision, and what moved."""
    from accel_platform.analysis.regressions.triage import find_regression
    from accel_platform.reports.regressions import cell, measure_name, sides_in_words

    shift = find_regression(reader, decided.regression_id)
    before, after = sides_in_words(shift)
    measure = "" if shift["measure"] == "latency" else f"{measure_name(shift['measure'])} "
    return f"{decided.model_id}, {cell(dict(decided))}, {measure}{before} -> {after}"


def _each_once(decided: Iterable[Decision]) -> list[Decision]:
    """Return the first decision about each regression, because one may be named twice."""
    first: dict[str, Decision] = {}
    for one in decided:
        first.setdefault(one.regression_id, one)
    return list(first.values())


def _append_decisions(
    settings: Settings,
    reader: Reader,
    decided: Sequence[DecidedShift],
    effects: Sequence[str],
    *,
    as_json: bool,
) -> None:
    """Append decisions to the log at once, and print their effects.

    Raises Conflict, and stores none, where one says what the last decision says.
    """
    from accel_platform.analysis.regressions.triage import decision_key
    from accel_platform.errors import Conflict
    from accel_platform.events import Event, EventLog

    log, events = EventLog.open(settings), [Event.of(payload, source="accel regress") for payload in decided]
    segment, *_ = [decision_key(reader, log, payload) for payload in decided]
    if not log.append(events, key=segment).new:
        raise Conflict("Others decide about these regressions at this moment: look again with `accel regress list`.")
    if as_json:
        made = [
            {"event_id": str(event.event_id), **payload.model_dump(mode="json")}
            for event, payload in zip(events, decided, strict=True)
        ]
        print_json(made if len(made) > 1 else made[0])
        return
    for effect in effects:
        typer.echo(effect)


def _name(by: str | None) -> str:
    """Return who decides. Raises InvalidInput where nobody says so."""
    from accel_platform.errors import InvalidInput

    if not by:
        raise InvalidInput(
            "Say who decides: --by NAME, which is recorded; without it $USER is taken, where that is set."
        )
    return by
