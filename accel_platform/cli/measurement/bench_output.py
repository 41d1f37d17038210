"""Printed plan, summary and operator tables of `accel bench`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from accel_platform.cli.output import follow_log, has_tables, note, print_json, print_table
from accel_platform.durations import format_duration
from accel_platform.table_io.values import count_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from accel_platform.backends.detect import Inventory
    from accel_platform.bench.plan.plan import Cell
    from accel_platform.bench.plan.run_options import RunOptions
    from accel_platform.bench.plan.time_estimate import TimeEstimate
    from accel_platform.bench.run.recorder import RunSummary
    from accel_platform.benchmark_api import PlannedRun
    from accel_platform.events.types import ResultRecorded, VerificationRecorded

TO_MEASURE = "to measure"
"""State of a cell in a plan; followed by a colon where something is to be known."""
MEASURED_ALREADY = "measured already"
_CELL = ("model_id", "hardware", "mode", "precision", "batch_size", "sequence_length")
TOP = 10
"""Operators shown per cell; the trace has all of them."""


def measure_and_print(
    planned: PlannedRun, as_json: bool, *, again: str, always_report: bool = False, repeat: int = 1
) -> None:
    """Execute a plan and print its summary, or a list of them as JSON where the plan is repeated.

    `again` is the command that continues a stopped run. Raises AccelError if cells were planned and none could be
    measured.
    """
    from accel_platform.benchmark_api import execute
    from accel_platform.errors import AccelError
    from accel_platform.signals import sigterm_as_interrupt

    summaries = []
    for number in range(1, repeat + 1):
        if repeat > 1:
            note(f"run {number} of {repeat}")
        try:
            with sigterm_as_interrupt():
                summaries.append(execute(planned, on_progress=note, always_report=always_report))
        except KeyboardInterrupt:
            note(f"Stopped. Results so far are kept; {again} continues.")
            raise
        if planned.wanted and not as_json:
            print_summary(summaries[-1], planned.options)
    if planned.wanted:
        # A host that only measures has no checks, and lacks what they need.
        if repeat > 1 and not as_json and has_tables():
            _print_noise([result for summary in summaries for result in summary.results])
        follow_log(planned.settings)
    if as_json:
        documents = [summary_document(summary, planned.options) for summary in summaries]
        print_json(documents if repeat > 1 else documents[0])
    elif not planned.wanted:
        note(
            f"Measured already: all {count_of(len(planned.cells), 'cell')}."
            if planned.cells
            else "Nothing is to be measured."
        )
    if planned.wanted and not any(summary.ok for summary in summaries):
        raise AccelError("Nothing could be measured; the reasons are above.")


def _print_noise(results: Sequence[ResultRecorded]) -> None:
    """Print for each cell measured often enough which changes a check will tell from noise."""
    from statistics import harmonic_mean

    from accel_platform.analysis.regressions.check import MIN_CONFIRMING_RUNS
    from accel_platform.analysis.regressions.decision import MIN_EARLIER_PROCESSES
    from accel_platform.analysis.stats.medians import MIN_MEDIAN_SAMPLES, median_ns
    from accel_platform.analysis.stats.significance import estimate_noise_level
    from accel_platform.bench.plan.plan import result_key

    cells: dict[Any, list[ResultRecorded]] = {}
    for result in results:
        if result.status == "ok" and len(result.samples_ns) >= MIN_MEDIAN_SAMPLES:
            cells.setdefault(result_key(result), []).append(result)
    rows = []
    for found in cells.values():
        if len(found) < MIN_EARLIER_PROCESSES:
            continue
        of_each_side = harmonic_mean((len(found), MIN_CONFIRMING_RUNS))
        noise = estimate_noise_level([median_ns(result.samples_ns) for result in found], processes=of_each_side)
        rows.append(
            {
                **{name: getattr(found[0], name) for name in _CELL},
                "processes": len(found),
                "disturbed": sum(map(_is_disturbed, found)),
                "tells_percent": 100 * noise,
            }
        )
    if rows:
        print_table(rows)
        note(
            f"tells_percent: change that `accel regress check` tells from noise, of {MIN_CONFIRMING_RUNS} processes "
            "against these; disturbed: those that waited for other processes, measure again where most did"
        )


def print_plan(planned: PlannedRun, as_json: bool) -> None:
    """Print each cell with its state and estimated time, and the total time."""
    rows, time = plan_rows(planned)
    if as_json:
        print_json(rows)
        return
    print_table(rows)
    if time:
        note(time)


def plan_rows(planned: PlannedRun) -> tuple[list[dict[str, Any]], str | None]:
    """Return a row per cell, and a sentence on the total time (None if nothing is timed)."""
    from accel_platform.bench.plan.plan import host_fingerprints, valid_results
    from accel_platform.bench.plan.support import unsupported_reason
    from accel_platform.bench.plan.time_estimate import estimate_times
    from accel_platform.events import EventLog

    wanted, inventory, options = planned.wanted, planned.inventory, planned.options
    devices = {cell.hardware: inventory.device(cell.hardware) for cell in wanted}
    present = {name for name, device in devices.items() if device is not None and device.available}
    here = [cell for cell in wanted if cell.hardware in present and unsupported_reason(cell) is None]
    times = {}
    # Verification has no time estimate, because it takes three passes and no samples.
    if options.work != "verify":
        earlier = valid_results(EventLog.open(planned.settings))
        times = estimate_times(here, earlier, host_fingerprints(inventory), planned.effort.sampling)
    rows: list[dict[str, Any]] = []
    for cell in planned.cells:
        time = times.get(cell)
        rows.append(
            {
                "model_id": cell.model.model_id,
                "hardware": cell.hardware,
                "batch_size": cell.batch_size,
                "sequence_length": cell.sequence_length,
                "precision": cell.precision,
                "mode": cell.mode,
                "processes": cell.processes,
                "state": _cell_state(cell, inventory, is_wanted=cell in wanted),
                "estimate_s": round(time.seconds, 1) if time else None,
                "estimate_from": time.basis if time else None,
            }
        )
    return rows, _total_time(times, inventory, parallel=options.parallel) if times else None


def _cell_state(cell: Cell, inventory: Inventory, *, is_wanted: bool) -> str:
    """Return whether a cell is to be measured, and if not the reason."""
    from accel_platform.bench.plan.support import memory_shortage, unsupported_reason

    device = inventory.device(cell.hardware)
    if device is None or not device.available:
        return f"unavailable: {device.reason if device else 'not known'}"
    if (unsupported := unsupported_reason(cell)) is not None:
        return f"cannot: {unsupported.reason}"
    if (shortage := memory_shortage(cell, device.memory_mib)) is not None:
        return f"will not fit: {shortage}"
    if not is_wanted:
        return MEASURED_ALREADY
    return f"{TO_MEASURE}: emulated here, so it is used in no answer" if device.emulated else TO_MEASURE


def _total_time(times: Mapping[Cell, TimeEstimate], inventory: Inventory, *, parallel: bool) -> str:
    """Return a sentence on the time of all cells; devices work side by side if `parallel`."""
    from accel_platform.bench.plan.device_scheduling import physical_device_id

    lanes: dict[str | None, float] = {}
    for cell, time in times.items():
        lane = physical_device_id(cell.hardware, inventory) if parallel else None
        lanes[lane] = lanes.get(lane, 0.0) + time.seconds
    known = sum(time.basis == "earlier result" for time in times.values())
    return (
        f"About {format_duration(max(lanes.values()))} for {count_of(len(times), 'cell')}: {known} by earlier results,"
        f" {len(times) - known} at most, by the effort's limits. Preparing models and fallbacks come on top."
    )


def print_problems(planned: PlannedRun) -> None:
    """Print what will not run, with its reason, and how long the rest takes."""
    rows, time = plan_rows(planned)
    problems: dict[str, list[str]] = {}
    for row in rows:
        if row["state"] not in (TO_MEASURE, MEASURED_ALREADY):
            problems.setdefault(row["state"], []).append(f"{row['model_id']} on {row['hardware']}")
    for state, cells in problems.items():
        names = list(dict.fromkeys(cells))
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        note(f"{', '.join(names[:3])}{more}: {state}")
    if time:
        note(time)


_MAX_REASONS = 5
"""Failed cells whose reasons are printed."""
_FIGURES: dict[str, tuple[str, ...]] = {
    "inference": (),
    "generation": ("prefill_ms", "time_to_first_token_ms", "time_per_output_token_ms", "throughput_tokens_per_s"),
    "training": ("forward_ms", "backward_ms", "optimizer_ms", "processes", "scaling_efficiency"),
}
"""Columns of a mode's results beside those of all modes."""


