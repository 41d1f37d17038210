"""`accel history`: suspicions about imported results, their overrides, and clean-up of imported files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from accel_platform.cli.options import AsOf, CommandApp, CommonOptions, TableOptions
from accel_platform.cli.output import (
    follow_log,
    line_width,
    note,
    print_json,
    print_table,
    say,
    settings_for,
    write_answer,
)
from accel_platform.table_io.values import count_of

_REASON = ("such as", "most often")
app = CommandApp(help="Audit imported results, and clean up the imported files.", no_args_is_help=True)


@app.callback()
def history() -> None:
    """Audit imported results, and clean up the imported files."""


@app.command()
def audit(
    as_of: AsOf = None,
    *,
    table: TableOptions,
) -> None:
    """Show the verdicts on imported results per rule: count, confidence, reasons and overrides."""
    from accel_platform.analysis.summaries.suspicions import count_by_provenance, count_by_rule
    from accel_platform.warehouse.reader import Reader

    reader = Reader(settings_for(table.home, as_of))
    provenance, verdicts = count_by_provenance(reader), count_by_rule(reader)
    document = {"provenance": provenance, "verdicts": verdicts, "snapshot_id": reader.snapshot_id}
    empty = "No imported result is doubted."
    if table.kind == "table" and table.output is None:
        _print_verdicts([_with_top_reason(verdict) for verdict in verdicts], empty)
    else:
        title = "Verdicts on imported results"
        write_answer(verdicts, table, short=_with_top_reason, document=document, title=title, empty=empty)
    counts = ", ".join(f"{count} {name}" for name, count in provenance.items())
    counts = counts or "none; figures of knowledge packs are not audited"
    note(f"Imported results by what counts as their provenance now: {counts}.")


def _print_verdicts(verdicts: Sequence[Mapping[str, Any]], empty: str) -> None:
    """Print the verdicts, with the reasons below the table where a line has no room for them."""
    from accel_platform.table_io.width import fits

    width = line_width()
    if width is None or fits(verdicts, width):
        print_table(verdicts, empty=empty)
        return
    print_table([{name: value for name, value in one.items() if name not in _REASON} for one in verdicts])
    for verdict in verdicts:
        say(f"{verdict['rule']}: {verdict['most often']}, such as in {verdict['such as']}")


def _with_top_reason(verdict: Mapping[str, Any]) -> dict[str, Any]:
    """Replace the list of reasons by the most frequent one and a file that shows it."""
    [first, *_] = verdict["reasons"]
    rest = {name: value for name, value in verdict.items() if name != "reasons"}
    return rest | {"such as": "/".join(Path(first["file"]).parts[-2:]), "most often": first["reason"]}


@app.command()
def overrule(
    result_id: Annotated[str, typer.Argument(help="The result's id, a column of the table suspicions.")],
    rule: Annotated[str, typer.Argument(help="The rule to overrule.")],
    reason: Annotated[str, typer.Option(help="The reason; stored permanently.")],
    by: Annotated[str, typer.Option(help="Your name.")],
    *,
    common: CommonOptions,
) -> None:
    """Overrule one rule for one result. The suspicion stays on record and no longer counts."""
    from uuid import UUID

    from accel_platform.errors import InvalidInput, NotFound
    from accel_platform.events import Event, EventLog
    from accel_platform.events.types import SuspicionOverruled
    from accel_platform.warehouse.reader import Reader

    settings = settings_for(common.home)
    try:
        wanted = UUID(result_id)
    except ValueError as error:
        raise InvalidInput(f"{result_id!r} is no result id: the table suspicions has them.") from error
    if not reason.strip() or not by.strip():
        raise InvalidInput("An override needs a reason and a name: give --reason and --by.")
    doubts = Reader(settings).rows("SELECT DISTINCT rule FROM suspicions WHERE result_id = ?", (wanted,))
    rules = sorted(row["rule"] for row in doubts)
    if rule not in rules:
        has = f"Its rules: {', '.join(rules)}." if rules else "No rule doubts it."
        raise NotFound(f"No rule {rule!r} doubts the result {result_id}. {has}")
    payload = SuspicionOverruled(result_id=wanted, rule=rule, by=by.strip(), reason=reason.strip())
    event = Event.of(payload, source="history")
    EventLog.open(settings).append([event], key=f"overruled-{event.event_id}")
    if common.wants_json:
        print_json({"event_id": str(event.event_id), **payload.model_dump(mode="json")})
    else:
        typer.echo(f"{rule} no longer counts against {result_id}.")
    follow_log(settings)


@app.command()
def clean(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH", help="Files or directories that were imported.")],
    older_than: Annotated[str, typer.Option(help="Skip files modified more recently than this: 30d, 12h, 8w.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Verify everything, delete nothing.")] = False,
    *,
    common: CommonOptions,
) -> None:
    """Delete imported files if all their events read back equal from the log. List the others with the reason."""
    from accel_platform.durations import parse_age
    from accel_platform.errors import AccelError
    from accel_platform.events import EventLog
    from migrations.cleanup.cleanup import clean as run

    age, settings = parse_age(older_than), settings_for(common.home)
    log = EventLog.open(settings)
    try:
        report = run(paths, log, older_than=age, exclude=settings.own_paths, dry_run=dry_run)
    except KeyboardInterrupt:
        note("Stopped. What was deleted is accounted for in the log; the same command goes on from there.")
        raise
    if common.wants_json:
        print_json(report.as_dict())
    else:
        print_table(
            [
                {"file": d.source_path, "bytes": d.size_bytes, "outcome": d.action, "reason": d.reason}
                for d in report.documents
            ],
            empty="No files found.",
        )
        counts = ", ".join(f"{count} {action}" for action, count in sorted(report.actions.items())) or "none"
        typer.echo(
            f"{count_of(report.files, 'file')}: {counts}. "
            f"{count_of(report.size_bytes, 'byte')} {'would go' if dry_run else 'gone'}."
        )
    if report.actions.get("deleted"):
        note("`accel db rebuild` takes the deletions into the table `events`.")
    if refused := report.actions.get("undeletable"):
        raise AccelError(f"The file system refused to delete {count_of(refused, 'file')}: the reasons are above.")
