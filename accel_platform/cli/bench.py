"""`accel bench`: plan cells, measure them, print what came of it. The measuring is done in `bench/`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from accel_platform.cli import campaign, suite
from accel_platform.cli.coverage import coverage
from accel_platform.cli.output import (
    Format,
    Home,
    Json,
    OutputFormat,
    note,
    print_json,
    print_table,
    settings_for,
    wants_json,
)

if TYPE_CHECKING:
    from accel_platform.hardware import Inventory
    from accel_platform.workloads.families import ModelSpec

app = typer.Typer(no_args_is_help=True, help="Measure models on this host's hardware.")
app.command("suite")(suite.suite)
app.command("coverage")(coverage)
app.command("export")(campaign.export)
app.command("import")(campaign.import_)


@app.callback()
def bench() -> None:
    """Measure models on this host's hardware."""


@app.command()
def run(
    *,
    models: Annotated[str | None, typer.Option(help="Models, comma-separated: keys, aliases or hub ids.")] = None,
    set_: Annotated[
        str | None, typer.Option("--set", help="A named set of models.", show_default="small, or custom")
    ] = None,
    models_file: Annotated[
        Path | None, typer.Option("--models-file", help="JSON with models of your own, the set custom.")
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(help='Real weights: a folder or hub id, or as JSON {"model": "folder or hub id"}.'),
    ] = None,
    hardware: Annotated[
        str | None, typer.Option(help="Hardware names, comma-separated.", show_default="all here but emulated ones")
    ] = None,
    browser: Annotated[
        str | None,
        typer.Option(
            help="For wasm, webgpu and webnn: chromium, chrome, edge or firefox.", show_default="chromium-like"
        ),
    ] = None,
    batch_sizes: Annotated[str, typer.Option(help="Batch sizes, comma-separated.")] = "1,4",
    sequence_length: Annotated[
        int | None, typer.Option(help="Tokens per text.", show_default="each model's own")
    ] = None,
    mode: Annotated[
        str, typer.Option(help="What the models do: inference, generation, training; comma-separated.")
    ] = "inference",
    nproc: Annotated[int, typer.Option(help="Processes that train together, with data parallel.")] = 1,
    precision: Annotated[
        str | None,
        typer.Option(
            help="float32, float16, bfloat16, int8; comma-separated.", show_default="each runtime's usual one"
        ),
    ] = None,
    profile: Annotated[str, typer.Option(help="How thorough: quick, standard or thorough.")] = "standard",
    report_dir: Annotated[
        Path | None, typer.Option("--report-dir", help="Write a JSON report per model and hardware there.")
    ] = None,
    csv: Annotated[Path | None, typer.Option("--csv", help="Write the results as CSV there.")] = None,
    missing: Annotated[bool, typer.Option("--missing", help="Only what the log lacks for this host.")] = False,
    older_than: Annotated[
        str | None, typer.Option(help="With --missing: also what was measured longer ago, such as 30d or 12h.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with this host's last interrupted run, in its own ways.")
    ] = False,
    verify_only: Annotated[
        bool, typer.Option("--verify-only", help="Compare outputs with the reference; time nothing.")
    ] = False,
    benchmark_only: Annotated[
        bool, typer.Option("--benchmark-only", help="Compute no reference; the results are unverified.")
    ] = False,
    no_fix: Annotated[bool, typer.Option("--no-fix", help="Try no remedies for cells that fail.")] = False,
    parallel: Annotated[
        bool, typer.Option("--parallel", help="Devices side by side, never two cells on one device.")
    ] = False,
    operators: Annotated[
        bool, typer.Option("--operators", help="Afterwards, profile each cell by operator; writes Chrome traces.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan with its time, and stop.")] = False,
    home: Home = None,
    as_json: Json = False,
    format_: OutputFormat = Format.table,
) -> None:
    """Measure each model on each hardware at each batch size, in processes of their own, and record every result."""
    from accel_platform.bench.ability import refusal
    from accel_platform.bench.choice import stale_before, work_of
    from accel_platform.bench.modes import mode_named
    from accel_platform.bench.plan import done_cells, fingerprints, plan
    from accel_platform.bench.plan import missing as lacking
    from accel_platform.bench.profiles import profile_named
    from accel_platform.bench.resume import last_interrupted
    from accel_platform.bench.runner import measure_cells
    from accel_platform.bench.work import How
    from accel_platform.cli.bench_answers import print_plan, print_summary
    from accel_platform.errors import AccelError
    from accel_platform.events import EventLog
    from accel_platform.precisions import precision_named
    from accel_platform.reports.run import make_places, write_reports

    settings, chosen, for_machines = settings_for(home), profile_named(profile), wants_json(as_json, format_)
    since = stale_before(older_than, missing=missing)
    how = How(work_of(verify_only, benchmark_only), fix=not no_fix, parallel=parallel, operators=operators)
    specs = _models(models, set_, models_file, weights)
    make_places(report_dir, csv)
    names, inventory = _hardware(hardware, browser)
    modes = [mode_named(word) for word in words(mode)]
    precisions = [precision_named(word) for word in words(precision)] if precision is not None else [None]
    cells = plan(
        specs, names, numbers(batch_sizes), [sequence_length], precisions=precisions, modes=modes, processes=nproc
    )
    if hardware is None:
        # Of what nobody named, a runtime that has not the mode or the precision is no failure.
        cells = tuple(cell for cell in cells if refusal(cell) is None)
    log = EventLog.open(settings)
    resumes = None
    if resume:
        left = last_interrupted(log, inventory.host_id)
        cells, chosen, how, resumes = left.cells, left.profile, left.how, left.run_id
        note(f"Going on with run {left.run_id} of {left.started_at:%Y-%m-%d %H:%M} UTC: {len(cells)} cells are left.")
    wanted = lacking(cells, done_cells(log, since=since), fingerprints(inventory)) if missing else cells
    if dry_run:
        print_plan(cells, wanted, inventory, log, chosen, how, for_machines)
        return
    try:
        summary = measure_cells(
            wanted, settings, log, profile=chosen, how=how, on_progress=note, inventory=inventory, resumes=resumes
        )
    except KeyboardInterrupt:
        note("Stopped. What was measured is kept; `accel bench run --resume` goes on from there.")
        raise
    if summary.run_id is not None:
        summary.files += write_reports(log, summary.run_id, folder=report_dir, csv=csv)
    if wanted or for_machines:
        print_summary(summary, how, for_machines)
    else:
        note(f"All {len(cells)} cells are measured already." if cells else "Nothing is left to measure.")
    if wanted and not summary.ok:
        raise AccelError("Nothing could be measured; the reasons are above.")


