"""`accel run`, the whole line and then the service, and `accel ui`, Dagster's pages beside the service.

The line itself is the asset graph of `assets`; nothing is computed here.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from accel_platform.cli.options import numbers, words
from accel_platform.cli.output import FormatOption, Home, Json, OutputFormat, note, print_json, settings_for, wants_json
from accel_platform.cli.predictor import announce

HOST = "127.0.0.1"
_STOP_S = 90
"""How long `dagster dev` may take to end its own processes (it allows each of them 60 s)."""

Port = Annotated[int, typer.Option("--port", min=1, max=65_535, help="Where the service answers, on loopback.")]


def run(
    *,
    models: Annotated[
        str | None,
        typer.Option(help="Models to measure, comma-separated.", show_default="BERT, ViT, T5, Whisper"),
    ] = None,
    hardware: Annotated[
        str | None,
        typer.Option(help="Hardware names, comma-separated.", show_default="cpu,openvino,onnxruntime"),
    ] = None,
    batch_sizes: Annotated[str | None, typer.Option(help="Batch sizes, comma-separated.", show_default="1,4")] = None,
    effort: Annotated[str, typer.Option(help="How thorough: quick, standard or thorough.")] = "standard",
    port: Port = 8000,
    serve: Annotated[bool, typer.Option("--serve/--no-serve", help="Whether to serve the answers at the end.")] = True,
    home: Home = None,
    json_: Json = False,
    format_: OutputFormat = FormatOption.table,
) -> None:
    """The whole line: detect, measure what is lacking, migrate the sample files, check, train, and serve.

    What an earlier run measured is kept, so a second one takes seconds.
    """
    from accel_platform.errors import AccelError
    from assets.events import MeasurementConfig
    from assets.run_in_process import STAGES, run_full_pipeline
    from predictor.service.server import listen
    from predictor.service.server import serve as serve_until_stopped

    settings = settings_for(home)
    asked: dict[str, Any] = {
        "models": models and words(models),
        "hardware": hardware and words(hardware),
        "batch_sizes": batch_sizes and numbers(batch_sizes),
    }
    config = MeasurementConfig(effort=effort, **{name: value for name, value in asked.items() if value is not None})
    # What would end the run in minutes is found out now.
    config.cells()
    if serve:
        listen(HOST, port).close()
    stages = len(STAGES) + serve
    try:
        with _own_stderr() as say:
            outcome = run_full_pipeline(settings, {"measurements": config}, stages=stages, say=say)
    except KeyboardInterrupt:
        note("Stopped. What was measured is kept; the same command goes on from there.")
        raise
    if outcome.failures:
        reasons = "; ".join(f"{step}: {reason}" for step, reason in outcome.failures.items())
        raise AccelError(f"The line did not reach its end. {reasons} (`accel ui` shows the run {outcome.run_id})")
    if wants_json(json_, format_):
        print_json({"run_id": outcome.run_id, "seconds": outcome.seconds, "assets": outcome.materialised})
    if serve:
        note(f"[{stages}/{stages}] Serving, {outcome.seconds:.0f} s after the start")
        serve_until_stopped(settings, HOST, port, ready=announce)


def ui(
    ui_port: Annotated[int, typer.Option(min=1, max=65_535, help="Where Dagster's pages are, on loopback.")] = 3000,
    port: Port = 8000,
    home: Home = None,
    json_: Json = False,
    format_: OutputFormat = FormatOption.table,
) -> None:
    """Dagster's pages and the service together, until Ctrl-C."""
    from accel_platform.errors import AccelError
    from assets.resources import REPOSITORY
    from assets.run_in_process import dagster_home
    from predictor.service.server import listen

    settings, for_machines = settings_for(home), wants_json(json_, format_)
    for wanted in (ui_port, port):
        listen(HOST, wanted).close()
    folder = dagster_home(settings)
    # Dagster runs in its own folder, or it would warn about the dagster.yaml of this one.
    environment = {
        **os.environ,
        "DAGSTER_HOME": str(folder),
        "ACCEL_HOME": str(settings.home.resolve()),
        "ACCEL_INBOX": str(settings.inbox_dir.resolve()),
    }
    if settings.log_uri and "://" not in settings.log_uri:
        environment["ACCEL_LOG_URI"] = str(Path(settings.log_uri).resolve())
    if settings.suite:
        environment["ACCEL_SUITE"] = str(settings.suite.resolve())
    # It recommends its successor `dg`, which wants a project laid out in its own way.
    python = [sys.executable, "-W", "ignore:Function `dev_command` is superseded"]
    pages = [*python, "-m", "dagster", "dev", "-w", str(REPOSITORY / "workspace.yaml"), "--log-level", "warning"]
    commands = {
        "Dagster": [*pages, "-h", HOST, "-p", str(ui_port)],
        "The service": [str(Path(sys.executable).with_name("accel")), "serve", "--port", str(port)],
    }
    # A supervisor's signal is no other thing than Ctrl-C, and neither is passed on as ignored to what is started here.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    note("Starting Dagster and the service (Ctrl-C stops both) …")
    with _running(commands, folder, environment) as processes:
        answering = False
        while True:
            for name, process in processes.items():
                if process.poll() is not None:
                    raise AccelError(f"{name} ended with exit code {process.returncode}; what it said is above.")
            if not answering and all(map(_answers, (ui_port, port))):
                answering = True
                pages_url, service_url = f"http://{HOST}:{ui_port}", f"http://{HOST}:{port}"
                if for_machines:
                    print_json({"dagster": pages_url, "service": service_url})
                else:
                    note(f"Open {pages_url} for the asset graph, {service_url}/dashboard for the results.")
            time.sleep(0.5)


@contextmanager
def _own_stderr() -> Iterator[Any]:
    """A function that writes lines to this process's stderr, also while Dagster redirects that to a step's log."""
    with os.fdopen(os.dup(sys.stderr.fileno()), "w", buffering=1) as stream:
        yield lambda line: print(line, file=stream)


@contextmanager
def _running(
    commands: dict[str, list[str]], folder: Path, environment: dict[str, str]
) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """The commands as processes, each with all it starts in a group of its own, so that Ctrl-C reaches them once."""
    processes = {}
    try:
        for name, command in commands.items():
            processes[name] = subprocess.Popen(command, cwd=folder, env=environment, start_new_session=True)
        yield processes
    finally:
        for process in processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
        for process in processes.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=_STOP_S)
            # Its leader or not: nothing of the group outlives this command.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((HOST, port)) == 0
