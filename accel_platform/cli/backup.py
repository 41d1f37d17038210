"""`accel db backup` and `restore`: copies of the log and the predictors, kept elsewhere and brought back."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from accel_platform.cli.output import (
    FormatOption,
    Home,
    Json,
    OutputFormat,
    note,
    print_json,
    print_table,
    settings_for,
    wants_json,
)


def backup(
    target: Annotated[
        str,
        typer.Argument(help="A directory or s3://bucket/prefix, to which each back-up adds, or a new .tar or .tar.gz."),
    ],
    keep: Annotated[
        int | None, typer.Option("--keep", metavar="N", help="Keep the newest N back-ups there. Default: all.")
    ] = None,
    home: Home = None,
    as_json: Json = False,
    format_: OutputFormat = FormatOption.table,
) -> None:
    """Copy the event log, wherever it lies, and the predictors; work may go on meanwhile. API keys are not copied.

    Each back-up is a generation of its own: nothing that an earlier one holds is changed. A log that is damaged, that
    has lost segments since the last back-up, or that is another installation's is refused. One that was killed can be
    repeated.
    """
    from accel_platform.backup import back_up

    done = back_up(settings_for(home), target, keep=keep, progress=note)
    _print([vars(done)], for_machines=wants_json(as_json, format_))


def restore(
    source: Annotated[str, typer.Argument(help="What `accel db backup` wrote.")],
    generation: Annotated[
        str | None, typer.Option(metavar="NAME", help="The beginning of one back-up's name. Default: the newest.")
    ] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Only check the back-ups; restore nothing.")] = False,
    home: Home = None,
    as_json: Json = False,
    format_: OutputFormat = FormatOption.table,
) -> None:
    """Check a back-up, bring it into an installation without events, and make the tables. Nothing is overwritten.

    With --verify it exits 1 and names what is damaged.
    """
    from accel_platform import backup
    from accel_platform.warehouse.publish import refresh

    for_machines = wants_json(as_json, format_)
    if verify:
        found = backup.verify(source, generation=generation, progress=note)
        _print([vars(one) for one in found], for_machines=for_machines)
        if damaged := [one for one in found if one.damaged]:
            raise backup.BackupDamaged(
                f"{len(damaged)} of {len(found)} back-ups at {source} are damaged: {damaged[0].generation}, "
                f"{', '.join(damaged[0].damaged[:3])}. Delete such files there and back up again: what the source "
                "still has is copied anew."
            )
        return
    settings = settings_for(home)
    done = backup.restore(settings, source, generation=generation, progress=note)
    refresh(settings, progress=note)
    _print([vars(done)], for_machines=for_machines)


def _print(rows: list[dict[str, Any]], *, for_machines: bool) -> None:
    """Print what was done, one row a generation; a single one as an object."""
    if for_machines:
        print_json(rows if "damaged" in rows[0] else rows[0])
    else:
        print_table([row | {"damaged": len(row["damaged"])} if "damaged" in row else row for row in rows])
