"""`accel cache`: deletion of what an installation keeps only to be faster."""

from __future__ import annotations

import typer

from accel_platform.cli.options import FormatOption, Home, Json, OutputFormat
from accel_platform.cli.output import note, print_json, settings_for, wants_json
from accel_platform.table_io.values import count_of

app = typer.Typer(help="Delete what is kept only to be faster.", no_args_is_help=True)


@app.callback()
def cache() -> None:
    """Delete what is kept only to be faster; `accel db du` says how large it is."""


@app.command()
def clean(home: Home = None, as_json: Json = False, format_: OutputFormat = FormatOption.table) -> None:
    """Delete prepared models, tables of the past and unfinished files; what is needed again is made again.

    Results, predictors and the tables in service stay.
    """
    from accel_platform.warehouse.disk_use import clean_cache

    freed = clean_cache(settings_for(home))
    if wants_json(as_json, format_):
        print_json(vars(freed))
    else:
        note(f"{count_of(freed.files, 'file')} deleted, {freed.size_bytes / 1e6:,.1f} MB freed")
