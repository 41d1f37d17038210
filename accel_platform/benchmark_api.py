"""Python API of benchmarks: plan a configuration, measure it, and write its reports.

`from accel_platform import BenchmarkConfig, run_benchmark, run_suite`
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from accel_platform.analysis.stats.medians import MIN_MEDIAN_SAMPLES
from accel_platform.backends.detect import Inventory, detect
from accel_platform.backends.registry import RUNTIMES, runtime_for
from accel_platform.bench.plan.config import BenchmarkConfig, is_web, resolve_config
from accel_platform.bench.plan.config_resolution import resolve_effort, resolve_hardware, resolve_models
from accel_platform.bench.plan.plan import (
    Cell,
    CellKey,
    cell_key,
    done_cells,
    host_fingerprints,
    missing_cells,
    plan_cells,
)
from accel_platform.bench.plan.resume import cells_from_plan, effort_from_plan, find_interrupted_run
from accel_platform.bench.plan.run_options import Effort, RunOptions, add_commit_label, stale_cutoff
from accel_platform.bench.plan.support import unsupported_reason
from accel_platform.bench.run.recorder import Progress, RunContext, RunSummary
from accel_platform.bench.run.runner import measure_cells
from accel_platform.errors import InvalidInput
from accel_platform.events import EventLog
from accel_platform.hardware.host import host_id
from accel_platform.precisions import resolve_precision
from accel_platform.settings import Settings
from accel_platform.table_io.values import count_of
from accel_platform.workloads.model_catalog import ModelSpec, sequence_length_for

__all__ = ["BenchmarkConfig", "RunSummary", "plan_benchmark", "run_benchmark", "run_suite"]

Config = BenchmarkConfig | Mapping[str, Any] | Path | str
"""A configuration, its keys as a mapping, or the path of a suite file."""


@dataclass(frozen=True)
class PlannedRun:
    """A configuration resolved on this host."""

    config: BenchmarkConfig
    settings: Settings
    inventory: Inventory
    effort: Effort
    options: RunOptions
    cells: tuple[Cell, ...]
    """All planned cells."""
    wanted: tuple[Cell, ...]
    """The cells to measure: with `missing`, only those that the log lacks."""
    headings: Mapping[str, str]
    """Model id to its heading in `model_families`."""
    remarks: tuple[str, ...]
    """Notes on unexpected effects of the configuration."""
    labels: Mapping[str, str]
    """The user's labels of the run, with its commit where that is known."""
    resumes: str | None = None
    """The interrupted run that it continues."""


def run_benchmark(config: Config, *, home: Path | str | None = None, on_progress: Progress | None = None) -> RunSummary:
    """Measure, record every result in the log, and write what the configuration requests.

    `home` is the state directory (default: ACCEL_HOME, or ./.accel). The summary has one ResultRecorded per cell, and
    the files written. A cell that fails is a result with its reason; hardware that is not here is in `unavailable`.
    Raises InvalidInput or NotFound before anything is measured; Ctrl-C keeps what was measured.
    """
    return execute(plan_benchmark(config, home=home), on_progress=on_progress)


def run_suite(config: Config, *, home: Path | str | None = None, on_progress: Progress | None = None) -> RunSummary:
    """Run a benchmark and always write a folder of reports.

    The folder is `report_dir`, else `reports/<run id>` in the state directory. Otherwise as `run_benchmark`.
    """
    return execute(plan_benchmark(config, home=home), on_progress=on_progress, always_report=True)


def plan_benchmark(config: Config, *, home: Path | str | None = None) -> PlannedRun:
    """Return what would be measured, and measure nothing. Weights of hub ids are fetched. Raises InvalidInput or
    NotFound."""
    config = resolve_config(config)
    settings = Settings() if home is None else Settings(home=Path(home))
    # Validate before detecting hardware, because detection takes seconds.
    effort = resolve_effort(config)
    since = stale_cutoff(config.older_than, missing=config.missing)
    options = RunOptions(
        config.work,
        fix=config.fix,
        parallel=config.parallel,
        pooled=config.use_resource_pool,
        operators=config.profile,
    )
    hardware = resolve_hardware(config)
    log = EventLog.open(settings)
    models, headings = resolve_models(config, log)
    left_out = _unsupported_lengths(models, config.sequence_lengths or (None,))
    inventory = detect(hardware)
    planned = plan_cells(
        models,
        hardware if config.hardware_types is not None else _available_hardware(config, hardware, inventory),
        config.batch_sizes,
        config.sequence_lengths or (None,),
        [resolve_precision(name) for name in config.precisions or ()] or (None,),
        config.modes,
        config.processes,
    )
    if config.hardware_types is None:
        # Hardware that nobody named and that lacks the mode or the precision is no failure.
        planned = tuple(cell for cell in planned if unsupported_reason(cell) is None)
    cells = tuple(cell for cell in planned if (cell.model, cell.sequence_length) not in left_out)
    wanted = (
        missing_cells(cells, done_cells(log, since=since), host_fingerprints(inventory)) if config.missing else cells
    )
    return PlannedRun(
        config,
        settings,
        inventory,
        effort,
        options,
        cells,
        wanted,
        headings,
        (*left_out.values(), *_remarks(config, effort)),
        add_commit_label(config.labels),
    )


