"""`accel regress`: when did a series of results move? The statistics are in `analysis/changepoint.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from accel_platform.cli.output import Format, Json, OutputFormat, print_json, print_table, wants_json

app = typer.Typer(help="Find performance changes in series of results.", no_args_is_help=True)


@app.callback()
def regress() -> None:
    """Find performance changes in series of results."""


@app.command()
def series(
    path: Annotated[Path, typer.Argument(metavar="FILE.csv", help="A CSV file with a header.")],
    value: Annotated[str, typer.Option(help="The column of measurements.")],
    order: Annotated[str | None, typer.Option(help="The column to sort by.", show_default="the file's order")] = None,
    group: Annotated[
        str | None,
        typer.Option(
            help="Rows equal in this column, such as a build, count as one: their median.", show_default="none"
        ),
    ] = None,
    online: Annotated[
        bool, typer.Option("--online", help="As a watcher would see it, value by value, instead of looking back.")
    ] = False,
    min_change_percent: Annotated[
        float, typer.Option("--min-change", min=0, help="Smallest shift worth telling, in per cent.")
    ] = 1.0,
    as_json: Json = False,
    format_: OutputFormat = Format.table,
) -> None:
    """Every lasting shift of one series: where it begins, by how much, and how likely chance alone is.

    `index` is the position of the first changed row (or group), from 0.
    """
    from dataclasses import asdict

    from accel_platform.analysis.changepoint import find_changes, watch
    from accel_platform.analysis.series import read_series

    read = read_series(path, value=value, order=order, group=group)
    find = watch if online else find_changes
    rows = []
    for change in find(read.values, min_change_percent=min_change_percent):
        row = asdict(change)
        rows.append({**row, "index": read.positions[change.index], "known_at": read.positions[change.known_at]})
    if wants_json(as_json, format_):
        print_json(rows)
    else:
        print_table(rows, empty=f"No change in {len(read.values):,} values.")
