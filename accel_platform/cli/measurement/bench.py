"""`accel bench`: planning and running benchmarks, the model list, campaign files, and wheels for other hosts."""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from accel_platform.cli.measurement import load, requests
from accel_platform.cli.measurement.coverage import coverage
from accel_platform.cli.measurement.plan_options import (
    CellOptions,
    Labels,
    MissingHere,
    OwnModelOptions,
    SampleOptions,
    WorkOptions,
)
from accel_platform.cli.options import (
    SEVERAL,
    CommandApp,
    CommonOptions,
    FileFormat,
    Json,
    ManyValues,
    Output,
    OutputFormat,
    TableOptions,
    output_file,
    split_words,
    wants_json,
)
from accel_platform.cli.output import follow_log, note, print_json, print_table, settings_for, write_answer
from accel_platform.table_io.values import count_of

ExportForm = Literal["events", "llm-d"]
"""Format of the file that `bench export` writes."""


app = CommandApp(no_args_is_help=True, help="Measure models on this host's hardware.")
app.command("suite")(requests.suite)
app.command("coverage", cls=ManyValues)(coverage)
app.command("request", cls=ManyValues)(requests.request)
app.command("requests", cls=ManyValues)(requests.requests)
app.command("take", cls=ManyValues)(requests.take)
app.command("cancel")(requests.cancel)
app.command("serve", cls=ManyValues)(load.serve)


@app.callback()
def bench() -> None:
    """Measure models on this host's hardware."""


@app.command(cls=ManyValues)
def run(
    *,
    models: OwnModelOptions,
    hardware: Annotated[
        str | None, typer.Option(metavar=SEVERAL, help="Hardware names.", show_default="all here but emulated ones")
    ] = None,
    browser: Annotated[
        str | None,
        typer.Option(
            help="For wasm, webgpu and webnn: chromium, chrome, edge or firefox.", show_default="chromium-like"
        ),
    ] = None,
    cells: CellOptions,
    nproc: Annotated[int, typer.Option(help="Data-parallel training processes.")] = 1,
    precision: Annotated[
        str | None,
        typer.Option(
            metavar=SEVERAL,
            help="float32, tf32, float16, bfloat16, int8; int4 for generation.",
            show_default="each runtime's usual one",
        ),
    ] = None,
    samples: SampleOptions,
    repeat: Annotated[int, typer.Option(min=1, metavar="N", help="Measure all N times, each a run of its own.")] = 1,
    report_dir: Annotated[Path | None, typer.Option(help="Write a JSON report per model and hardware there.")] = None,
    csv: Annotated[Path | None, typer.Option(help="Write the results as CSV there.")] = None,
    label: Labels = None,
    missing: MissingHere = False,
    older_than: Annotated[
        str | None, typer.Option(help="With --missing: also cells whose result is older than this, such as 30d or 12h.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue this host's last interrupted run with its own options.")
    ] = False,
    work: WorkOptions,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the plan with its estimated time, and stop.")
    ] = False,
    common: CommonOptions,
) -> None:
    """Measure each model on each hardware at each batch size, each in its own process, and record every result."""
    from accel_platform.bench.plan.config import BenchmarkConfig
    from accel_platform.bench.plan.run_options import parse_labels
    from accel_platform.benchmark_api import plan_benchmark, resume_benchmark
    from accel_platform.cli.measurement.bench_output import measure_and_print, print_plan
    from accel_platform.errors import InvalidInput
    from accel_platform.strict_json import validate_model

    if repeat > 1 and (missing or resume or report_dir is not None or csv is not None):
        raise InvalidInput("--repeat makes several runs: --missing, --resume, --report-dir and --csv are of one.")
    options = {
        **models.config(),
        "hardware_types": split_words(hardware) if hardware is not None else None,
        "browser": browser,
        **cells.config(),
        "processes": nproc,
        "precisions": split_words(precision) if precision is not None else None,
        **samples.config(),
        "missing": missing,
        "older_than": older_than,
        **work.config(),
        "report_dir": _path(report_dir),
        "csv": _path(csv),
        "labels": parse_labels(label or ()),
    }
    config = validate_model(BenchmarkConfig, options, where="accel bench run")
    planned = (resume_benchmark if resume else plan_benchmark)(config, home=settings_for(common.home).home)
    for remark in planned.remarks:
        note(remark)
    if dry_run:
        print_plan(planned, common.wants_json)
    else:
        measure_and_print(planned, common.wants_json, again="`accel bench run --resume`", repeat=repeat)


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
        rows, TableOptions(output, format_, as_json=as_json), title="Models known by name", short=_display_model
    )


