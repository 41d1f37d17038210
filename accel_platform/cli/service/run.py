"""`accel run`, the service beside the full pipeline, and `accel ui`, Dagster's pages beside the service."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from accel_platform.cli.data.knowledge import adopt_shipped
from accel_platform.cli.measurement.plan_options import Effort
from accel_platform.cli.options import SEVERAL, CommonOptions, parse_batch_sizes, split_words
from accel_platform.cli.output import note, print_json, settings_for
from accel_platform.cli.service.serve import announce
from accel_platform.errors import INTERRUPTED, AccelError, Conflict, storage_unavailable
from accel_platform.signals import (
    adopt_orphans,
    end_at_once,
    interrupt_with_parent,
    kill_descendants,
    reap_orphans,
)

if TYPE_CHECKING:
    from accel_platform.settings import Settings

HOST = "127.0.0.1"
_STOP_S = 5
"""Seconds that the pipeline beside the service may take to stop; it is killed then, and what it finished is kept."""
_STOP_UI_S = 9
"""The same of Dagster's pages and the service."""
_STOP_RUNS_S = 8
"""Seconds that runs in Dagster may take before that to record what they have."""
_LOOK_S = 0.5
"""Pause between two looks whether Dagster and the service run and answer."""
_ENDING = "ending.log"
"""File in Dagster's folder for what it writes while it stops: errors of parts that miss those which stopped first."""

_ASSET_JOB = b"__ASSET_JOB"
"""Dagster's name of the job of any run that somebody or a condition asked single assets for."""

_LOCK = "ui.lock"
"""File in Dagster's folder that `accel ui` locks; it has the address of the pages."""

Port = Annotated[int, typer.Option("--port", min=1, max=65_535, help="Port of the service, on loopback.")]


def run(
    *,
    models: Annotated[
        str | None,
        typer.Option(metavar=SEVERAL, help="Models to measure.", show_default="BERT, ViT, T5, Whisper"),
    ] = None,
    hardware: Annotated[
        str | None,
        typer.Option(
            metavar=SEVERAL, help="Hardware names.", show_default="cpu,openvino,onnxruntime and each kind of GPU found"
        ),
    ] = None,
    batch_sizes: Annotated[str | None, typer.Option(metavar=SEVERAL, help="Batch sizes.", show_default="1,4")] = None,
    effort: Effort = "standard",
    port: Port = 8000,
    serve: Annotated[bool, typer.Option("--serve/--no-serve", help="Start the service.")] = True,
    wait: Annotated[bool, typer.Option("--wait", help="Measure first, and serve when everything is done.")] = False,
    common: CommonOptions,
) -> None:
    """Serve from shipped and earlier results at once, and run the full pipeline beside the service.

    The pipeline detects the hardware, measures missing results, migrates the sample files, checks and trains. Answers
    follow as results land. Results of earlier runs are reused, so a second run takes seconds.
    """
    from accel_platform.bench.plan.plan import host_cells
    from accel_platform.bench.plan.run_options import effort_preset
    from predictor.service.server import listen

    settings, for_machines = settings_for(common.home), common.wants_json
    choice: dict[str, Any] = {
        "models": split_words(models) if models else [],
        "hardware": split_words(hardware) if hardware else [],
        "batch_sizes": parse_batch_sizes(batch_sizes) if batch_sizes else [],
    }
    # Invalid options are reported now, because the run would fail on them only after minutes.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    effort_preset(effort)
    host_cells(**choice)
    if serve:
        listen(HOST, port).close()
    if wait or not serve:
        given = {name: value for name, value in choice.items() if value}
        _run_pipeline(settings, {**given, "effort": effort}, for_machines=for_machines)
        adopt_shipped(settings)
        if serve:
            _serve(settings, port, for_machines=for_machines)
        return
    _prepare_first_answers(settings)
    command = [sys.executable, "-P", "-m", "accel_platform", "run", "--no-serve", "--effort", effort]
    for option, value in {"--models": models, "--hardware": hardware, "--batch-sizes": batch_sizes}.items():
        command += [option, value] if value else []
    _serve_beside({"The pipeline": command + ["--json"] * for_machines}, settings, port, for_machines=for_machines)


def _run_pipeline(settings: Settings, measurements: dict[str, Any], *, for_machines: bool) -> None:
    """Run the full pipeline in this process. Raises AccelError with the reasons where a step fails."""
    from assets.events import MeasurementConfig
    from assets.run_in_process import describe_failures, run_full_pipeline

    try:
        with _own_stderr() as say:
            outcome = run_full_pipeline(settings, {"measurements": MeasurementConfig(**measurements)}, say=say)
    except KeyboardInterrupt:
        kill_descendants()
        note("Stopped. Results so far are kept; the same command continues.")
        raise
    if outcome.failures:
        reasons = describe_failures(outcome.failures)
        raise AccelError(f"The pipeline failed. {reasons} (`accel ui` shows the run {outcome.run_id})")
    if for_machines:
        print_json({"run_id": outcome.run_id, "seconds": outcome.seconds, "assets": outcome.materialized})
    note(f"The pipeline is done, {outcome.seconds:.0f} s after its start.")


