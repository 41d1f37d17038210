"""`accel host` and `accel detect`: hosts that measure requested benchmarks, and this host's hardware."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from accel_platform.cli.options import PEOPLE, SEVERAL, CommandApp, CommonOptions, Home, ManyValues, TableOptions
from accel_platform.cli.output import follow_log, note, print_json, print_table, settings_for, write_answer

app = CommandApp(no_args_is_help=True, help="The hosts that measure requested benchmarks.")

Workspace = Annotated[
    Path | None,
    typer.Option("--workspace", help="The file that lists hosts.", show_default="workspace.yaml in the home"),
]


@app.callback()
def host() -> None:
    """Manage the hosts that measure requested benchmarks."""


@app.command(cls=ManyValues)
def serve(
    *,
    port: Annotated[int, typer.Option(min=1, max=65_535, help="Port for Dagster's connections.")],
    bind: Annotated[
        str, typer.Option(help="Address to listen on. Dagster has no passwords, so use a private network.")
    ] = "127.0.0.1",
    name: Annotated[
        str | None, typer.Option(help="Name of this host.", show_default="the machine's name and the port")
    ] = None,
    hardware: Annotated[
        str | None,
        typer.Option(metavar=SEVERAL, help="Only these hardware names.", show_default="all detected"),
    ] = None,
    slurm: Annotated[
        bool, typer.Option("--slurm", help="Measure in jobs of Slurm: this is where jobs are submitted.")
    ] = False,
    home: Home = None,
) -> None:
    """Serve this host's hardware to Dagster until Ctrl-C. Requests for it are measured here, or in jobs of Slurm."""
    import shutil
    import socket

    from accel_platform.backends.registry import runtime_for
    from accel_platform.cli.options import split_words
    from accel_platform.errors import InvalidInput
    from accel_platform.hardware.host import HOST_NAME
    from assets.run_in_process import dagster_home
    from predictor.service.server import listen

    settings = settings_for(home)
    names = [runtime_for(word).name for word in split_words(hardware)] if hardware is not None else []
    if slurm:
        from assets.executors.cluster import SCHEDULER, load_cluster

        if not names:
            raise InvalidInput("Name the cluster's hardware, such as `--hardware cuda,cpu`: nothing detects it here.")
        if shutil.which("sbatch") is None:
            raise InvalidInput("There is no sbatch on PATH: serve Slurm from where jobs are submitted.")
        cluster = load_cluster(settings)
        for word in names:
            cluster.device(word)
        os.environ[SCHEDULER] = "slurm"
    listen(bind, port).close()
    os.environ[HOST_NAME] = name or f"{socket.gethostname()}:{port}"
    os.environ["ACCEL_HOST_HARDWARE"] = ",".join(names)
    os.environ["ACCEL_HOME"] = str(settings.home.resolve())
    os.environ["DAGSTER_HOME"] = str(dagster_home(settings))
    what = ", ".join(names) or "the hardware that is found"
    note(f"{os.environ[HOST_NAME]} serves {what}{' of Slurm' if slurm else ''} at {bind}:{port}.")
    note("List it where Dagster runs: `accel host add NAME ADDRESS`.")
    # Dagster's server handles SIGTERM as it finds SIGINT, which shells ignore in what scripts start with `&`.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    server = ["-m", "dagster", "api", "grpc", "--module-name", "assets.hosts", "--host", bind, "--port", str(port)]
    options = ["--use-python-environment-entry-point", "--log-level", "warning"]
    os.execv(sys.executable, [sys.executable, *server, *options])  # noqa: S606 - this very interpreter


@app.command()
def add(
    name: Annotated[str, typer.Argument(help="Its name in Dagster.")],
    address: Annotated[str, typer.Argument(help="HOST:PORT of its `accel host serve`.")],
    workspace: Workspace = None,
    *,
    common: CommonOptions,
) -> None:
    """Add a host to the workspace. Dagster reads it at its next start."""
    from assets.workspace import add as add_host
    from assets.workspace import answers, own_workspace, workspace_file

    settings = settings_for(common.home)
    added = add_host(workspace or workspace_file(settings), name, address, target=workspace or own_workspace(settings))
    if not answers(added):
        note(f"Nothing answers at {address} yet: start `accel host serve --port {added.port}` there.")
    if common.wants_json:
        print_json(vars(added))
    else:
        print_table([vars(added)])


@app.command(name="list")
def list_hosts(workspace: Workspace = None, *, table: TableOptions) -> None:
    """List the hosts of the workspace, and if each is reachable."""
    from assets.workspace import answers, hosts_in, workspace_file

    path = workspace or workspace_file(settings_for(table.home))
    rows = [{**vars(one), "answers": answers(one)} for one in hosts_in(path)]
    nothing = "No host is listed beside this machine itself."
    write_answer(rows, table, title="Hosts", empty=nothing)


@app.command()
def remove(
    name: Annotated[str, typer.Argument(help="A name from `accel host list`.")],
    workspace: Workspace = None,
    *,
    common: CommonOptions,
) -> None:
    """Remove a host from the workspace. Its results stay."""
    from assets.workspace import own_workspace, workspace_file
    from assets.workspace import remove as remove_host

    settings = settings_for(common.home)
    removed = remove_host(workspace or workspace_file(settings), name, target=workspace or own_workspace(settings))
    if common.wants_json:
        print_json(vars(removed))
    else:
        print_table([vars(removed)])


def detect(table: TableOptions) -> None:
    """Detect this host's hardware: each kind with its device, or the reason it is unavailable.

    The result is recorded where something is recorded already.
    """
    from accel_platform.backends.detect import detect as look
    from accel_platform.backends.detect import fingerprint_of
    from accel_platform.events import EventLog
    from accel_platform.hardware.cpu import usable_cores

    inventory, settings = look(), settings_for(table.home)
    log = EventLog.open(settings)
    appended = log.append(inventory.events()) if log.snapshot().segments else None
    threads = usable_cores()
    devices = [
        {
            **device.model_dump(mode="json"),
            "fingerprint": fingerprint_of(device, threads=threads) if device.available else None,
        }
        for device in inventory.devices
    ]
    host = inventory.host
    note(f"{host.hostname} ({inventory.host_id}): {host.cpu_model}, {host.memory_mib / 1024:.0f} GiB, {host.os}")
    short = [
        {
            "hardware": name,
            "available": ("emulated" if device.emulated else "yes") if device.available else "no",
            "backend": device.backend,
            "device": device.device_id if device.available else f"({device.reason})",
        }
        for name, device in zip(inventory.names, inventory.devices, strict=True)
    ]
    document = {"host_id": inventory.host_id, "host": host, "devices": devices}
    write_answer(short if table.kind in PEOPLE else devices, table, title="Hardware of this host", document=document)
    note(
        f"Recorded as {appended.segment}."
        if appended
        else f"Not recorded, because {settings.home} has no log yet: `accel bench run` or `accel run` makes one."
    )
    if appended:
        follow_log(settings)