def _hardware(hardware: str | None, browser: str | None) -> tuple[list[str], Inventory]:
    """The names asked for, or all that answer here, and what was found of them."""
    from accel_platform.backends.registry import RUNTIMES, in_browser
    from accel_platform.hardware import detect

    names = words(hardware) if hardware is not None else list(RUNTIMES)
    if browser is not None:
        names = [in_browser(name, browser) for name in names]
    inventory = detect(names)
    if hardware is None:
        # A software stand-in is slow and answers for no hardware: it is measured only where it is asked for.
        found = {name: inventory.device(name) for name in (*names, *inventory.names[len(RUNTIMES) :])}
        names = [name for name, device in found.items() if device and device.available and not device.emulated]
    return names, inventory


@app.command(name="models")
def list_models(
    *,
    set_: Annotated[str | None, typer.Option("--set", help="Only the models of this set.")] = None,
    as_json: Json = False,
    format_: OutputFormat = Format.table,
) -> None:
    """List the models known by name: what they are, how large, and in which sets."""
    from accel_platform.workloads.cost import parameters_of
    from accel_platform.workloads.families import known_models, model_set, sets_of

    specs = known_models() if set_ is None else model_set(set_)
    rows: list[dict[str, Any]] = [
        {
            "model_id": spec.model_id,
            "family": spec.family,
            "modality": spec.modality,
            "architecture": spec.architecture,
            "parameters": parameters_of(spec),
            "sequence_length": spec.sequence_length,
            "sets": sets_of(spec),
            "aliases": spec.aliases,
        }
        for spec in specs
    ]
    if wants_json(as_json, format_):
        print_json(rows)
    else:
        shown = ("model_id", "family", "modality", "architecture", "parameters", "sequence_length")
        print_table([{**{c: row[c] for c in shown}, "sets": ", ".join(row["sets"]) or None} for row in rows])


@app.command(name="setup-web")
def setup_web(*, as_json: Json = False, format_: OutputFormat = Format.table) -> None:
    """Fetch the onnxruntime-web release that the browser backends run, through npm; needed once, then offline."""
    from accel_platform.backends.browser import package

    fetched = package.install()
    answer = {"runtime": package.NAME, "version": package.VERSION, "folder": package.folder(), "fetched": fetched}
    if wants_json(as_json, format_):
        print_json(answer)
    else:
        print_table([answer])


def _models(models: str | None, set_: str | None, models_file: Path | None, weights: str | None) -> list[ModelSpec]:
    from accel_platform.bench.api import models_named
    from accel_platform.workloads.custom import read_models

    names = tuple(words(models)) if models is not None else None
    own = read_models(models_file) if models_file is not None else {}
    return models_named(names, set_, own, _weights(weights, names or tuple(own)))


def _weights(text: str | None, names: tuple[str, ...]) -> dict[str, str]:
    """Model name to source: one source is the one model's, several come as a JSON object or a file that holds one."""
    import json

    from accel_platform.documents import read_object
    from accel_platform.errors import InvalidInput

    if text is None:
        return {}
    path = Path(text)
    if not text.lstrip().startswith("{") and not (path.suffix == ".json" and path.is_file()):
        if len(names) != 1:
            raise InvalidInput("--weights with one source needs one model, in --models; or write it as a JSON object.")
        return {names[0]: text}
    try:
        found = read_object(path)[0] if path.suffix == ".json" else json.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidInput(f"--weights is no JSON object: {error.msg} at character {error.pos}.") from error
    if wrong := [name for name, source in found.items() if not isinstance(source, str)]:
        raise InvalidInput(f"--weights: expected a folder or hub id for {wrong[0]}, got {found[wrong[0]]!r}.")
    return found


def words(text: str) -> list[str]:
    """The parts of a comma-separated option."""
    return [word.strip() for word in text.split(",") if word.strip()]


def numbers(text: str) -> list[int]:
    """The batch sizes of a comma-separated option. Raises InvalidInput."""
    from accel_platform.errors import InvalidInput

    try:
        return [int(word) for word in words(text)]
    except ValueError as error:
        raise InvalidInput(f"Batch sizes must be whole numbers such as 1,4, not {text!r}.") from error