def summary_document(summary: RunSummary, options: RunOptions) -> dict[str, Any]:
    """Return a run's results (verifications for a verify-only run) as they are printed as JSON."""
    answer = {name: getattr(summary, name) for name in ("run_id", "ok", "failed", "skipped", "duration_s")}
    answer |= {"operators": summary.operators} if options.operators else {}
    return {
        **answer,
        "unavailable": summary.unavailable,
        "files": summary.files,
        "results": _rows_of(summary, options),
    }


def _rows_of(summary: RunSummary, options: RunOptions) -> list[dict[str, Any]]:
    return [result_row(entry) for entry in (summary.verifications if options.work == "verify" else summary.results)]


def print_summary(summary: RunSummary, options: RunOptions) -> None:
    """Print the results (verifications for a verify-only run), and the operators if profiled."""
    for name, reason in summary.unavailable.items():
        note(f"{name}: unavailable, {reason}")
    rows = _rows_of(summary, options)
    is_verification = options.work == "verify"
    if not is_verification:
        _add_deviations(rows, summary.verifications)
    shown = _verification_columns(rows) if is_verification else _result_columns(rows)
    print_table([{column: entry[column] for column in shown} for entry in rows])
    if "relative_error" in shown:
        note("relative_error: of the outputs against float32 on the processor, root mean squares")
    if not is_verification:
        _note_failures(rows)
        _note_disturbed(summary.results)
    print_operators(summary.operators)
    for file in summary.files:
        note(f"written: {file}")


