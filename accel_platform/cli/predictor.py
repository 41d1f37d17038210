"""`accel train` and `serve`: the predictor made, and put into service. Nothing is computed here."""

from __future__ import annotations

import enum
from typing import Annotated

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


class LogFormat(enum.StrEnum):
    text = "text"
    json = "json"


def train(home: Home = None, json_: Json = False, format_: OutputFormat = FormatOption.table) -> None:
    """Train the predictor on what was measured and imported, and put it into service."""
    from accel_platform.events import EventLog
    from predictor.training.train import metric_rows
    from predictor.training.train import train as run

    settings = settings_for(home)
    report = run(settings, EventLog.open(settings), progress=note)
    if wants_json(json_, format_):
        print_json(vars(report))
        return
    print_table(metric_rows(report.metrics))
    for reason, count in report.skipped.items():
        note(f"{count} cells not learned from: {reason}")


def serve(
    host: Annotated[
        str,
        typer.Option("--host", help="Where to listen. Other than loopback it needs API keys (`accel keys create`)."),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65_535, help="0 takes any free one.")] = 8000,
    workers: Annotated[int, typer.Option("--workers", min=1, max=64, help="Processes that answer.")] = 1,
    log_format: Annotated[
        LogFormat, typer.Option("--log-format", help="text tells what went wrong; json has a line per request, too.")
    ] = LogFormat.text,
    home: Home = None,
    json_: Json = False,
    format_: OutputFormat = FormatOption.table,
) -> None:
    """Answer over HTTP until Ctrl-C."""
    from predictor.service.server import serve as run

    for_machines = wants_json(json_, format_)
    run(
        settings_for(home),
        host,
        port,
        ready=lambda url: print_json({"url": url}) if for_machines else announce(url),
        workers=workers,
        log_format=log_format.value,
    )


def announce(url: str) -> None:
    """Say where the service answers, and give a question that can be pasted."""
    note(f"Serving on {url} (Ctrl-C stops it). Open {url}/dashboard, or ask:")
    body = '{"model": "bert-base-uncased", "batch_size": 1}'
    note(f"  curl -s {url}/recommend -H 'content-type: application/json' -d '{body}'")
