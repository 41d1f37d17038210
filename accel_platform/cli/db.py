"""`accel db`: make the tables again, look at them, ask them, check and mend them, take them away as files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from accel_platform.cli import backup, snapshot
from accel_platform.cli.output import (
    AsOf,
    FileFormat,
    FormatOption,
    Home,
    Json,
    Output,
    OutputFormat,
    answer,
    chosen,
    note,
    print_json,
    print_table,
    settings_for,
    wants_json,
)

if TYPE_CHECKING:
    from accel_platform.events.types import ModelDescribed
    from accel_platform.warehouse.validate import Describe, Validation

app = typer.Typer(help="The warehouse: tables projected from the event log.", no_args_is_help=True)
app.add_typer(snapshot.app, name="snapshot")
app.command("backup")(backup.backup)
app.command("restore")(backup.restore)


@app.command()
def rebuild(
    forget: Annotated[
        str | None,
        typer.Option(metavar="NAMES", help="Lost segments to give up, comma-separated, or `all`."),
    ] = None,
    home: Home = None,
    as_json: Json = False,
    format_: OutputFormat = FormatOption.table,
) -> None:
    """Make every table again from the whole event log, audit them and put them in service."""
    import os
    from dataclasses import asdict

    from accel_platform.events import EventLog, integrity
    from accel_platform.warehouse.publish import refresh

    settings = settings_for(home)
    if forget is not None:
        log = EventLog.open(settings)
        names = {name.strip() for name in forget.split(",")} - {""}
        names = set(integrity.lost(log)) if names == {"all"} else names
        integrity.forget(log, names, by=os.environ.get("USER"))
        note(f"Given up: {integrity.some(sorted(names))}")
    done = refresh(settings, full=True, progress=note)
    if wants_json(as_json, format_):
        print_json(asdict(done))
        return
    print_table([{"table": table, "rows": rows} for table, rows in done.rows.items()])
    note(f"snapshot {done.snapshot_id}, {len(done.checks)} data rules kept, {done.seconds:.1f} s")


@app.command()
def stats(
    as_of: AsOf = None, home: Home = None, as_json: Json = False, format_: OutputFormat = FormatOption.table
) -> None:
    """What is there: segments and events in the log, rows per table, results by provenance and status."""
    from accel_platform.events import EventLog
    from accel_platform.settings import SnapshotSettings
    from accel_platform.warehouse.layers import current
    from accel_platform.warehouse.reader import Reader

    settings = settings_for(home, as_of)
    log = EventLog.open(settings)
    snapshot = log.load_snapshot(settings.snapshot_id) if isinstance(settings, SnapshotSettings) else log.snapshot()
    projection = current(settings)
    in_log = {
        "location": log.location,
        "snapshot_id": snapshot.id,
        "segments": len(snapshot.segments),
        "events": log.count_events(snapshot.segments),
    }
    rows: dict[str, int] = {}
    results: list[dict[str, Any]] = []
    if projection is not None:
        rows = projection.count_rows()
        results = Reader(settings).rows(
            "SELECT provenance, status, count(*) AS results FROM results GROUP BY ALL ORDER BY ALL"
        )
    up_to_date = projection is not None and projection.snapshot_id == snapshot.id
    if wants_json(as_json, format_):
        tables = (
            {"snapshot_id": projection.snapshot_id, "up_to_date": up_to_date, "rows": rows, "results": results}
            if (projection)
            else None
        )
        print_json({"log": in_log, "warehouse": tables})
        return
    print_table([in_log])
    if projection is not None:
        typer.echo()
        print_table([{"table": table, "rows": count} for table, count in rows.items()])
        typer.echo()
        print_table(results, empty="No results yet.")
    if not snapshot.segments:
        note("Nothing is recorded yet: `accel run` does it all, `accel bench run` measures, `accel migrate` imports.")
    elif not up_to_date:
        note("The log holds more than the tables: `accel db rebuild` brings them up to date.")


@app.command()
def compact(home: Home = None, as_json: Json = False, format_: OutputFormat = FormatOption.table) -> None:
    """Pack small segments of the log and remove what is kept twice. Dagster's nightly upkeep does it by itself."""
    from dataclasses import asdict

    from accel_platform.events import EventLog
    from accel_platform.events.compaction import compact as run
    from accel_platform.warehouse.disk_use import remove_left_overs

    settings = settings_for(home)
    done = run(EventLog.open(settings))
    left_overs = remove_left_overs(settings)
    if wants_json(as_json, format_):
        print_json(asdict(done) | {"left_overs": [str(path) for path in left_overs]})
    else:
        note(f"{done.packed:,} segments are in a new pack; {done.removed + len(left_overs):,} files went")
    if done.damaged:
        from accel_platform.errors import AccelError

        raise AccelError(f"Damaged and set aside: {', '.join(done.damaged)}. `accel db validate` says what to do.")


