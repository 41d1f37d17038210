"""`accel db`: rebuild, inspect, query, validate, export and back up the warehouse."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from accel_platform.cli.data import snapshot
from accel_platform.cli.options import (
    AsOf,
    CommandApp,
    CommandGroup,
    CommonOptions,
    FileFormat,
    Home,
    ManyValues,
    TableOptions,
    build_selection,
    output_file,
    split_words,
    with_filters,
)
from accel_platform.cli.output import note, print_json, print_table, say, settings_for, write_answer
from accel_platform.table_io.values import count_of

if TYPE_CHECKING:
    from accel_platform.events.types import ModelDescribed
    from accel_platform.warehouse.validate import Describe, Finding, Validation

Engine = Literal["duckdb", "spark"]

app = CommandApp(help="The warehouse: tables projected from the event log.", no_args_is_help=True)
app.add_typer(snapshot.app, name="snapshot", cls=CommandGroup)


@app.command()
def rebuild(
    forget: Annotated[
        str | None,
        typer.Option(metavar="NAMES", help="Lost segments to give up, comma-separated, or `all`."),
    ] = None,
    engine: Annotated[
        Engine | None, typer.Option(help="What computes the tables; default: duckdb, or ACCEL_ENGINE.")
    ] = None,
    spark: Annotated[
        str | None, typer.Option(metavar="URL", help="Address of Spark Connect, e.g. sc://host:15002, or ACCEL_SPARK.")
    ] = None,
    *,
    common: CommonOptions,
) -> None:
    """Rebuild every table from the whole event log, audit them and put them into service."""
    import os
    from dataclasses import asdict

    from accel_platform.errors import InvalidInput
    from accel_platform.events import EventLog, integrity
    from accel_platform.warehouse.publish import refresh

    settings = settings_for(common.home)
    if spark is not None and (engine or settings.engine) != "spark":
        raise InvalidInput("--spark goes with --engine spark.")
    chosen = {"engine": engine, "spark": spark}
    settings = settings.model_copy(update={name: value for name, value in chosen.items() if value is not None})
    if forget is not None:
        log = EventLog.open(settings)
        names = set(split_words(forget))
        names = set(integrity.lost_segments(log)) if names == {"all"} else names
        integrity.forget_segments(log, names, by=os.environ.get("USER"))
        note(f"Given up: {integrity.summarize(sorted(names))}")
    done = refresh(settings, full=True, progress=note)
    if common.wants_json:
        checks = [asdict(check) for check in done.checks]
        print_json({"snapshot_id": done.snapshot_id, "mode": done.mode, "rows": done.rows, "checks": checks,
                    "seconds": done.seconds})  # fmt: skip
        return
    print_table([{"table": table, "rows": rows} for table, rows in done.rows.items()])
    note(f"snapshot {done.snapshot_id}, {len(done.checks)} data rules kept, {done.seconds:.1f} s")


@app.command()
def stats(as_of: AsOf = None, *, common: CommonOptions) -> None:
    """Show segments and events of the log, rows per table, and results by provenance and status."""
    from accel_platform.events import EventLog
    from accel_platform.settings import SnapshotSettings
    from accel_platform.warehouse.layers import current
    from accel_platform.warehouse.publish import holds
    from accel_platform.warehouse.reader import Reader

    settings = settings_for(common.home, as_of)
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
        results = Reader(settings).rows(
            "SELECT provenance, status, count(*) AS results FROM results GROUP BY ALL ORDER BY ALL"
        )
        rows = projection.count_rows()
    up_to_date = projection is not None and holds(projection, log, snapshot)
    if common.wants_json:
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
def tables(
    table: Annotated[str | None, typer.Argument(help="Show the columns of this table.")] = None,
    as_of: AsOf = None,
    *,
    common: CommonOptions,
) -> None:
    """List the tables with their meaning and rows, or the columns of one. Begin with `usable_results`."""
    from dataclasses import asdict

    from accel_platform.errors import NotFound
    from accel_platform.warehouse.dictionary import table_columns, table_meanings
    from accel_platform.warehouse.reader import Reader

    reader, meanings = Reader(settings_for(common.home, as_of)), table_meanings()
    if table is not None and table not in meanings:
        near = ", ".join(difflib.get_close_matches(table, meanings, n=2)) or ", ".join(meanings)
        raise NotFound(f"No table is called {table!r}. Try {near}.")
    rows: list[dict[str, Any]]
    if table is not None:
        rows = [asdict(column) for column in table_columns(reader, table)]
    else:
        counts = " UNION ALL ".join(f"SELECT '{name}' AS name, count(*) AS rows FROM {name}" for name in meanings)
        found = {row["name"]: row["rows"] for row in reader.rows(counts)}
        rows = [{"table": name, "rows": found[name], "what": what} for name, what in meanings.items()]
    if common.wants_json:
        print_json(rows)
    else:
        print_table(rows)


@app.command()
def compact(common: CommonOptions) -> None:
    """Pack small segments of the log and remove duplicate copies. Dagster does this every night."""
    from dataclasses import asdict

    from accel_platform.events import EventLog
    from accel_platform.events.compaction import compact as run
    from accel_platform.warehouse.disk_use import remove_leftovers

    settings = settings_for(common.home)
    done = run(EventLog.open(settings))
    left_overs = remove_leftovers(settings)
    if common.wants_json:
        print_json(asdict(done) | {"left_overs": [str(path) for path in left_overs]})
    else:
        note(
            f"in a new pack: {count_of(done.packed, 'segment')}; "
            f"gone: {count_of(done.removed + len(left_overs), 'file')}"
        )
    if done.damaged:
        from accel_platform.errors import AccelError

        raise AccelError(f"Damaged and set aside: {', '.join(done.damaged)}. `accel db validate` says what to do.")


@app.command()
def du(common: CommonOptions) -> None:
    """Show the disk use of each part of the installation."""
    from dataclasses import asdict

    from accel_platform.warehouse.disk_use import measure_disk_use

    used = measure_disk_use(settings_for(common.home))
    if common.wants_json:
        print_json([asdict(use) for use in used])
        return
    rows = [
        {"part": use.part, "files": use.files, "MB": round(use.size_bytes / 1e6, 2), "what": use.what} for use in used
    ]
    print_table(rows, empty="There is nothing here yet.")
    note(f"{sum(use.size_bytes for use in used) / 1e6:,.1f} MB in all")


@app.command()
def query(
    sql: Annotated[str, typer.Argument(metavar="SQL", help="One SELECT; `accel db tables` lists the tables.")],
    as_of: AsOf = None,
    *,
    table: TableOptions,
) -> None:
    """Run one SELECT. As JSON the answer is a list of row objects."""
    from accel_platform.warehouse.reader import Reader

    kind, reader = table.kind, Reader(settings_for(table.home, as_of))
    write_answer(reader.rows(sql) if kind in ("table", "json") else reader.arrow(sql), table)


@app.command(cls=ManyValues)
@with_filters()
def export(
    table: Annotated[str, typer.Argument(help="A table, e.g. results.")],
    output: Annotated[Path, typer.Option("--output", "-o", callback=output_file, help="The file to write.")],
    as_of: AsOf = None,
    format_: FileFormat = None,
    home: Home = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a summary as JSON.")] = False,
    **filters: Any,
) -> None:
    """Write a table to a file, whole or what the filters leave of results. The file's ending sets the format."""
    from accel_platform.analysis.query.filters import require_known
    from accel_platform.warehouse.export import export_table
    from accel_platform.warehouse.reader import Reader

    kind, settings, chosen = TableOptions(output, format_).kind, settings_for(home, as_of), build_selection(filters)
    require_known(Reader(settings), chosen)
    condition, values = chosen.where()
    rows = export_table(settings, table, output, kind, condition=condition, values=values)
    if as_json:
        print_json({"table": table, "rows": rows, "output": str(output), "format": kind})
    else:
        note(f"{count_of(rows, 'row')} of {table} written to {output}")


