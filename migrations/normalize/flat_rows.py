"""One row of a flat table (CSV, Parquet, a database, a list of objects) as one result, by the names its columns have.

Old tables hold 0 where a figure was missing, so no zero is taken for a latency, rate or size; it stays under `stated`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from accel_platform.events.types import Status
from migrations.normalize.canonical_names import hardware_named, is_hardware
from migrations.normalize.field_aliases import completed, names_figure, names_speed
from migrations.normalize.record_builder import (
    NOWHERE,
    CellDraft,
    Machine,
    NamesInFile,
    reason_unless_ok,
    status_of,
)
from migrations.normalize.records import Part, refuse
from migrations.normalize.units import MS_PER_S, count, number, quantity, scaled

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
_OWN_WORDS = _OWN_FIGURES | {"model_family", "hardware_type", "hardware_platform", "hardware_id"}
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
_OUTCOMES = ("status", "success", "is_compatible")
_VERSIONS = ("driver_version", "platform_version", "torch_version", "transformers_version")
_FIGURES = {
    "latency_mean_ms": LATENCY,
    "throughput_items_per_s": THROUGHPUT,
    "memory_peak_mib": MEMORY,
    "iterations": (),  # whole numbers, read as such
    "warmup_iterations": (),
    **_OTHERS,
}
_NO_FIGURES = dict.fromkeys(_FIGURES)
_READ = {key for keys in _FIGURES.values() for key in keys}
_NOT_STATED = {*MODEL, *HARDWARE, "model_family", "family", "precision", "dtype", "device_name"}
_EMPTY = (None, "", "{}")
_PER_ITEM = 0.1
"""Share by which rate x latency may differ from one item for the latency to be an item's, not the batch's."""


@dataclass(frozen=True)
class _Layout:
    """Columns of a row by their role, those it has alone. Worked out once for all rows with these columns."""

    models: tuple[str, ...]
    hardware: tuple[str, ...]
    times: tuple[str, ...]
    outcomes: tuple[str, ...]
    errors: tuple[str, ...]
    versions: tuple[str, ...]
    stated: tuple[str, ...]
    latency: tuple[str, ...]
    figures: tuple[tuple[str, tuple[str, ...]], ...]
    """Fields of ResultRecorded for which there are columns, with these."""
    aliases: tuple[str, ...]
    """Other columns that name a figure."""
    units: dict[str, str]
    per_item_units: dict[str, str]


@lru_cache(maxsize=256)
def _layout(columns: tuple[str, ...]) -> _Layout:
    present = frozenset(columns)

    def those(keys: Iterable[str]) -> tuple[str, ...]:
        return tuple(key for key in keys if key in present)

    latency, throughput = those(LATENCY), those(THROUGHPUT)
    units = dict.fromkeys(latency, "ms") | dict.fromkeys(throughput, "items/s")
    return _Layout(
        models=those(MODEL),
        hardware=those(HARDWARE),
        times=those(_TIMES),
        outcomes=those(_OUTCOMES),
        errors=those(_ERRORS),
        versions=those(_VERSIONS),
        stated=tuple(key for key in columns if key not in _NOT_STATED or key in those(HARDWARE)[1:]),
        latency=latency,
        figures=tuple((name, found) for name, keys in _FIGURES.items() if (found := those(keys))),
        aliases=tuple(key for key in columns if key not in _READ and names_figure(key)),
        units=units,
        per_item_units=units | dict.fromkeys(latency, "ms per item"),
    )


def is_of_the_old_framework(columns: Iterable[str]) -> bool:
    """Return whether a table's columns have one of the old framework's words, so that its runtime is known."""
    return not _OWN_WORDS.isdisjoint(columns)


def is_result_row(columns: Iterable[str]) -> bool:
    """Return whether column names hold a model, a hardware and a figure of the old framework."""
    return _are_of_results(tuple(columns))


@lru_cache(maxsize=256)
def _are_of_results(columns: tuple[str, ...]) -> bool:
    named = set(columns)
    if not named & set(MODEL) or not named & set(HARDWARE[:-2]):
        return False
    if named & _OWN_FIGURES:
        return True
    return bool(named & set(_OWN_HARDWARE)) and any(isinstance(name, str) and names_speed(name) for name in named)


def row_part(source_path: str, pointer: str, row: Mapping[str, Any], *, samples_ns: tuple[int, ...] = ()) -> Part:
    """Return the result of a row. A row that names its model or hardware only by a database number is refused."""
    layout = _layout(tuple(row))
    models = [row[key] for key in layout.models if _named(row[key])]
    hardware = next((row[key] for key in layout.hardware if _named(row[key])), None)
    if not models or hardware is None:
        ids = {key: row[key] for key in ("model_id", "hardware_id") if row.get(key) not in (None, "")}
        if ids:
            why = f"model or hardware are known only by the numbers of another table ({_ids_text(ids)})"
            return refuse(pointer, "only_database_ids", why, dict(row))
    named = NamesInFile(
        models, hardware, row.get("model_family") or row.get("family"), row.get("precision") or row.get("dtype")
    )
    cell = CellDraft(
        source_path,
        pointer,
        named,
        times=[row[key] for key in layout.times],
        machine=_machine(row, hardware, layout),
        original={"stated": {key: value for key in layout.stated if (value := row[key]) not in _EMPTY}},
    )
    outcome_word = next((row[key] for key in layout.outcomes if row[key] not in (None, "")), True)
    error = next((text for key in layout.errors if (text := str(row[key] or "")).strip()), None)
    works = {"1": True, "0": False}.get(str(outcome_word), outcome_word)  # SQLite has no booleans
    status: Status = "failed" if error and works is True else status_of(works)
    size = {
        "batch_size": count(row.get("batch_size"), at_least=1),
        "sequence_length": count(row.get("sequence_length", row.get("seq_length")), at_least=1),
    }
    figures, units = _figures(row, size["batch_size"], layout)
    if samples_ns:
        figures = {k: v for k, v in figures.items() if not k.startswith("latency_")} | {"samples_ns": samples_ns}
    reason = reason_unless_ok(status, error, row.get("compatibility_notes"), outcome_word)
    return cell.result(status, {**size, **(figures if status == "ok" else {})}, reason=reason, units=units)


def _machine(row: Mapping[str, Any], hardware: str | None, layout: _Layout) -> Machine:
    known = hardware_named(hardware)
    devices = (text for key in ("device_name", "device") if isinstance(text := row.get(key), str) and text.strip())
    device = next(devices, None)
    # `device` may be the word for the hardware itself.
    names = {known: device} if known and device and not is_hardware(device.strip().casefold()) else {}
    software = {key: str(row[key]) for key in layout.versions if row[key]}
    return Machine(device_names=names, software=software) if names or software else NOWHERE


def _figures(
    row: Mapping[str, Any], batch_size: int | None, layout: _Layout
) -> tuple[dict[str, Any], Mapping[str, str]]:
    figures: dict[str, Any] = _NO_FIGURES.copy()
    for name, keys in layout.figures:
        figures[name] = _first(row, keys)
    latency_ms, throughput, units = figures["latency_mean_ms"], figures["throughput_items_per_s"], layout.units
    if latency_ms and throughput and batch_size and abs(throughput * latency_ms / MS_PER_S - 1) <= _PER_ITEM:
        if batch_size > 1:
            units = layout.per_item_units
        figures |= {name: scaled(value, batch_size) for name, value in figures.items() if name.startswith("latency")}
    figures["iterations"] = count(row.get("iterations"))
    figures["warmup_iterations"] = count(row.get("warmup_iterations"))
    others = [*layout.aliases, *(key for _, keys in layout.figures for key in keys if _is_more_than_number(row[key]))]
    if others:
        figures = completed(figures, {key: row[key] for key in others}, seconds=False)
    return figures, units


def _first(row: Mapping[str, Any], keys: Iterable[str]) -> float | None:
    for key in keys:
        if found := quantity(row[key]):
            return found
    return None


def _is_more_than_number(value: Any) -> bool:
    """Return whether a cell may hold a figure all the same: `12.5 ms`, samples, statistics."""
    return isinstance(value, str | list | dict) and bool(value) and number(value) is None


def _named(value: Any) -> bool:
    """Return whether a value is a name: not empty, and no database number."""
    return isinstance(value, str) and bool(value.strip()) and not value.strip().isdigit()


def _ids_text(ids: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in ids.items())
