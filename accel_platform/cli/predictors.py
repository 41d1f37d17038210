"""`accel predictor`: which predictors are kept, which serves, and the way back. Nothing is trained here."""

from __future__ import annotations

from typing import Annotated

import typer

from accel_platform.cli.output import (
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
    settings_for,
    wants_json,
)

app = typer.Typer(help="The predictors kept: list, show, go back.", no_args_is_help=True)
Id = Annotated[str | None, typer.Argument(help="An id or its beginning; default: the one in service.")]


@app.command("list")
def list_(output: Output = None, format_: FileFormat = None, home: Home = None, as_json: Json = False) -> None:
    """Every predictor kept, the newest first, and which one serves."""
    from accel_platform.events import EventLog
    from predictor.training.promotion import list_predictors

    settings = settings_for(home)
    rows = list_predictors(settings, EventLog.open(settings))
    nothing, document = "No predictor was trained yet (`accel train`).", {"predictors": rows}
    answer(rows, chosen(as_json, format_, output), output, title="Predictors", document=document, empty=nothing)


@app.command()
def show(
    predictor_id: Id = None,
    output: Output = None,
    format_: FileFormat = None,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """What a predictor was made from, and how far it errs on what was held out."""
    from predictor.training.promotion import find_manifest
    from predictor.training.train import metric_rows

    manifest = find_manifest(settings_for(home), predictor_id)
    document = manifest.model_dump(mode="json")
    kind = chosen(as_json, format_, output)
    answer(metric_rows(manifest.metrics), kind, output, title="Errors on what was held out", document=document)
    note(f"{manifest.rows} cases of {len(manifest.families)} families at snapshot {manifest.snapshot_id[:12]}")


@app.command()
def rollback(
    predictor_id: Annotated[
        str | None, typer.Argument(help="An id or its beginning; default: the one that served before.")
    ] = None,
    home: Home = None,
    json_: Json = False,
    format_: OutputFormat = FormatOption.table,
) -> None:
    """Put an earlier predictor back into service, at once, also for a service that runs."""
    from accel_platform.events import EventLog
    from predictor.training.promotion import roll_back

    settings = settings_for(home)
    done = roll_back(settings, EventLog.open(settings), predictor_id)
    if wants_json(json_, format_):
        print_json({"predictor_id": done.predictor_id, "replaced": done.replaced})
        return
    note(f"{done.predictor_id} serves; {done.replaced or 'nothing'} did")