def _prepare_first_answers(settings: Settings) -> None:
    """Bring the tables up to date with the log and the shipped results, and train where there is no predictor.

    Knowledge packs come after the training, because learning from all of them would delay the first answer.
    """
    from accel_platform.events import EventLog
    from accel_platform.knowledge import adopt_campaigns
    from accel_platform.warehouse.publish import bring_up_to_date
    from predictor.training import artifact
    from predictor.training.train import train

    log = EventLog.open(settings)
    adopt_campaigns(log)
    bring_up_to_date(settings, progress=note)
    if artifact.current_id(settings) is None:
        try:
            train(settings, log, progress=note)
        except AccelError as error:
            note(f"Without a predictor, answers come from results only: {error}")
    adopt_shipped(settings)


def _serve(settings: Settings, port: int, *, for_machines: bool) -> None:
    from migrations.suspicion.rules import mark_suspicious
    from predictor.service.server import serve

    def ready(url: str) -> None:
        if for_machines:
            print_json({"url": url})
        else:
            announce(url, settings)

    serve(settings, HOST, port, ready=ready, mark_suspicious=mark_suspicious)


def _serve_beside(commands: dict[str, list[str]], settings: Settings, port: int, *, for_machines: bool) -> None:
    """Serve until interrupted, with the commands beside the service; they stop with it."""
    _interrupt_on_signals()
    with _started(commands, Path.cwd(), dict(os.environ)) as processes:
        for name, process in processes.items():
            threading.Thread(target=_report_end, args=(name, process), daemon=True).start()
        _serve(settings, port, for_machines=for_machines)


def _report_end(name: str, process: subprocess.Popen[bytes]) -> None:
    code = process.wait()
    if code not in (0, INTERRUPTED):
        note(f"{name} ended with exit code {code}; its output is above. The service goes on with what there is.")


def ui(
    ui_port: Annotated[int, typer.Option(min=1, max=65_535, help="Port of Dagster's pages, on loopback.")] = 3000,
    port: Port = 8000,
    *,
    common: CommonOptions,
) -> None:
    """Run Dagster's pages and the service together until Ctrl-C."""
    from accel_platform.bench.plan.config import NIGHTLY, read_config
    from accel_platform.events import EventLog
    from assets.run_in_process import dagster_home
    from assets.workspace import workspace_file
    from predictor.service.server import listen

    settings, for_machines = settings_for(common.home), common.wants_json
    nightly = read_config(settings.suite) if settings.suite else None
    for wanted in (ui_port, port):
        listen(HOST, wanted).close()
    EventLog.open(settings).require_writable()
    folder = dagster_home(settings)
    # The warning recommends `dg`, which needs another project layout.
    python = [sys.executable, "-W", "ignore:Function `dev_command` is superseded"]
    pages = [*python, "-m", "dagster", "dev", "-w", str(workspace_file(settings).resolve()), "--log-level", "warning"]
    commands = {
        "Dagster": [*pages, "-h", HOST, "-p", str(ui_port)],
        "The service": [sys.executable, "-P", "-m", "accel_platform", "serve", "--port", str(port)],
    }

    def stop_runs() -> None:
        note("Stopping (Ctrl-C again ends everything at once) …")
        _stop_runs(folder, wait_s=_STOP_RUNS_S)

    _interrupt_on_signals()
    pages_url, service_url = f"http://{HOST}:{ui_port}", f"http://{HOST}:{port}"
    with _only_one(folder, pages_url):
        note("Starting Dagster and the service (Ctrl-C stops both) …")
        if nightly is not None:
            off = nightly.schedule is None and "schedule" in nightly.model_fields_set
            times = "never, for its schedule is off" if off else f"at {nightly.schedule or NIGHTLY} UTC"
            note(f"The suite {settings.suite} is asked for {times} (schedule nightly_suite).")
        _stop_runs(folder, wait_s=0)  # those that an `accel ui` has left that was killed
        with _started(
            commands,
            folder,
            _dagster_environment(settings, folder),
            stop_s=_STOP_UI_S,
            before_stop=stop_runs,
            ending=folder / _ENDING,
        ) as processes:
            while not all(map(_answers, (ui_port, port))):
                _require_running(processes)
                time.sleep(_LOOK_S)
            if for_machines:
                print_json({"dagster": pages_url, "service": service_url})
            else:
                note(f"Open {pages_url} for the asset graph, {service_url}/dashboard for the results.")
            children = [process.pid for process in processes.values()]
            while True:
                _require_running(processes)
                reap_orphans(children)
                time.sleep(_LOOK_S)


