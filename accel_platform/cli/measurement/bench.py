"""`accel bench`: planning and running benchmarks, the model list, and campaign files."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from accel_platform.cli.measurement import load, requests, wheels
from accel_platform.cli.measurement.coverage import coverage
from accel_platform.cli.options import (
    SEVERAL,
    FileFormat,
    FormatOption,
    Home,
    Json,
    ManyValues,
    Output,
    OutputFormat,
    output_file,
    parse_batch_sizes,
    split_words,
)
from accel_platform.cli.output import (
    choose_format,
    follow_log,
    note,
    print_json,
    print_table,
    settings_for,
    wants_json,
    write_answer,
)
from accel_platform.table_io.values import count_of


class ExportForm(enum.StrEnum):
    """Format of the file that `bench export` writes."""

    events = "events"
    llm_d = "llm-d"


app = typer.Typer(no_args_is_help=True, help="Measure models on this host's hardware.")
app.command("suite")(requests.suite)
app.command("coverage", cls=ManyValues)(coverage)
app.command("request", cls=ManyValues)(requests.request)
app.command("requests", cls=ManyValues)(requests.requests)
app.command("take", cls=ManyValues)(requests.take)
app.command("cancel")(requests.cancel)
app.command("serve", cls=ManyValues)(load.serve)
app.command("wheels", cls=ManyValues)(wheels.wheels)


@app.callback()
def bench() -> None:
    """Measure models on this host's hardware."""