def _verification_columns(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    length = ["sequence_length"] if _varies_in_length(rows) else []
    return [
        *("model_id", "hardware", "batch_size", *length),
        *("precision", "passed", "relative_error", "tolerance", "reason"),
    ]


def _result_columns(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the columns to show of results; one with the same value in all rows tells nothing."""
    figures = [name for mode in dict.fromkeys(entry["mode"] for entry in rows) for name in _FIGURES[mode]]
    several_precisions = len({entry["precision"] for entry in rows}) > 1
    return [
        *(["mode"] if figures else []),
        *("model_id", "hardware"),
        *(["precision"] if several_precisions else []),
        "batch_size",
        *(["sequence_length"] if _varies_in_length(rows) else []),
        *("latency_p50_ms", "throughput_items_per_s", "memory_peak_mib", *figures),
        *(["relative_error"] if several_precisions else []),
        *("samples", "noisy", "status"),
        # Shown only if a fallback was applied, because most runs need none.
        *(["remedy"] if any(entry["remedy"] for entry in rows) else []),
    ]


def _add_deviations(rows: Sequence[dict[str, Any]], verifications: Sequence[VerificationRecorded]) -> None:
    """Give each row the relative error of its outputs; None where they were not verified."""
    errors = {
        (one.model_id, one.hardware, one.backend, one.precision, one.mode): one.relative_error for one in verifications
    }
    for row in rows:
        key = (row["model_id"], row["hardware"], row["backend"], row["precision"], row["mode"])
        row["relative_error"] = errors.get(key)


def _note_failures(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print why cells failed, and why some that ran have no median."""
    from accel_platform.analysis.stats.medians import MIN_MEDIAN_SAMPLES

    failed = [row for row in rows if row["status"] != "ok"]
    for row in failed[:_MAX_REASONS]:
        note(f"{row['model_id']} on {row['hardware']}, batch {row['batch_size']}: {row['status']}, {row['reason']}")
    if len(failed) > _MAX_REASONS:
        note(f"{len(failed) - _MAX_REASONS} more did not run: the table results has their reasons")
    if any(row["status"] == "ok" and row["latency_p50_ms"] is None and row["samples"] for row in rows):
        note(f"latency_p50_ms: a median needs {MIN_MEDIAN_SAMPLES} samples")


def _note_disturbed(results: Sequence[ResultRecorded]) -> None:
    """Print how many figures other processes disturbed, and what becomes of these."""
    disturbed = sum(map(_is_disturbed, results))
    if disturbed:
        note(
            f"disturbed by other processes, so outside ratings: {disturbed} of {count_of(len(results), 'figure')}; "
            "measure again"
        )


def _is_disturbed(result: ResultRecorded) -> bool:
    from accel_platform.bench.measure.contention import Contention, disturbance_by_others

    measured = result.status == "ok" and result.environment
    seen: dict[str, Any] = (result.environment.get("contention") if measured else None) or {}
    return bool(seen) and disturbance_by_others(Contention(**seen)) is not None


def _varies_in_length(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Return True if rows of one model differ in their sequence length."""
    lengths: dict[str, set[int | None]] = {}
    for entry in rows:
        lengths.setdefault(entry["model_id"], set()).add(entry["sequence_length"])
    return any(len(found) > 1 for found in lengths.values())


def print_operators(operators: Mapping[str, Mapping[str, Any]]) -> None:
    """Print the longest operators of each profiled cell, and the path of its trace."""
    for label, profile in operators.items():
        typer.echo()
        if "reason" in profile:
            typer.echo(f"{label}: unavailable, {profile['reason']}")
            continue
        typer.echo(f"{label}, {profile['runs']} runs; open in chrome://tracing or ui.perfetto.dev: {profile['trace']}")
        total = sum(entry["total_ms"] for entry in profile["operators"])
        rows = [
            {**entry, "share": entry["total_ms"] / total if total else None} for entry in profile["operators"][:TOP]
        ]
        print_table(rows)


def result_row(entry: ResultRecorded | VerificationRecorded) -> dict[str, Any]:
    """Return a result or verification as a flat row, with the figures that the table `results` has."""
    from accel_platform.events.types import VerificationRecorded
    from accel_platform.reports.run_record import result_statistics

    if isinstance(entry, VerificationRecorded):
        return entry.model_dump(mode="json")
    figures = result_statistics(entry)
    tokens = entry.output_tokens * 1e3 / figures.mean_ms if entry.output_tokens and figures.mean_ms else None
    plain = (
        "model_id hardware backend device_id mode precision batch_size sequence_length status reason failure_class"
        " remedy noisy noisy_reason memory_peak_mib load_ms compile_ms first_ms output_tokens prefill_ms"
        " time_to_first_token_ms time_per_output_token_ms forward_ms backward_ms optimizer_ms processes"
        " scaling_efficiency"
    )
    return {
        **{name: getattr(entry, name) for name in plain.split()},
        "samples": len(entry.samples_ns) or None,
        "latency_p50_ms": figures.p50_ms,
        "throughput_items_per_s": figures.items_per_s,
        "throughput_tokens_per_s": entry.batch_size * tokens if entry.batch_size and tokens else None,
    }