def _display_model(model: Mapping[str, Any]) -> dict[str, Any]:
    shown = ("model_id", "family", "modality", "architecture", "parameters", "sequence_length")
    return {**{name: model[name] for name in shown}, "sets": ", ".join(model["sets"]) or None}


@app.command(name="setup-web")
def setup_web(*, as_json: Json = False, format_: OutputFormat = "table") -> None:
    """Fetch the onnxruntime-web release of the browser backends through npm. Needed once; then it works offline."""
    from accel_platform.backends.browser import package

    fetched = package.install()
    row = {"runtime": package.NAME, "version": package.VERSION, "folder": package.folder(), "fetched": fetched}
    if wants_json(as_json, format_):
        print_json(row)
    else:
        print_table([row])


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
    ] = "events",
    result: Annotated[str | None, typer.Option(metavar="EVENT", help="The load to write with --as llm-d.")] = None,
    *,
    common: CommonOptions,
) -> None:
    """Write this installation's measurements with raw samples to a file that another installation can import."""
    from accel_platform.bench.run.campaign import export_campaign
    from accel_platform.errors import InvalidInput
    from accel_platform.events import EventLog

    if form == "llm-d":
        load.export_report(settings_for(common.home), path, result, as_json=common.wants_json)
        return
    if result is not None:
        raise InvalidInput("--result goes with --as llm-d; --runs chooses what is written as events.")
    written = export_campaign(EventLog.open(settings_for(common.home)), path, runs=split_words(runs or ""))
    if common.wants_json:
        print_json(vars(written) | {"path": str(path)})
    else:
        note(
            f"{written.results:,} results of {written.runs} runs, {written.events:,} events in all, written to {path}, "
            f"{written.size_bytes:,} bytes"
        )


@app.command(name="import")
def import_(
    paths: Annotated[list[Path], typer.Argument(metavar="FILE", help="Files written by `accel bench export`.")],
    *,
    common: CommonOptions,
) -> None:
    """Import measurements of another installation. They keep their host, ids and samples."""
    from accel_platform.events import EventLog

    settings = settings_for(common.home)
    log = EventLog.open(settings)
    imported = [(path, log.adopt(path)) for path in paths]
    follow_log(settings)
    if common.wants_json:
        print_json([{"path": str(path), "events": one.events, "new": one.new} for path, one in imported])
    else:
        for path, one in imported:
            note(f"{path}: {count_of(one.events, 'event')}{'' if one.new else ', which the log holds already'}")


@app.command(cls=ManyValues)
def wheels(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder for the wheels.")],
    *,
    installed: Annotated[
        Path | None,
        typer.Option(
            help="What the host has: the output there of `pip list --format=freeze`.", show_default="only torch"
        ),
    ] = None,
    hardware: Annotated[
        str, typer.Option(metavar=SEVERAL, help="Hardware names to measure there: their runtimes travel.")
    ] = "cpu",
    python: Annotated[
        str, typer.Option(metavar="X.Y", help="The host's Python.", show_default="this one's")
    ] = f"{sys.version_info[0]}.{sys.version_info[1]}",
    platform_: Annotated[
        str,
        typer.Option("--platform", help="The host's platform, such as linux_x86_64.", show_default="this one's"),
    ] = f"{platform.system().lower()}_{platform.machine()}",
    wheel: Annotated[
        Path | None, typer.Option(help="The platform's own wheel.", show_default="built from the clone")
    ] = None,
    as_json: Json = False,
    format_: OutputFormat = "table",
) -> None:
    """Collect the wheels with which a host without a network can measure and export. It must have torch."""
    from accel_platform.carried_wheels import TargetHost, collect_wheels, read_installed
    from accel_platform.errors import InvalidInput

    if platform_.partition("_")[0] not in ("linux", "macosx", "win"):
        raise InvalidInput(f"--platform {platform_!r} is no tag of wheels: write linux_x86_64, win_amd64, …")
    target = TargetHost(python, platform_, read_installed(installed) if installed is not None else {})
    found = collect_wheels(folder, split_words(hardware), target, wheel=wheel)
    rows = [{"wheel": path.name, "bytes": path.stat().st_size} for path in found]
    if wants_json(as_json, format_):
        print_json(rows)
        return
    print_table(rows)
    total = sum(path.stat().st_size for path in found)
    note(f"{count_of(len(found), 'wheel')}, {total / 1e6:.1f} MB. On the host:")
    note(f"python -m pip install --no-index --no-deps {folder}/*.whl")