@app.command()
def du(home: Home = None, as_json: Json = False, format_: OutputFormat = FormatOption.table) -> None:
    """Show what takes the space: each part of the installation, its files and its size."""
    from dataclasses import asdict

    from accel_platform.warehouse.disk_use import measure

    used = measure(settings_for(home))
    if wants_json(as_json, format_):
        print_json([asdict(use) for use in used])
        return
    rows = [
        {"part": use.part, "files": use.files, "MB": round(use.size_bytes / 1e6, 2), "what": use.what} for use in used
    ]
    print_table(rows, empty="There is nothing here yet.")
    note(f"{sum(use.size_bytes for use in used) / 1e6:,.1f} MB in all")


@app.command()
def query(
    sql: Annotated[str, typer.Argument(metavar="SQL", help="One SELECT over the tables; `accel db stats` lists them.")],
    as_of: AsOf = None,
    output: Output = None,
    format_: FileFormat = None,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Run one SELECT. As JSON the answer is a list of row objects."""
    from accel_platform.warehouse.reader import Reader

    kind, reader = chosen(as_json, format_, output), Reader(settings_for(home, as_of))
    answer(reader.rows(sql) if kind in ("table", "json") else reader.arrow(sql), kind, output)


@app.command()
def export(
    table: Annotated[str, typer.Argument(help="A table, e.g. results.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write.")],
    as_of: AsOf = None,
    format_: FileFormat = None,
    home: Home = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was written as JSON.")] = False,
) -> None:
    """Write a whole table to a file, row by row: its format follows from the file's ending."""
    from accel_platform.warehouse.export import export_table

    kind = chosen(False, format_, output)
    rows = export_table(settings_for(home, as_of), table, output, kind.value)
    if as_json:
        print_json({"table": table, "rows": rows, "output": str(output), "format": kind})
    else:
        note(f"{rows:,} rows of {table} written to {output}")


@app.command()
def validate(
    fix: Annotated[bool, typer.Option("--fix", help="Repair what has one safe repair, and say what was done.")] = False,
    from_: Annotated[
        str | None,
        typer.Option("--from", metavar="BACKUP", help="With --fix: a back-up to take lost events from."),
    ] = None,
    home: Home = None,
    as_json: Json = False,
    format_: OutputFormat = FormatOption.table,
) -> None:
    """Check every data rule, the tables against the log, and what refers to what. Exits 1 while anything is wrong."""
    from dataclasses import asdict

    from accel_platform.errors import AccelError, InvalidInput
    from accel_platform.warehouse.validate import validate as run

    if from_ is None:
        found = run(settings_for(home), _catalogue(), fix=fix)
    elif not fix:
        raise InvalidInput("--from says where to bring lost events back from: it goes with --fix.")
    else:
        from accel_platform.backup import open_copy

        with open_copy(from_) as copy:
            found = run(settings_for(home), _catalogue(), fix=True, copy=copy)
    if wants_json(as_json, format_):
        print_json(asdict(found))
    else:
        _print_validation(found)
    if found.findings:
        repairable = sum(finding.repair is not None for finding in found.findings)
        advice = f"; `accel db validate --fix` repairs {repairable}" if repairable else ", and none has one safe repair"
        wrong = "1 thing is" if len(found.findings) == 1 else f"{len(found.findings)} things are"
        raise AccelError(f"{wrong} wrong{advice}.")


def _print_validation(found: Validation) -> None:
    print_table(
        [
            {
                "rule": verdict.rule,
                "rows": verdict.rows,
                "set aside": verdict.set_aside,
                "in service": verdict.in_service,
                "from": _most(verdict.origins),
            }
            for verdict in found.rules
        ],
        empty="There are no tables to check.",
    )
    for done in found.repaired:
        note(f"Repaired: {done}.")
    if found.findings:
        typer.echo()
        print_table([{"wrong": f.name, "count": f.count, "repair": f.repair, "what": f.what} for f in found.findings])
    else:
        typer.echo("Everything is as it should be; rows set aside are in the table `quarantine`, with the rule's name.")


def _most(origins: dict[str, int]) -> str | None:
    """Where most rows came from, and how many other places there are."""
    if not origins:
        return None
    (first, rows), *others = origins.items()
    return f"{first} ({rows})" + (f" and {len(others)} more" if others else "")


def _catalogue() -> Describe:
    """Descriptions from the model catalogue, for the names that it has."""
    from accel_platform.bench.run.event_builders import describe_model
    from accel_platform.errors import NotFound
    from accel_platform.workloads.model_catalog import resolve_model

    def describe(model_id: str) -> Callable[[], ModelDescribed] | None:
        try:
            spec = resolve_model(model_id)
        except NotFound:
            return None
        return (lambda: describe_model(spec)) if spec.model_id == model_id else None

    return describe
