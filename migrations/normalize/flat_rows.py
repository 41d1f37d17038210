"""One row of a flat table (CSV, Parquet, a database, a list of objects) as one result, by the names its columns have.

Old tables hold 0 where a figure was missing, so no zero is taken for a latency, rate or size; it stays under `stated`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from accel_platform.events.types import Status
from migrations.normalize.canonical_names import hardware_named
from migrations.normalize.field_aliases import completed, names_speed
from migrations.normalize.record_builder import CellDraft, Machine, NamesInFile, reason_unless_ok, status_of
from migrations.normalize.records import Part, refuse
from migrations.normalize.units import MS_PER_S, count, quantity, scaled

MODEL = ("model_name", "model", "model_id", "model_key")
HARDWARE = ("hardware_type", "hardware", "hardware_name", "device_type", "hardware_platform", "hardware_id", "platform",
            "device")  # fmt: skip
LATENCY = ("average_latency_ms", "latency_mean_ms", "avg_latency_ms", "mean_latency_ms", "latency_avg_ms",
           "latency_avg", "inference_time_ms", "latency_ms", "subsequent_inference_time_ms")  # fmt: skip
THROUGHPUT = ("throughput_items_per_second", "throughput_items_per_sec", "throughput_samples_per_sec",
              "throughput_samples_per_second", "throughput")  # fmt: skip
MEMORY = ("memory_peak_mb", "peak_memory_mb", "memory_peak", "memory_usage_mb", "memory_mb")
_OWN_HARDWARE = ("hardware_type", "hardware", "hardware_name", "hardware_platform")
_OWN_FIGURES = {"average_latency_ms", "throughput_items_per_second", "latency_avg", "memory_peak", "is_compatible"}
_OTHERS = {
    "latency_p50_ms": ("latency_p50_ms", "latency_median_ms", "latency_p50"),
    "latency_p90_ms": ("latency_p90_ms", "latency_90p_ms", "latency_p90"),
    "latency_p95_ms": ("latency_p95_ms", "latency_p95"),
    "latency_p99_ms": ("latency_p99_ms", "latency_p99"),
    "latency_min_ms": ("latency_min_ms", "min_latency_ms"),
    "latency_max_ms": ("latency_max_ms", "max_latency_ms"),
    "latency_std_ms": ("latency_std_ms", "std_latency_ms"),
    "load_ms": ("load_time_ms", "initialization_time_ms"),
    "compile_ms": ("shader_compilation_time_ms", "compilation_time_ms"),
    "first_ms": ("first_inference_time_ms", "first_token_latency_ms"),
}
_TIMES = ("timestamp", "created_at", "test_timestamp", "started_at", "date")
_ERRORS = ("error_message", "error", "failure_reason")
_VERSIONS = ("driver_version", "platform_version", "torch_version", "transformers_version")
_READ = {*LATENCY, *THROUGHPUT, *MEMORY, *(key for keys in _OTHERS.values() for key in keys)}
_PER_ITEM = 0.1
"""Where rate x latency is within this of one item, the latency is that of an item and not of the batch."""


def is_result_row(columns: Iterable[str]) -> bool:
    """Return whether column names hold a model, a hardware and a figure of the old framework."""
    named = set(columns)
    if not named & set(MODEL) or not named & set(HARDWARE[:-2]):
        return False
    if named & _OWN_FIGURES:
        return True
    return bool(named & set(_OWN_HARDWARE)) and any(isinstance(name, str) and names_speed(name) for name in named)


def row_part(source_path: str, pointer: str, row: Mapping[str, Any], *, samples_ns: tuple[int, ...] = ()) -> Part:
    """Return the result of a row. A row that names its model or hardware only by a database number is refused."""
    models = [row[key] for key in MODEL if _named(row.get(key))]
    hardware = next((row[key] for key in HARDWARE if _named(row.get(key))), None)
    if not models or hardware is None:
        ids = {key: row[key] for key in ("model_id", "hardware_id") if row.get(key) not in (None, "")}
        if ids:
            why = f"model or hardware are known only by the numbers of another table ({_listed(ids)})"
            return refuse(pointer, "only_database_ids", why, dict(row))
    named = NamesInFile(
        models, hardware, row.get("model_family") or row.get("family"), row.get("precision") or row.get("dtype")
    )
    known = hardware_named(hardware)
    device = row.get("device_name")
    machine = Machine(
        device_names={known: device} if known and isinstance(device, str) and device.strip() else {},
        software={key: str(row[key]) for key in _VERSIONS if row.get(key)},
    )
    used = {*MODEL, *HARDWARE, "model_family", "family", "precision", "dtype", "device_name"}
    others = {key: value for key, value in row.items() if key not in used and value not in (None, "", "{}")}
    cell = CellDraft(
        source_path,
        pointer,
        named,
        times=tuple(row.get(key) for key in _TIMES),
        machine=machine,
        original={"stated": others},
    )
    outcome_word = next(
        (row[key] for key in ("status", "success", "is_compatible") if row.get(key) not in (None, "")), True
    )
    error = next((str(row[key]) for key in _ERRORS if str(row.get(key) or "").strip()), None)
    works = {"1": True, "0": False}.get(str(outcome_word), outcome_word)  # SQLite has no booleans
    status: Status = "failed" if error and works is True else status_of(works)
    size = {
        "batch_size": count(row.get("batch_size"), at_least=1),
        "sequence_length": count(row.get("sequence_length", row.get("seq_length")), at_least=1),
    }
    figures, units = _figures(row, size["batch_size"])
    if samples_ns:
        figures = {k: v for k, v in figures.items() if not k.startswith("latency_")} | {"samples_ns": samples_ns}
    reason = reason_unless_ok(status, error, row.get("compatibility_notes"), outcome_word)
    return cell.result(status, {**size, **(figures if status == "ok" else {})}, reason=reason, units=units)


def _figures(row: Mapping[str, Any], batch_size: int | None) -> tuple[dict[str, Any], dict[str, str]]:
    latency_ms, throughput = _first(row, LATENCY), _first(row, THROUGHPUT)
    units = {key: "ms" for key in LATENCY if key in row} | {key: "items/s" for key in THROUGHPUT if key in row}
    per_item = 1
    if latency_ms and throughput and batch_size and abs(throughput * latency_ms / MS_PER_S - 1) <= _PER_ITEM:
        per_item = batch_size
        units |= {key: "ms per item" for key in LATENCY if key in row and batch_size > 1}
    figures: dict[str, Any] = {
        "latency_mean_ms": None if latency_ms is None else latency_ms * per_item,
        "throughput_items_per_s": throughput,
        "memory_peak_mib": _first(row, MEMORY),
        "iterations": count(row.get("iterations")),
        "warmup_iterations": count(row.get("warmup_iterations")),
        **{
            name: scaled(_first(row, keys), per_item if name.startswith("latency") else 1)
            for name, keys in _OTHERS.items()
        },
    }
    more = {key: value for key, value in row.items() if key not in _READ}
    return completed(figures, more, seconds=False), units


def _first(row: Mapping[str, Any], keys: Iterable[str]) -> float | None:
    for key in keys:
        if (value := row.get(key)) is not None and (found := quantity(value)):
            return found
    return None


def _named(value: Any) -> bool:
    """Return whether a value is a name: not empty, and no database number."""
    return isinstance(value, str) and bool(value.strip()) and not value.strip().isdigit()


def _listed(ids: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in ids.items())
