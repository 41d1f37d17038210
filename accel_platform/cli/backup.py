"""`accel db backup` and `restore`: copies of the log and the predictors, kept elsewhere and brought back."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from accel_platform.cli.output import (
    Format,
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
        Path,
        typer.Argument(help="A directory, to which the next back-up adds what is new, or a new .tar or .tar.gz file."),
    ],
    home: Home = None,
    as_json: Json = False,
    format_: OutputFormat = Format.table,
) -> None:
    """Copy the event log, wherever it lies, and the predictors; work may go on meanwhile. API keys are not copied."""
    from accel_platform.backup import back_up

    done = back_up(settings_for(home), target, progress=note)
    if wants_json(as_json, format_):
        print_json(vars(done))
    else:
        print_table([vars(done)])


def restore(
    source: Annotated[Path, typer.Argument(help="What `accel db backup` wrote.")],
    home: Home = None,
    as_json: Json = False,
    format_: OutputFormat = Format.table,
) -> None:
    """Check a back-up, bring it into an installation without events, and make the tables. Nothing is overwritten."""
    from accel_platform.backup import restore as run
    from accel_platform.warehouse.publish import refresh

    settings = settings_for(home)
    done = run(settings, source, progress=note)
    refresh(settings, progress=note)
    if wants_json(as_json, format_):
        print_json(vars(done))
    else:
        print_table([vars(done)])