@app.command(cls=ManyValues)
def run(
    *,
    models: Annotated[
        str | None,
        typer.Option(
            metavar=SEVERAL, help="Models: keys, aliases, hub ids, or your own: net.py:Net, net.onnx, timm:resnet50."
        ),
    ] = None,
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            metavar="NAME=SHAPE",
            help="What your own model reads, without the batch: x=3x224x224, ids=length:tokens:30522; repeatable.",
        ),
    ] = None,
    set_: Annotated[
        str | None, typer.Option("--set", help="A named set of models.", show_default="small, or custom")
    ] = None,
    models_file: Annotated[
        Path | None, typer.Option("--models-file", help="JSON file with your own models, as the set custom.")
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(help='Real weights: a folder or hub id, or as JSON {"model": "folder or hub id"}.'),
    ] = None,
    hardware: Annotated[
        str | None, typer.Option(metavar=SEVERAL, help="Hardware names.", show_default="all here but emulated ones")
    ] = None,
    browser: Annotated[
        str | None,
        typer.Option(
            help="For wasm, webgpu and webnn: chromium, chrome, edge or firefox.", show_default="chromium-like"
        ),
    ] = None,
    batch_sizes: Annotated[str, typer.Option(metavar=SEVERAL, help="Batch sizes.")] = "1,4",
    sequence_length: Annotated[
        int | None, typer.Option(help="Tokens per text.", show_default="each model's own")
    ] = None,
    mode: Annotated[str, typer.Option(metavar=SEVERAL, help="inference, generation, training.")] = "inference",
    nproc: Annotated[int, typer.Option(help="Data-parallel training processes.")] = 1,
    precision: Annotated[
        str | None,
        typer.Option(
            metavar=SEVERAL,
            help="float32, tf32, float16, bfloat16, int8; int4 for generation.",
            show_default="each runtime's usual one",
        ),
    ] = None,
    effort: Annotated[str, typer.Option(help="How thorough: quick, standard or thorough.")] = "standard",
    warmup: Annotated[
        int | None, typer.Option("--warmup", min=0, help="Runs before the samples, at least.", show_default="by effort")
    ] = None,
    iterations: Annotated[
        int | None, typer.Option("--iterations", min=1, help="Samples, at least.", show_default="by effort")
    ] = None,
    repeat: Annotated[
        int, typer.Option("--repeat", min=1, metavar="N", help="Measure all N times, each a run of its own.")
    ] = 1,
    report_dir: Annotated[
        Path | None, typer.Option("--report-dir", help="Write a JSON report per model and hardware there.")
    ] = None,
    csv: Annotated[Path | None, typer.Option("--csv", help="Write the results as CSV there.")] = None,
    label: Annotated[
        list[str] | None,
        typer.Option("--label", metavar="KEY=VALUE", help="Label to find the run by, such as commit=abc; repeatable."),
    ] = None,
    missing: Annotated[bool, typer.Option("--missing", help="Only cells without a result of this host.")] = False,
    older_than: Annotated[
        str | None, typer.Option(help="With --missing: also cells whose result is older than this, such as 30d or 12h.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue this host's last interrupted run with its own options.")
    ] = False,
    verify_only: Annotated[
        bool, typer.Option("--verify-only", help="Compare outputs with the reference; time nothing.")
    ] = False,
    benchmark_only: Annotated[
        bool, typer.Option("--benchmark-only", help="Compute no reference; the results are unverified.")
    ] = False,
    no_fix: Annotated[bool, typer.Option("--no-fix", help="Do not try fallbacks for cells that fail.")] = False,
    parallel: Annotated[
        bool, typer.Option("--parallel", help="Run devices in parallel, one cell per device at a time.")
    ] = False,
    profile: Annotated[
        bool, typer.Option("--profile", help="Profile each cell by operator afterwards and write Chrome traces.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the plan with its estimated time, and stop.")
    ] = False,
    home: Home = None,
    as_json: Json = False,
    format_: OutputFormat = FormatOption.table,
) -> None:
    """Measure each model on each hardware at each batch size, each in its own process, and record every result."""
    from accel_platform.bench.plan.config import BenchmarkConfig
    from accel_platform.bench.plan.run_options import parse_labels, resolve_work
    from accel_platform.bench.plan.support import resolve_mode
    from accel_platform.benchmark_api import plan_benchmark, resume_benchmark
    from accel_platform.cli.measurement.bench_output import measure_and_print, print_plan
    from accel_platform.errors import InvalidInput
    from accel_platform.strict_json import validate_model

    if repeat > 1 and (missing or resume or report_dir is not None or csv is not None):
        raise InvalidInput("--repeat makes several runs: --missing, --resume, --report-dir and --csv are of one.")
    names = split_words(models) if models is not None else None
    options = {
        "models": _own_model(names, inputs),
        "set": set_,
        "models_file": _path(models_file),
        "weights": _weights(weights, names, models_file),
        "hardware_types": split_words(hardware) if hardware is not None else None,
        "browser": browser,
        "batch_sizes": parse_batch_sizes(batch_sizes),
        "sequence_lengths": [sequence_length] if sequence_length is not None else None,
        "modes": [resolve_mode(word) for word in split_words(mode)],
        "processes": nproc,
        "precisions": split_words(precision) if precision is not None else None,
        "effort": effort,
        "warmup_iterations": warmup,
        "benchmark_iterations": iterations,
        "missing": missing,
        "older_than": older_than,
        "work": resolve_work(verify_only, benchmark_only),
        "fix": not no_fix,
        "parallel": parallel,
        "profile": profile,
        "report_dir": _path(report_dir),
        "csv": _path(csv),
        "labels": parse_labels(label or ()),
    }
    config = validate_model(BenchmarkConfig, options, where="accel bench run")
    planned = (resume_benchmark if resume else plan_benchmark)(config, home=settings_for(home).home)
    for remark in planned.remarks:
        note(remark)
    if dry_run:
        print_plan(planned, wants_json(as_json, format_))
    else:
        measure_and_print(planned, wants_json(as_json, format_), again="`accel bench run --resume`", repeat=repeat)


def _own_model(names: list[str] | None, inputs: list[str] | None) -> list[str] | dict[str, Any] | None:
    """Return the models, with the inputs of the one among them that is the user's own. Raises InvalidInput."""
    from accel_platform.errors import InvalidInput
    from accel_platform.workloads.sources import is_source, usual_id

    if not inputs:
        return names
    sources = [name for name in names or () if is_source(name)]
    if len(sources) != 1:
        raise InvalidInput(
            f"--input belongs to one model of your own, such as net.py:Net, in --models; there are {len(sources)}. "
            "Describe several in a models file."
        )
    if wrong := [text for text in inputs if "=" not in text]:
        raise InvalidInput(f"--input: expected NAME=SHAPE such as x=3x224x224, got {wrong[0]!r}.")
    shapes = dict(text.split("=", 1) for text in inputs)
    own = {usual_id(sources[0]): {"source": sources[0], "inputs": shapes}}
    return {**{name: {"name": name} for name in names or () if name not in sources}, **own}


