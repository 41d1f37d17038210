"""`accel cache`: deletion of what an installation keeps only to be faster."""

from __future__ import annotations

from accel_platform.cli.options import CommandApp, CommonOptions
from accel_platform.cli.output import note, print_json, settings_for
from accel_platform.table_io.values import count_of

app = CommandApp(help="Delete what is kept only to be faster.", no_args_is_help=True)


@app.callback()
def cache() -> None:
    """Delete what is kept only to be faster; `accel db du` says how large it is."""


@app.command()
def clean(common: CommonOptions) -> None:
    """Delete prepared models, tables of the past and unfinished files; what is needed again is made again.

    Results, predictors and the tables in service stay.
    """
    from accel_platform.warehouse.disk_use import clean_cache

    freed = clean_cache(settings_for(common.home))
    if common.wants_json:
        print_json(vars(freed))
    else:
        note(f"{count_of(freed.files, 'file')} deleted, {freed.size_bytes / 1e6:,.1f} MB freed")
