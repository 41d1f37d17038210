"""`accel bench export` and `import`: measured events as a file that travels. The work is in `bench/run/campaign.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from accel_platform.cli.output import FormatOption, Home, Json, OutputFormat, note, print_json, settings_for, wants_json


def export(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write, e.g. campaign.parquet.")],
    runs: Annotated[
        str | None, typer.Option(help="Run ids, comma-separated.", show_default="all that this installation measured")
    ] = None,
    home: Home = None,
    as_json: Json = False,
    format_: OutputFormat = FormatOption.table,
) -> None:
    """Write what was measured here, raw samples and all, to one file that another installation can import."""
    from accel_platform.bench.run.campaign import export_campaign
    from accel_platform.cli.options import words
    from accel_platform.events import EventLog

    written = export_campaign(EventLog.open(settings_for(home)), path, runs=words(runs or ""))
    if wants_json(as_json, format_):
        print_json(vars(written) | {"path": str(path)})
    else:
        note(f"{written.results:,} results of {written.runs} runs written to {path}, {written.size_bytes:,} bytes")


def import_(
    paths: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Files that `accel bench export` wrote.")],
    home: Home = None,
    as_json: Json = False,
    format_: OutputFormat = FormatOption.table,
) -> None:
    """Take in what was measured elsewhere; it keeps its host, its ids and its samples."""
    from accel_platform.events import EventLog

    log = EventLog.open(settings_for(home))
    taken = [(path, log.adopt(path)) for path in paths]
    if wants_json(as_json, format_):
        print_json([{"path": str(path), "events": one.events, "new": one.new} for path, one in taken])
    else:
        for path, one in taken:
            note(f"{path}: {one.events:,} events{'' if one.new else ', which the log holds already'}")