def _path(path: Path | None) -> str | None:
    return None if path is None else str(path)


@app.command(name="models")
def list_models(
    *,
    set_: Annotated[str | None, typer.Option("--set", help="Only the models of this set.")] = None,
    output: Output = None,
    format_: FileFormat = None,
    as_json: Json = False,
) -> None:
    """List the models known by name, with family, size and sets."""
    from accel_platform.workloads.cost import parameters_of
    from accel_platform.workloads.model_catalog import known_models, model_set, sets_of

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
    write_answer(
        rows, choose_format(as_json, format_, output), output, title="Models known by name", short=_display_model
    )


def _display_model(model: Mapping[str, Any]) -> dict[str, Any]:
    shown = ("model_id", "family", "modality", "architecture", "parameters", "sequence_length")
    return {**{name: model[name] for name in shown}, "sets": ", ".join(model["sets"]) or None}


@app.command(name="setup-web")
def setup_web(*, as_json: Json = False, format_: OutputFormat = FormatOption.table) -> None:
    """Fetch the onnxruntime-web release of the browser backends through npm. Needed once; then it works offline."""
    from accel_platform.backends.browser import package

    fetched = package.install()
    write_answer = {"runtime": package.NAME, "version": package.VERSION, "folder": package.folder(), "fetched": fetched}
    if wants_json(as_json, format_):
        print_json(write_answer)
    else:
        print_table([write_answer])


def _weights(text: str | None, models: list[str] | None, models_file: Path | None) -> dict[str, str]:
    """Return the weight source of each model, from one source or a JSON object (inline or in a file)."""
    import json

    from accel_platform.errors import InvalidInput
    from accel_platform.strict_json import read_object
    from accel_platform.workloads.custom_models import read_models

    if text is None:
        return {}
    path = Path(text)
    if not text.lstrip().startswith("{") and not (path.suffix == ".json" and path.is_file()):
        names = models or [*(read_models(models_file) if models_file is not None else ())]
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


@app.command(cls=ManyValues)
def export(
    path: Annotated[
        Path, typer.Argument(metavar="FILE", callback=output_file, help="The file to write, e.g. campaign.parquet.")
    ],
    runs: Annotated[
        str | None, typer.Option(metavar=SEVERAL, help="Run ids.", show_default="all runs of this installation")
    ] = None,
    form: Annotated[
        ExportForm, typer.Option("--as", help="What to write: events, or one load as a Benchmark Report of llm-d.")
    ] = ExportForm.events,
    result: Annotated[
        str | None, typer.Option("--result", metavar="EVENT", help="The load to write with --as llm-d.")
    ] = None,
    home: Home = None,
    as_json: Json = False,
    format_: OutputFormat = FormatOption.table,
) -> None:
    """Write this installation's measurements with raw samples to a file that another installation can import."""
    from accel_platform.bench.run.campaign import export_campaign
    from accel_platform.errors import InvalidInput
    from accel_platform.events import EventLog

    if form is ExportForm.llm_d:
        load.export_report(settings_for(home), path, result, as_json=wants_json(as_json, format_))
        return
    if result is not None:
        raise InvalidInput("--result goes with --as llm-d; --runs chooses what is written as events.")
    written = export_campaign(EventLog.open(settings_for(home)), path, runs=split_words(runs or ""))
    if wants_json(as_json, format_):
        print_json(vars(written) | {"path": str(path)})
    else:
        note(
            f"{written.results:,} results of {written.runs} runs, {written.events:,} events in all, written to {path}, "
            f"{written.size_bytes:,} bytes"
        )


@app.command(name="import")
def import_(
    paths: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Files written by `accel bench export`.")],
    home: Home = None,
    as_json: Json = False,
    format_: OutputFormat = FormatOption.table,
) -> None:
    """Import measurements of another installation. They keep their host, ids and samples."""
    from accel_platform.events import EventLog

    settings = settings_for(home)
    log = EventLog.open(settings)
    imported = [(path, log.adopt(path)) for path in paths]
    follow_log(settings)
    if wants_json(as_json, format_):
        print_json([{"path": str(path), "events": one.events, "new": one.new} for path, one in imported])
    else:
        for path, one in imported:
            note(f"{path}: {count_of(one.events, 'event')}{'' if one.new else ', which the log holds already'}")