@app.command()
def validate(
    fix: Annotated[
        bool, typer.Option("--fix", help="Repair everything that has one safe repair, and list the repairs.")
    ] = False,
    from_: Annotated[
        str | None,
        typer.Option("--from", metavar="BACKUP", help="With --fix: a back-up to take lost events from."),
    ] = None,
    *,
    common: CommonOptions,
) -> None:
    """Check all data rules, the tables against the log, and all references. Exits 1 if anything is wrong.

    A note names what --fix improves although nothing is wrong.
    """
    from dataclasses import asdict

    from accel_platform.errors import AccelError, InvalidInput
    from accel_platform.warehouse.validate import validate as run

    if from_ is None:
        found = run(settings_for(common.home), _catalog_describer(), fix=fix)
    elif not fix:
        raise InvalidInput("--from says where to bring lost events back from: it goes with --fix.")
    else:
        from accel_platform.backup import open_copy

        with open_copy(from_) as copy:
            found = run(settings_for(common.home), _catalog_describer(), fix=True, copy=copy)
    if common.wants_json:
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
                "from": _summarize_origins(verdict.origins),
            }
            for verdict in found.rules
        ],
        empty="No tables were checked.",
    )
    for done in found.repaired:
        note(f"Repaired: {done}.")
    if found.findings:
        typer.echo()
        print_table([_finding_row("wrong", finding) for finding in found.findings])
    if found.notes:
        typer.echo()
        print_table([_finding_row("note", finding) for finding in found.notes])
    if not found.findings:
        say("Everything is as it should be; rows set aside are in the table `quarantine`, with the rule's name.")