def resume_benchmark(config: Config, *, home: Path | str | None = None) -> PlannedRun:
    """Return the remaining cells of this host's last interrupted run, with its options.

    Only the report settings of the configuration apply. Raises NotFound where no run was interrupted.
    """
    config = resolve_config(config)
    settings = Settings() if home is None else Settings(home=Path(home))
    interrupted = find_interrupted_run(EventLog.open(settings), settings, host_id())
    begun = f"Going on with run {interrupted.run_id} of {interrupted.started_at:%Y-%m-%d %H:%M} UTC"
    return PlannedRun(
        config,
        settings,
        detect(cell.hardware for cell in interrupted.cells),
        interrupted.effort,
        interrupted.options,
        interrupted.cells,
        interrupted.cells,
        {},
        (f"{begun}: {count_of(len(interrupted.cells), 'cell')} left.",),
        {**interrupted.labels, **add_commit_label(config.labels)},
        interrupted.run_id,
    )


def execute(
    planned: PlannedRun,
    *,
    on_progress: Progress | None = None,
    always_report: bool = False,
    log: EventLog | None = None,
) -> RunSummary:
    """Measure a plan, then write its files and refresh the tables, as its configuration says.

    `log` takes the events; None is the installation's.
    """
    from accel_platform.reports.run_export import create_folders, write_reports

    config, settings = planned.config, planned.settings
    create_folders(config.report_dir, config.csv)
    log = log or EventLog.open(settings)
    context = RunContext(
        settings,
        log,
        planned.inventory,
        planned.effort,
        planned.options,
        report=on_progress or (lambda _: None),
        labels=planned.labels,
        resumes=planned.resumes,
        requested_config=config.model_dump(mode="json", exclude_defaults=True),
    )
    summary = measure_cells(planned.wanted, context)
    if summary.run_id is None:
        return summary
    folder = config.report_dir
    if folder is None and (always_report or config.generate_plots):
        folder = settings.home / "reports" / summary.run_id
    summary.files += write_reports(
        log,
        summary.run_id,
        folder=folder,
        csv=config.csv,
        charts=config.generate_plots,
        headings=planned.headings,
    )
    if config.update_compatibility_matrix:
        from accel_platform.warehouse.publish import refresh

        refresh(settings, progress=on_progress)
    return summary


def remeasure_cells(
    plans: Sequence[Mapping[str, Any]],
    wanted: Collection[CellKey],
    times: int,
    settings: Settings,
    *,
    labels: Mapping[str, str],
    on_progress: Progress,
) -> list[str]:
    """Measure the `wanted` cells of recorded plans in `times` new runs; return the run ids.

    At least one plan is needed, and the last plan gives the options. A key holds a fingerprint, so only cells of this
    host's own fingerprints are measured: there may be none. Each run gives every cell a new process. On
    KeyboardInterrupt what was measured is kept.
    """
    cells = [cell for plan in plans for cell in cells_from_plan(plan)]
    inventory = detect({cell.hardware for cell in cells})
    here = host_fingerprints(inventory)
    keys = {cell_key(cell, here.get(cell.hardware, "")): cell for cell in cells}
    chosen = [cell for key, cell in keys.items() if key in wanted]
    effort, options = effort_from_plan(plans[-1]), replace(RunOptions(**plans[-1]["how"]), work="all", operators=False)
    context = RunContext(settings, EventLog.open(settings), inventory, effort, options, on_progress, labels=labels)
    runs = []
    for _ in range(times if chosen else 0):
        summary = measure_cells(chosen, context)
        runs += [summary.run_id] if summary.run_id else []
    return runs


def _available_hardware(config: BenchmarkConfig, hardware: Sequence[str], inventory: Inventory) -> list[str]:
    """Return the available hardware of the default names, further devices of a runtime among them."""
    found = [*hardware, *(name for name in inventory.names if name not in RUNTIMES and name not in hardware)]
    # Software stand-ins are measured only on request, because they are slow and represent no hardware.
    devices = {name: inventory.device(name) for name in found}
    return [
        name
        for name, device in devices.items()
        if (device is not None and device.available and not device.emulated)
        or (config.include_web_platforms and is_web(name))
    ]


def _unsupported_lengths(
    models: Sequence[ModelSpec], lengths: Sequence[int | None]
) -> dict[tuple[ModelSpec, int | None], str]:
    """Return the lengths that a model cannot take, with a remark. Raises InvalidInput where no length is left."""
    from accel_platform.workloads.inputs import describe_inputs

    pairs = dict.fromkeys((model, sequence_length_for(model, length)) for model in models for length in lengths)
    refused = {}
    for model, length in pairs:
        try:
            describe_inputs(model, batch_size=1, sequence_length=length)
        except InvalidInput as error:
            refused[model, length] = f"length {length} is left out: {error}"
    if len(refused) == len(pairs):
        raise InvalidInput(f"Nothing is left to measure: {'; '.join(refused.values())}")
    return refused


def _remarks(config: BenchmarkConfig, effort: Effort) -> list[str]:
    remarks = []
    if config.benchmark_iterations is not None and config.benchmark_iterations < MIN_MEDIAN_SAMPLES:
        remarks.append(f"benchmark_iterations: {MIN_MEDIAN_SAMPLES} samples at least, which a median needs")
    if config.timeout is not None:
        remarks.append(f"timeout: a cell samples for at most {effort.sampling.limit_s:g} s, half of it")
    for name in config.hardware_types or ():
        plain, meant = name.casefold().partition(":")[0], runtime_for(name).hardware
        if plain != meant:
            remarks.append(f"hardware_types: {name} means {meant}")
    if config.schedule is not None:
        remarks.append(f"schedule: Dagster asks for the suite at {config.schedule!r} where ACCEL_SUITE names its file")
    return remarks
