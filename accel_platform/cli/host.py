"""`accel host`: the hosts that measure what is requested. Their list is kept by `assets/workspace.py`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
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
    print_table,
    settings_for,
    wants_json,
)

app = typer.Typer(no_args_is_help=True, help="The hosts that measure requested benchmarks.")

Workspace = Annotated[
    Path | None,
    typer.Option("--workspace", help="The file that lists hosts.", show_default="workspace.yaml of the clone"),
]


@app.callback()
def host() -> None:
    """The hosts that measure requested benchmarks."""


@app.command()
def serve(
    *,
    port: Annotated[int, typer.Option(min=1, max=65_535, help="Where this host answers Dagster.")],
    bind: Annotated[
        str, typer.Option(help="The address to listen at. Dagster has no passwords: use a private network.")
    ] = "127.0.0.1",
    name: Annotated[
        str | None, typer.Option(help="What this host calls itself.", show_default="the machine's name and the port")
    ] = None,
    hardware: Annotated[
        str | None,
        typer.Option(help="Stand for these hardware names only, comma-separated.", show_default="all that is found"),
    ] = None,
    home: Home = None,
) -> None:
    """Serve this host's hardware to Dagster, until Ctrl-C: requests for it are measured here."""
    import socket

    from accel_platform.backends.registry import runtime_for
    from accel_platform.cli.options import words
    from assets.run_in_process import dagster_home
    from predictor.service.server import listen

    settings = settings_for(home)
    names = [runtime_for(word).name for word in words(hardware)] if hardware is not None else []
    listen(bind, port).close()
    os.environ["ACCEL_HOST_NAME"] = name or f"{socket.gethostname()}:{port}"
    os.environ["ACCEL_HOST_HARDWARE"] = ",".join(names)
    os.environ["ACCEL_HOME"] = str(settings.home.resolve())
    os.environ["DAGSTER_HOME"] = str(dagster_home(settings))
    note(f"{os.environ['ACCEL_HOST_NAME']} serves {', '.join(names) or 'the hardware that is found'} at {bind}:{port}.")
    note("List it where Dagster runs: `accel host add NAME ADDRESS`.")
    server = ["-m", "dagster", "api", "grpc", "--module-name", "assets.hosts", "--host", bind, "--port", str(port)]
    options = ["--use-python-environment-entry-point", "--log-level", "warning"]
    os.execv(sys.executable, [sys.executable, *server, *options])  # noqa: S606 - this very interpreter


@app.command()
def add(
    name: Annotated[str, typer.Argument(help="What it is called in Dagster.")],
    address: Annotated[str, typer.Argument(help="Where `accel host serve` answers there: HOST:PORT.")],
    workspace: Workspace = None,
    as_json: Json = False,
    format_: OutputFormat = FormatOption.table,
) -> None:
    """List a host in the workspace; Dagster knows it after its next start."""
    from assets.workspace import add as add_host
    from assets.workspace import answers

    added = add_host(_workspace(workspace), name, address)
    if not answers(added):
        note(f"Nothing answers at {address} yet: start `accel host serve --port {added.port}` there.")
    if wants_json(as_json, format_):
        print_json(vars(added))
    else:
        print_table([vars(added)])


@app.command(name="list")
def list_hosts(
    workspace: Workspace = None,
    output: Output = None,
    format_: FileFormat = None,
    as_json: Json = False,
) -> None:
    """The hosts of the workspace, and whether each answers."""
    from assets.workspace import answers, hosts_in

    rows = [{**vars(one), "answers": answers(one)} for one in hosts_in(_workspace(workspace))]
    nothing = "No host is listed beside this machine itself."
    answer(rows, chosen(as_json, format_, output), output, title="Hosts", empty=nothing)


@app.command()
def remove(
    name: Annotated[str, typer.Argument(help="As `accel host list` names it.")],
    workspace: Workspace = None,
    as_json: Json = False,
    format_: OutputFormat = FormatOption.table,
) -> None:
    """Take a host off the workspace. What it has measured stays."""
    from assets.workspace import remove as remove_host

    removed = remove_host(_workspace(workspace), name)
    if wants_json(as_json, format_):
        print_json(vars(removed))
    else:
        print_table([vars(removed)])


def _workspace(path: Path | None) -> Path:
    from assets.resources import REPOSITORY

    return path if path is not None else REPOSITORY / "workspace.yaml"
