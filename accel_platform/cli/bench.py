"""`accel bench`: plan cells, measure them, print what came of it. The measuring is done in `bench/`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from accel_platform.cli import campaign
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
    from accel_platform.bench.plan import Cell
    from accel_platform.events.types import ResultRecorded
    from accel_platform.hardware import Inventory
    from accel_platform.workloads.families import ModelSpec

app = typer.Typer(no_args_is_help=True, help="Measure models on this host's hardware.")


app.command("export")(campaign.export)
app.command("import")(campaign.import_)


@app.callback()
def bench() -> None:
    """Measure models on this host's hardware."""


@app.command()
def run(
    *,
    models: Annotated[str | None, typer.Option(help="Models, comma-separated: keys, aliases or hub ids.")] = None,
    set_: Annotated[str, typer.Option("--set", help="A named set of models, where --models is not given.")] = "small",
    hardware: Annotated[
        str | None, typer.Option(help="Hardware names, comma-separated.", show_default="all here but emulated ones")
    ] = None,
    batch_sizes: Annotated[str, typer.Option(help="Batch sizes, comma-separated.")] = "1,4",
    sequence_length: Annotated[
        int | None, typer.Option(help="Tokens per text.", show_default="each model's own")
    ] = None,
    precision: Annotated[
        str | None,
        typer.Option(
            help="float32, float16, bfloat16, int8; comma-separated.", show_default="each runtime's usual one"
        ),
    ] = None,
    profile: Annotated[str, typer.Option(help="How thorough: quick, standard or thorough.")] = "standard",
    missing: Annotated[bool, typer.Option("--missing", help="Only what the log lacks for this host.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and stop.")] = False,
    home: Home = None,
    as_json: Json = False,
    format_: OutputFormat = Format.table,
) -> None:
    """Measure each model on each hardware at each batch size, in processes of their own, and record every result."""
    from accel_platform.bench.plan import done_cells, fingerprints, plan, refusal
    from accel_platform.bench.plan import missing as lacking
    from accel_platform.bench.profiles import profile_named
    from accel_platform.bench.runner import run_benchmark
    from accel_platform.errors import AccelError
    from accel_platform.events import EventLog
    from accel_platform.hardware import detect
    from accel_platform.precisions import precision_named

    settings, chosen, for_machines = settings_for(home), profile_named(profile), wants_json(as_json, format_)
    specs = _models(models, set_)
    inventory = detect()
    # A software stand-in is slow and answers for no hardware: it is measured only where it is asked for.
    here = [d.hardware for d in inventory.devices if d.available and not d.emulated]
    names = words(hardware) if hardware is not None else here
    precisions = [precision_named(word) for word in words(precision)] if precision is not None else [None]
    cells = plan(specs, names, numbers(batch_sizes), [sequence_length], precisions)
    if hardware is None:
        # Of what nobody named, a runtime that has not the precision is no failure.
        cells = tuple(cell for cell in cells if refusal(cell) is None)
    log = EventLog.open(settings)
    wanted = lacking(cells, done_cells(log), fingerprints(inventory)) if missing else cells
    if dry_run:
        _print_plan(cells, wanted, inventory, for_machines)
        return
    try:
        summary = run_benchmark(wanted, settings, log, profile=chosen, on_progress=note, inventory=inventory)
    except KeyboardInterrupt:
        note("Stopped. What was measured is kept; the same command with --missing goes on from there.")
        raise
    for name, reason in summary.unavailable.items():
        note(f"{name}: unavailable, {reason}")
    rows = [_row(result) for result in summary.results]
    if for_machines:
        answer = {name: getattr(summary, name) for name in ("run_id", "ok", "failed", "skipped", "duration_s")}
        print_json({**answer, "unavailable": summary.unavailable, "results": rows})
    elif wanted:
        columns = ("model_id", "hardware", "batch_size", "latency_p50_ms", "throughput_items_per_s", "memory_peak_mib")
        asked = ("precision",) if precision is not None else ()
        print_table([{c: row[c] for c in (*asked, *columns, "samples", "noisy", "status")} for row in rows])
    else:
        note(f"All {len(cells)} cells are measured already.")
    if wanted and not summary.ok:
        raise AccelError("Nothing could be measured; the reasons are above.")


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


def _models(models: str | None, set_: str) -> list[ModelSpec]:
    from accel_platform.workloads.families import model_set, resolve_model

    return [resolve_model(name) for name in words(models)] if models is not None else list(model_set(set_))


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


def _print_plan(cells: tuple[Cell, ...], wanted: tuple[Cell, ...], inventory: Inventory, as_json: bool) -> None:
    from accel_platform.bench.plan import refusal

    rows = []
    for cell in cells:
        device = inventory.device(cell.hardware)
        state = "to measure" if cell in wanted else "measured already"
        if device is None or not device.available:
            state = f"unavailable: {device.reason if device else 'not known'}"
        elif (refused := refusal(cell)) is not None:
            state = f"unavailable: {refused}"
        rows.append(
            {
                "model_id": cell.model.model_id,
                "hardware": cell.hardware,
                "batch_size": cell.batch_size,
                "sequence_length": cell.sequence_length,
                "precision": cell.precision,
                "state": state,
            }
        )
    if as_json:
        print_json(rows)
    else:
        print_table(rows)


def _row(result: ResultRecorded) -> dict[str, Any]:
    from accel_platform.bench.sampling import MEDIAN_COUNT, median_ns

    known = len(result.samples_ns) >= MEDIAN_COUNT
    median_ms = median_ns(result.samples_ns) / 1e6 if known else None
    plain = (
        "model_id hardware backend device_id precision batch_size sequence_length status reason failure_class"
        " noisy noisy_reason memory_peak_mib load_ms compile_ms first_ms"
    )
    return {
        **{name: getattr(result, name) for name in plain.split()},
        "samples": len(result.samples_ns) or None,
        "latency_p50_ms": median_ms,
        "throughput_items_per_s": result.batch_size * 1000 / median_ms if median_ms and result.batch_size else None,
    }
