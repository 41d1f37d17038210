"""The 22-column CSV of framework comparisons: one row per cell, an empty field where something is not known.

Its reader is `measurement_csv` of `migrations`. `memory_mb` holds MiB, as that format has it.
"""

from __future__ import annotations

import csv
import shutil
import subprocess
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from accel_platform.events.types import ResultRecorded
from accel_platform.reports.figures import figures_of
from accel_platform.reports.run_record import BenchmarkRun, RecordedResult
from accel_platform.table_io.values import guarded_row

COLUMNS = (
    "timestamp",
    "framework",
    "model",
    "device",
    "device_type",
    "batch_size",
    "input_shape",
    "dtype",
    "warmup_iterations",
    "measurement_iterations",
    "latency_p50_ms",
    "latency_p95_ms",
    "latency_p99_ms",
    "latency_mean_ms",
    "latency_std_ms",
    "latency_min_ms",
    "latency_max_ms",
    "throughput_ips",
    "memory_mb",
    "compilation_time_ms",
    "git_commit",
    "notes",
)


def write(run: BenchmarkRun, path: Path) -> None:
    """Replace the file by the run's results, in the order of their recording."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for measured in run.results:
            writer.writerow(guarded_row(row_of(run, measured)))


def row_of(run: BenchmarkRun, measured: RecordedResult) -> dict[str, Any]:
    """One result under the format's column names."""
    result = measured.result
    figures = figures_of(result)
    return {
        "timestamp": measured.at.isoformat(),
        "framework": result.backend,
        "model": result.model_id,
        "device": result.device_name,
        "device_type": result.hardware,
        "batch_size": result.batch_size,
        "input_shape": _shape(run, result),
        "dtype": result.precision,
        "warmup_iterations": result.warmup_iterations,
        "measurement_iterations": result.iterations,
        "latency_p50_ms": figures.p50_ms,
        "latency_p95_ms": figures.p95_ms,
        "latency_p99_ms": figures.p99_ms,
        "latency_mean_ms": figures.mean_ms,
        "latency_std_ms": figures.std_ms,
        "latency_min_ms": figures.min_ms,
        "latency_max_ms": figures.max_ms,
        "throughput_ips": figures.items_per_s,
        "memory_mb": result.memory_peak_mib,
        "compilation_time_ms": result.compile_ms,
        "git_commit": commit(),
        "notes": "; ".join(_notes(result)),
    }


def _shape(run: BenchmarkRun, result: ResultRecorded) -> str | None:
    """`4x128` for a text; else what goes in with its name, for a sound of two dimensions is no text."""
    if result.sequence_length is not None:
        return f"{result.batch_size}x{result.sequence_length}"
    described = run.models.get(result.model_id)
    if described is None or result.batch_size is None:
        return None
    from accel_platform.workloads.inputs import describe_inputs
    from accel_platform.workloads.model_catalog import Modality, ModelSpec

    spec = ModelSpec(
        described.model_id,
        described.architecture,
        described.family,
        cast("Modality", described.modality),
        config=described.config,
    )
    first = describe_inputs(spec, batch_size=result.batch_size)[0]
    return f"{first.name} {'x'.join(map(str, first.shape))}"


def _notes(result: ResultRecorded) -> list[str]:
    notes = [f"{result.threads} threads"] if result.threads else []
    notes += [result.mode] if result.mode != "inference" else []
    notes += [f"weights {result.weights_source}"] if result.weights_source else []
    # A reader of files knows by this word that they say nothing of real hardware.
    notes += ["simulated hardware"] if result.provenance == "emulated" else []
    notes += [f"noisy: {result.noisy_reason}"] if result.noisy else []
    return notes + ([f"{result.status}: {result.reason}"] if result.status != "ok" else [])


@lru_cache(maxsize=1)
def commit() -> str | None:
    """The commit of the platform where it runs from a clone; None for an installed one."""
    here, git = Path(__file__).resolve().parents[2], shutil.which("git")
    if git is None or not (here / ".git").exists():
        return None
    answer = subprocess.run([git, "-C", str(here), "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return answer.stdout.strip() if answer.returncode == 0 else None
