"""Documented JSON report `{model}_{device}_{precision}_{timestamp}.json` with cells `b{B}_s{S}`, in milliseconds.

`migrations.formats.documented_result` reads it back without loss. Memory is in MiB under names that end in `_mb`, as
the format defines it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from accel_platform.events.types import ResultRecorded
from accel_platform.reports.run_record import BenchmarkRun, RecordedResult, result_statistics

_TASKS = {"inference": "feature-extraction", "generation": "text-generation", "training": "training"}
_PLATFORM_FIELDS = (
    "output_tokens",
    "prefill_ms",
    "time_per_output_token_ms",
    "forward_ms",
    "backward_ms",
    "optimizer_ms",
    "processes",
    "scaling_efficiency",
    "energy_j_per_item",
    "energy_source",
    "remedy",
)
"""Figures without a name in the format; they keep the platform's names."""


def write(run: BenchmarkRun, folder: Path) -> list[Path]:
    """Write a file per model, hardware, precision, mode and weights of the run. Return the paths."""
    groups: dict[tuple[str | None, ...], list[RecordedResult]] = {}
    for measured in run.results:
        r = measured.result
        key = (r.model_id, r.hardware, r.precision, r.mode, r.weights_sha256)
        groups.setdefault(key, []).append(measured)
    files = []
    for (model, hardware, precision, mode, weights), members in groups.items():
        parts = [str(model).replace("/", "_"), str(hardware), str(precision)]
        parts += [str(mode)] if mode != "inference" else []
        parts += [f"weights-{weights[:8]}"] if weights else []
        name = "_".join([*(re.sub(r"[^\w.-]", "_", part) for part in parts), f"{run.at:%Y%m%d_%H%M%S}"])
        path = folder / f"{name}.json"
        document = json.dumps(build_document(run, members), indent=2, ensure_ascii=False, allow_nan=False)
        path.write_text(document + "\n", encoding="utf-8")
        files.append(path)
    return files


def build_document(run: BenchmarkRun, members: list[RecordedResult]) -> dict[str, Any]:
    """Return the report of results that differ only in shape."""
    results = [measured.result for measured in members]
    first = results[0]
    ok = [result for result in results if result.status == "ok"]
    described = run.models.get(first.model_id)
    load_ms = next((result.load_ms for result in ok if result.load_ms is not None), None)
    return {
        "model_id": first.model_id,
        "device": first.hardware,
        "precision": first.precision,
        "architecture_type": first.model_family,
        "task": _TASKS[first.mode],
        "mode": first.mode,
        "emulated": first.provenance == "emulated",
        "weights": {"source": first.weights_source, "sha256": first.weights_sha256} if first.weights_sha256 else None,
        "device_info": _device_info(run, first, ok),
        "model_info": described.model_dump(mode="json", include={"architecture", "parameters", "modality", "size"})
        if described
        else None,
        "run_id": run.run_id,
        "timestamp": members[0].at.isoformat(),
        "load_results": {
            "load_time_seconds": load_ms / 1e3 if load_ms is not None else None,
            "memory_usage_mb": None,  # what the model holds beside what loading it took is not measured
            "peak_memory_mb": max((r.memory_peak_mib for r in ok if r.memory_peak_mib is not None), default=None),
        },
        "batch_results": {key(result): _cell(result) for result in results},
        "summary": _summary(ok, len(results) - len(ok)),
    }


def key(result: ResultRecorded) -> str:
    """Return the key of a cell: `b4_s128`, or `b4` for inputs of fixed size."""
    length = f"_s{result.sequence_length}" if result.sequence_length is not None else ""
    return f"b{result.batch_size}{length}"


def _cell(result: ResultRecorded) -> dict[str, Any]:
    if result.status != "ok":
        return {
            "success": False,
            "status": result.status,
            "error": result.reason,
            "failure_class": result.failure_class,
        }
    figures = result_statistics(result)
    cell = {
        "success": True,
        "latency_ms": [sample / 1e6 for sample in result.samples_ns],
        "latency_mean_ms": figures.mean_ms,
        "latency_median_ms": figures.p50_ms,
        "latency_min_ms": figures.min_ms,
        "latency_max_ms": figures.max_ms,
        "latency_std_ms": figures.std_ms,
        "latency_90p_ms": figures.p90_ms,
        "latency_95p_ms": figures.p95_ms,
        "latency_99p_ms": figures.p99_ms,
        "throughput_samples_per_sec": figures.items_per_s,
        "first_token_latency_ms": result.time_to_first_token_ms,
        "first_run_ms": result.first_ms,
        "compile_ms": result.compile_ms,
        "peak_memory_mb": result.memory_peak_mib,
        "peak_device_memory_mb": result.memory_device_peak_mib,
        "warmup_iterations": result.warmup_iterations,
        **{name: getattr(result, name) for name in _PLATFORM_FIELDS},
        "noisy": result.noisy,
        "noisy_reason": result.noisy_reason,
    }
    always = ("latency_ms", "first_token_latency_ms")
    return {name: value for name, value in cell.items() if value is not None or name in always}


def _device_info(run: BenchmarkRun, first: ResultRecorded, ok: Iterable[ResultRecorded]) -> dict[str, Any]:
    device = run.devices.get(first.hardware)
    # The loaded libraries' own word where something ran, else what is installed.
    loaded = next((result.environment["runtimes"] for result in ok if "runtimes" in result.environment), None)
    versions = loaded or (device.runtime_versions if device else {})
    return {
        "name": first.device_name,
        "device_id": first.device_id,
        "driver": device.driver if device else None,
        "threads": first.threads,
        "host": run.host.hostname,
        "os": run.host.os,
        "cpu_model": run.host.cpu_model,
        "runtime": first.backend,
        **{f"{name}_version": version for name, version in versions.items()},
    }


def _summary(ok: list[ResultRecorded], failed: int) -> dict[str, Any]:
    """Return counts, and the extremes with their cells; means over different shapes would be meaningless."""
    rates = [(result_statistics(r).items_per_s, key(r)) for r in ok]
    medians = [(result_statistics(r).p50_ms, key(r)) for r in ok]
    fastest = max(((rate, name) for rate, name in rates if rate is not None), default=None)
    quickest = min(((median, name) for median, name in medians if median is not None), default=None)
    return {
        "cells_ok": len(ok),
        "cells_failed": failed,
        "throughput_max_samples_per_sec": fastest and fastest[0],
        "throughput_max_cell": fastest and fastest[1],
        "latency_median_min_ms": quickest and quickest[0],
        "latency_median_min_cell": quickest and quickest[1],
    }
