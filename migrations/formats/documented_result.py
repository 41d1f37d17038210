"""The documented `{model}_{device}_{precision}_{timestamp}.json`: `batch_results.b{B}_s{S}` cells in milliseconds.

A cell's `latency_ms` is the list of its samples. The loading figures are of the whole process: every cell carries the
load time. The peak memory belongs to the largest cell and is given to no other. Reports that this platform writes say
more of each cell (its own peak, first run, compilation, mode), and `b{B}` where inputs have one size.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, get_args

from accel_platform.events.types import Mode
from migrations.normalize.canonical_names import hardware_named
from migrations.normalize.field_aliases import completed, stated_ms
from migrations.normalize.record_builder import CellDraft, Machine, NamesInFile, reason_unless_ok, status_of
from migrations.normalize.records import Record, RefusedCell, child, refuse
from migrations.normalize.row_access import object_of, pick
from migrations.normalize.units import NS_PER_MS, count, quantity, samples_ns
from migrations.sources.documents import Document

_MODEL = ("model_id", "model", "model_name")
_DEVICE = ("device", "hardware", "hardware_type")
_KEY = re.compile(r"b(?P<batch>\d+)(_s(?P<seq>\d+))?")
_UNITS = {
    "latency_ms": "ms",
    "throughput_samples_per_sec": "items/s",
    "load_time_seconds": "s",
    "peak_memory_mb": "MiB, written MB",
}
_STATISTICS = {
    "latency_mean_ms": "latency_mean_ms",
    "latency_median_ms": "latency_p50_ms",
    "latency_90p_ms": "latency_p90_ms",
    "latency_min_ms": "latency_min_ms",
    "latency_max_ms": "latency_max_ms",
    "latency_std_ms": "latency_std_ms",
}
"""Names of statistics in the file, and the platform's names for them."""
_OWN_QUANTITIES = ("prefill_ms", "time_per_output_token_ms", "forward_ms", "backward_ms", "optimizer_ms",
                   "scaling_efficiency", "energy_j_per_item")  # fmt: skip
_OWN_COUNTS = ("output_tokens", "processes")
_OWN_TEXTS = ("energy_source", "remedy")
"""Quantities, counts and texts of a cell that only this platform's reports state."""


def detect(document: Document) -> float:
    """Return high confidence where `batch_results` has `b{B}_s{S}` keys, beside a model id and a device."""
    value = document.value
    if not isinstance(value, dict) or not (value.keys() & set(_MODEL) and value.keys() & set(_DEVICE)):
        return 0.0
    cells = value.get("batch_results")
    if isinstance(cells, dict) and any(_KEY.fullmatch(key) for key in cells):
        return 0.95
    return 0.7 if not cells and {"precision", "load_results"} <= value.keys() else 0.0


def parse(document: Document) -> Iterator[Record | RefusedCell]:
    """Yield one record per cell; a file without cells is one failure of the model as a whole."""
    value = document.value
    load = object_of(value.get("load_results"))
    runtime = object_of(value.get("device_info")).get("runtime")
    whole = CellDraft(
        document.source_path,
        "",
        NamesInFile(
            [value[key] for key in _MODEL if value.get(key)],
            pick(value, *_DEVICE),
            value.get("architecture_type"),
            value.get("precision"),
            runtime,
        ),
        times=(value.get("timestamp"),),
        machine=_machine(value),
        original={"task": value.get("task")},
    )
    cells = value.get("batch_results")
    load_ms = {**_own(value), "load_ms": stated_ms(load.get("load_time_seconds"), "s")}
    if not cells:
        yield whole.result("failed", load_ms, reason=reason_unless_ok("failed", value, "no batch_results"))
        return
    own = {key: quantity(content.get("peak_memory_mb")) for key, content in cells.items() if isinstance(content, dict)}
    if not any(own.values()):
        own = {max(cells, key=_items): quantity(load.get("peak_memory_mb"))}
    for key, content in cells.items():
        peak = {"memory_peak_mib": own[key]} if key in own else {}
        yield _cell(replace(whole, pointer=child("/batch_results", key)), key, content, {**load_ms, **peak})


def _cell(whole: CellDraft, key: str, content: Any, loading: dict[str, Any]) -> Record | RefusedCell:
    shape = _KEY.fullmatch(key)
    if shape is None or not isinstance(content, dict):
        return refuse(whole.pointer, "unexpected_shape", f"no cell is read from key {key!r}", content)
    size = {"batch_size": count(shape["batch"], at_least=1), "sequence_length": count(shape["seq"], at_least=1)}
    cell = replace(whole, original={**whole.original, "cell": key})
    if content.get("error") or content.get("success") is False:
        status = status_of(content.get("status"))
        status = "failed" if status == "ok" else status
        reason = reason_unless_ok(status, content, content.get("success"))
        failure = {"failure_class": _text(content.get("failure_class"))}
        return cell.result(status, {**size, **failure, **loading}, reason=reason)
    stated = {name: quantity(content.get(name)) for name in _STATISTICS if name in content}
    samples = samples_ns(content.get("latency_ms"), ns_per_unit=NS_PER_MS)
    if samples:
        cell = replace(cell, original={**cell.original, "stated": stated})
        latencies: dict[str, Any] = {"samples_ns": samples}
    else:
        latencies = {_STATISTICS[name]: value for name, value in stated.items()}
        # Some files hold one number where the list should be: the only latency they know.
        latencies.setdefault("latency_mean_ms", quantity(content.get("latency_ms")))
    first_ms = content.get("first_run_ms")
    rates = {
        "throughput_items_per_s": quantity(content.get("throughput_samples_per_sec")),
        "first_ms": quantity(first_ms if first_ms is not None else content.get("first_token_latency_ms")),
        "compile_ms": quantity(content.get("compile_ms")),
        "memory_device_peak_mib": quantity(content.get("peak_device_memory_mb")),
        "warmup_iterations": count(content.get("warmup_iterations")),
        "iterations": len(samples) or None,
        **{name: quantity(content.get(name)) for name in _OWN_QUANTITIES},
        **{name: count(content.get(name), at_least=1) for name in _OWN_COUNTS},
        **{name: _text(content.get(name)) for name in _OWN_TEXTS},
    }
    if loading["mode"] == "generation":
        rates["time_to_first_token_ms"] = quantity(content.get("first_token_latency_ms"))
    figures = completed({**loading, **latencies, **rates}, content, seconds=False)
    return cell.result("ok", {**size, **figures}, units=_UNITS)


def _own(value: dict[str, Any]) -> dict[str, Any]:
    """Return the facts that only this platform's reports state for all their cells."""
    mode, weights = value.get("mode"), object_of(value.get("weights"))
    return {
        "mode": mode if mode in get_args(Mode) else "inference",
        "weights_source": _text(weights.get("source")),
        "weights_sha256": _text(weights.get("sha256")),
    }


def _items(key: str) -> int:
    shape = _KEY.fullmatch(key)
    return int(shape["batch"]) * int(shape["seq"] or 1) if shape else 0


def _machine(value: dict[str, Any]) -> Machine:
    info = object_of(value.get("device_info"))
    name = next((info[key] for key in ("name", "device_name", "cpu_model") if isinstance(info.get(key), str)), None)
    hardware = hardware_named(pick(value, *_DEVICE))
    return Machine(
        device_names={hardware: name} if hardware and name else {},
        software={key: str(text) for key, text in info.items() if key.endswith("_version") and text},
        threads=count(info.get("threads"), at_least=1),
    )


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
