"""The 22-column CSV of framework comparisons, one row per cell. Unknown values are empty fields.

`migrations.formats.measurement_csv` reads it back. `memory_mb` holds MiB, as the format defines it.
"""

from __future__ import annotations

import csv
import shutil
import subprocess
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from accel_platform.events.types import ResultRecorded
from accel_platform.reports.run_record import BenchmarkRun, RecordedResult, result_statistics
from accel_platform.table_io.values import count_of, guard_row

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
    """Write the run's results in recording order, replacing the file."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for measured in run.results:
            writer.writerow(guard_row(to_row(run, measured)))


def to_row(run: BenchmarkRun, measured: RecordedResult) -> dict[str, Any]:
    """Return one result under the format's column names."""
    result = measured.result
    figures = result_statistics(result)
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
        "git_commit": platform_commit(),
        "notes": "; ".join(_notes(result)),
    }


def _shape(run: BenchmarkRun, result: ResultRecorded) -> str | None:
    """Return `4x128` for text; otherwise the first input's name with its shape. None if unknown."""
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
    notes = [count_of(result.threads, "thread")] if result.threads else []
    notes += [result.mode] if result.mode != "inference" else []
    notes += [f"weights {result.weights_source}"] if result.weights_source else []
    # Importers recognize simulated results by this word.
    notes += ["simulated hardware"] if result.provenance == "emulated" else []
    notes += [f"noisy: {result.noisy_reason}"] if result.noisy else []
    return notes + ([f"{result.status}: {result.reason}"] if result.status != "ok" else [])


@lru_cache(maxsize=1)
def platform_commit() -> str | None:
    """Return the platform's git commit in a clone; None if installed as a package."""
    here, git = Path(__file__).resolve().parents[2], shutil.which("git")
    if git is None or not (here / ".git").exists():
        return None
    answer = subprocess.run([git, "-C", str(here), "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return answer.stdout.strip() if answer.returncode == 0 else None