def _finding_row(kind: Literal["wrong", "note"], finding: Finding) -> dict[str, Any]:
    return {kind: finding.name, "count": finding.count, "repair": finding.repair, "what": finding.what}


def _summarize_origins(origins: dict[str, int]) -> str | None:
    """Return the most frequent origin and the number of others; None without origins."""
    if not origins:
        return None
    (first, rows), *others = origins.items()
    return f"{first} ({rows})" + (f" and {len(others)} more" if others else "")


def _catalog_describer() -> Describe:
    """Return a lookup of model descriptions in the model catalog."""
    from accel_platform.bench.prepare.description import describe_model
    from accel_platform.workloads.model_catalog import find_model

    def describe(model_id: str) -> Callable[[], ModelDescribed] | None:
        spec = find_model(model_id)
        return (lambda: describe_model(spec)) if spec is not None and spec.model_id == model_id else None

    return describe


@app.command()
def backup(
    target: Annotated[
        str,
        typer.Argument(
            help="A directory or s3://, gs://, az:// or abfss://, which may hold earlier back-ups, or a new .tar or "
            ".tar.gz."
        ),
    ],
    keep: Annotated[
        int | None, typer.Option(metavar="N", help="Keep the newest N back-ups there. Default: all.")
    ] = None,
    *,
    common: CommonOptions,
) -> None:
    """Copy the event log and the predictors while work goes on. API keys are not copied.

    Each back-up is a generation of its own and changes no earlier one. A log is refused if it is damaged, has lost
    segments since the last back-up, or belongs to another installation. A killed back-up can be repeated.
    """
    from accel_platform.backup import back_up

    done = back_up(settings_for(common.home), target, keep=keep, progress=note)
    _print_backups([vars(done)], for_machines=common.wants_json)


@app.command()
def restore(
    source: Annotated[str, typer.Argument(help="The target of `accel db backup`.")],
    generation: Annotated[
        str | None, typer.Option(metavar="NAME", help="Prefix of a back-up's name. Default: the newest.")
    ] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Check the back-ups without restoring.")] = False,
    *,
    common: CommonOptions,
) -> None:
    """Check a back-up, restore it into an installation without events, and build the tables. Nothing is overwritten.

    With --verify, exits 1 and names the damaged files.
    """
    from accel_platform import backup
    from accel_platform.events import EventLog
    from accel_platform.warehouse.publish import refresh
    from predictor.training.promotion import share_promoted

    for_machines = common.wants_json
    if verify:
        found = backup.verify(source, generation=generation, progress=note)
        _print_backups([vars(one) for one in found], for_machines=for_machines)
        if damaged := [one for one in found if one.damaged]:
            raise backup.BackupDamaged(
                f"{len(damaged)} of {len(found)} back-ups at {source} are damaged: {damaged[0].generation}, "
                f"{', '.join(damaged[0].damaged[:3])}. Delete such files there and back up again: what the source "
                "still has is copied anew."
            )
        return
    settings = settings_for(common.home)
    done = backup.restore(settings, source, generation=generation, progress=note)
    refresh(settings, progress=note)
    if shared := share_promoted(settings, EventLog.open(settings), note):
        note(f"Stored next to the log, for its other machines: {', '.join(shared)}.")
    note(f"Restored into {settings.home.resolve()}. API keys, workspace.yaml and Dagster's runs are not in a back-up.")
    _print_backups([vars(done)], for_machines=for_machines)


def _print_backups(rows: list[dict[str, Any]], *, for_machines: bool) -> None:
    """Print one row per generation; as JSON a backup or restore is a single object."""
    if for_machines:
        print_json(rows if "damaged" in rows[0] else rows[0])
    else:
        print_table([row | {"damaged": len(row["damaged"])} if "damaged" in row else row for row in rows])