def _dagster_environment(settings: Settings, folder: Path) -> dict[str, str]:
    """Return the environment of Dagster and the service, with absolute paths.

    Dagster runs in its own folder, because it would warn about the dagster.yaml of this one.
    """
    environment = {
        **os.environ,
        "DAGSTER_HOME": str(folder),
        "ACCEL_HOME": str(settings.home.resolve()),
        "ACCEL_INBOX": str(settings.inbox_dir.resolve()),
        "PYTHONUNBUFFERED": "1",  # both write to pipes
        "GRPC_VERBOSITY": "ERROR",  # gRPC tells of each fork beside a thread of its own, which does no harm
    }
    if settings.log_uri and "://" not in settings.log_uri:
        environment["ACCEL_LOG_URI"] = str(Path(settings.log_uri).resolve())
    if settings.suite:
        environment["ACCEL_SUITE"] = str(settings.suite.resolve())
    return environment


def _require_running(processes: Mapping[str, subprocess.Popen[bytes]]) -> None:
    """Raise AccelError for a process that has ended."""
    for name, process in processes.items():
        if process.poll() is not None:
            raise AccelError(f"{name} ended with exit code {process.returncode}; its output is above.")


@contextmanager
def _only_one(folder: Path, pages_url: str) -> Iterator[None]:
    """Keep a second `accel ui` out of Dagster's folder, because Dagster supports one daemon.

    Raises Conflict, or StorageUnavailable.
    """
    # Unbuffered, because closing the file would fail once more on a full disk.
    with (folder / _LOCK).open("ab+", buffering=0) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            lock.seek(0)
            raise Conflict(
                f"Another `accel ui` works on {folder.parent}: open {lock.read().decode()}, stop it, or choose another"
                " --home."
            ) from error
        try:
            lock.truncate(0)
            lock.write(pages_url.encode())
        except OSError as error:
            raise storage_unavailable(error, folder) or error from error
        yield


def _stop_runs(folder: Path, *, wait_s: float) -> None:
    from dagster import DagsterInstance

    from assets.executors.heartbeat import stop_runs
    from assets.run_in_process import explain_database_errors

    with explain_database_errors(folder), DagsterInstance.from_config(str(folder)) as instance:
        stop_runs(instance, wait_s=wait_s)


def _interrupt_on_signals() -> None:
    """Have SIGTERM act like Ctrl-C. Both get a handler, because child processes would inherit an ignored signal."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)


@contextmanager
def _own_stderr() -> Iterator[Any]:
    """Yield a function that writes lines to the original stderr while Dagster redirects it to a step's log."""
    with os.fdopen(os.dup(sys.stderr.fileno()), "w", buffering=1) as stream:
        yield lambda line: print(line, file=stream)


@contextmanager
def _started(
    commands: dict[str, list[str]],
    folder: Path,
    environment: dict[str, str],
    *,
    stop_s: float = _STOP_S,
    before_stop: Callable[[], object] = lambda: None,
    ending: Path | None = None,
) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """Yield the commands as processes, each in its own process group so that Ctrl-C reaches it once.

    At the end `before_stop` is called, then they are interrupted, and after `stop_s` killed; none of their descendants
    is left then. Their output from then on goes to the file `ending`, where one is given. On Linux they are
    interrupted, too, where this process is killed.
    """
    processes: dict[str, subprocess.Popen[bytes]] = {}
    stopped: set[int] = set()
    relays = []
    stdout, stderr = (None, None) if ending is None else (subprocess.PIPE, subprocess.STDOUT)
    adopt_orphans()
    try:
        for name, command in commands.items():
            processes[name] = process = subprocess.Popen(
                command,
                cwd=folder,
                env=environment,
                start_new_session=True,
                stdout=stdout,
                stderr=stderr,
                preexec_fn=interrupt_with_parent,  # noqa: PLW1509 - it takes no lock, and Dagster cannot call it
            )
            if ending is not None:
                ending.unlink(missing_ok=True)
                relays.append(threading.Thread(target=_relay, args=(process, stopped, ending), daemon=True))
                relays[-1].start()
        yield processes
    finally:
        # `make` passes on a SIGTERM that the group got, too; it must not cut this short, as a second Ctrl-C does.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, end_at_once)
        stopped.update(process.pid for process in processes.values())
        try:
            before_stop()
        finally:
            for process in processes.values():
                if process.poll() is None:
                    process.send_signal(signal.SIGINT)
            deadline = time.monotonic() + stop_s
            for process in processes.values():
                with suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=max(0.0, deadline - time.monotonic()))
            # Workers have process groups of their own, and may outlive who started them.
            if left := kill_descendants():
                note(f"These processes do not end: {', '.join(map(str, left))}")
            for relay in relays:
                relay.join(timeout=1)


def _relay(process: subprocess.Popen[bytes], stopped: set[int], ending: Path) -> None:
    """Write the output of a process to stderr; to a file once its id is among the stopped ones.

    The name of Dagster's job is replaced by `assets`, because the line also names the asset.
    """
    assert process.stdout is not None
    for text in process.stdout:
        line = text.replace(_ASSET_JOB, b"assets")
        if process.pid in stopped:
            with ending.open("ab") as file:
                file.write(line)
        else:
            sys.stderr.buffer.write(line)
            sys.stderr.flush()


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((HOST, port)) == 0
