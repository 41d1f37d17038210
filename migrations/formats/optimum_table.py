"""optimum-benchmark's CSV: results of one run, or reports merged from many with 50 and more configuration columns.

Units stand in the headers: `forward.latency(s)`, `Forward Latency (s)`, `report.forward.latency.mean` (seconds); memory
is in decimal MB. Some tables have an index column; a table without model or hardware takes them from its path.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from migrations.normalize.canonical_names import hardware_named
from migrations.normalize.records import Record, RefusedCell, child
from migrations.normalize.row_access import rows_of
from migrations.normalize.units import MIB_PER_MB, MS_PER_S, count, quantity, scaled
from migrations.sources.documents import Document
from migrations.tools.optimum import cell_of, columns_of, config_beside, size_of

_PHASES = (
    "forward|prefill|decode|generate|call|training|overall_training|train|overall|warmup|per_token|load_model|load"
)
_OLD = re.compile(rf"(?P<phase>{_PHASES})\.(?P<what>[\w ]+)\((?P<unit>[^)]*)\)")
_PRETTY = re.compile(
    r"(?P<phase>Forward|Prefill|Decode|Generate|Call|Training|Train) (?P<what>[\w ]+) \((?P<unit>[^)]*)\)"
)
_NEW = re.compile(
    rf"(?:report\.)?(?P<phase>(?:train\.)?(?:{_PHASES}))\.(?P<what>latency|throughput|memory)\.(?P<key>[\w.]+)"
)
_MODES = {
    "forward": "inference",
    "prefill": "inference",
    "call": "inference",
    "generate": "generation",
    "decode": "generation",
}
_TRAINING = ("training", "train", "overall_training", "overall", "warmup")
_MEMORY = {
    "peak_memory": "memory_device_peak_mib", "max_memory_used": "memory_device_peak_mib",
    "max_memory_reserved": "memory_device_peak_mib", "max_memory_allocated": "memory_device_peak_mib",
    "memory.max_process_vram": "memory_device_peak_mib", "memory.max_global_vram": "memory_device_peak_mib",
    "memory.max_allocated": "memory_device_peak_mib", "memory.max_ram": "memory_peak_mib",
}  # fmt: skip
_STATISTICS = {
    "latency.mean": "latency_mean_ms", "latency.p50": "latency_p50_ms", "latency.p90": "latency_p90_ms",
    "latency.p95": "latency_p95_ms", "latency.p99": "latency_p99_ms", "latency.stdev": "latency_std_ms",
}  # fmt: skip

_READ = {"throughput.value", "memory.unit", "latency.unit", "throughput.unit", *_STATISTICS}

Phases = dict[str, dict[str, tuple[Any, str, str]]]
"""Per phase and figure: the value, its unit and its column."""


def detect(document: Document) -> float:
    """Return high confidence where a column is a phase's latency, rate or running time with its unit."""
    if document.kind != "csv":
        return 0.0
    found = [figure for column in document.columns if (figure := _figure(column)) is not None]
    return 0.95 if any(what.startswith(("latency", "throughput", "runtime")) for _, what, _ in found) else 0.0


def parse(document: Document) -> Iterator[Record | RefusedCell]:
    """Yield one record per row and phase; a row without any figure is a failure."""
    beside = config_beside(document)
    columns = {column: figure for column in document.columns if (figure := _figure(column)) is not None}
    for pointer, row in rows_of(document):
        config = {**beside, **columns_of({key: value for key, value in row.items() if key not in columns})}
        phases: Phases = defaultdict(dict)
        for column, (phase, what, unit) in columns.items():
            phases[phase][what] = (row[column], unit, column)
        load = phases.pop("load_model", None) or phases.pop("load", {})
        load_ms = scaled(load["latency.mean"][0], MS_PER_S) if "latency.mean" in load else None
        each = phases.pop("per_token", {})
        known = {phase: figures for phase, figures in phases.items() if _any_known(figures)}
        if "generate" in known and "prefill" not in known:
            # Old tables split a generation no further: its decoding is a part of it.
            known["generate"] |= {f"decode_{what}": cell for what, cell in known.pop("decode", {}).items()}
        if "decode" in known and "generate" not in known:
            # Its memory is that of the whole generation.
            known["decode"] |= {what: cell for what, cell in phases.get("generate", {}).items() if "memory" in what}
        for phase, figures in known.items():
            column = next(iter(figures.values()))[2]
            yield _record(document, child(pointer, column), config, phase, figures, {"load_ms": load_ms}, known, each)
        if not known:
            size = {key: value for key, value in _size(config, document).items() if key != "new_tokens"}
            yield cell_of(document, pointer, config, "none").result("failed", size, reason="the row holds no figure")


def _record(
    document: Document,
    pointer: str,
    config: Mapping[str, Any],
    phase: str,
    figures: dict[str, tuple[Any, str, str]],
    load: dict[str, Any],
    others: Phases,
    each: dict[str, tuple[Any, str, str]],
) -> Record | RefusedCell:
    last = phase.rpartition(".")[2]
    mode = "training" if last in _TRAINING else _MODES[last]
    size = _size(config, document)
    tokens = size.pop("new_tokens")
    found: dict[str, Any] = {
        field_name: _ms(figures, name) for name, field_name in _STATISTICS.items() if name in figures
    }
    rate, unit, _ = figures.get("throughput.value", (None, "", ""))
    stated: dict[str, Any] = {
        f"{what} ({unit})": quantity(value) for what, (value, unit, _) in figures.items() if what not in _READ
    }
    if mode == "generation":
        found |= {"output_tokens": tokens, "time_per_output_token_ms": _ms(each, "latency.mean")}
        prefill = _ms(others.get("prefill", {}), "latency.mean")
        found |= {"prefill_ms": prefill, "time_to_first_token_ms": prefill}
        if last == "decode" and found.get("latency_mean_ms") is not None:
            stated["decode_ms"] = found["latency_mean_ms"]
            if prefill:  # Decoding alone is no whole generation; with its prefill it is.
                found |= dict.fromkeys(_STATISTICS.values())
                found["latency_mean_ms"] = prefill + stated["decode_ms"]
                stated["derived"] = "latency_mean_ms = prefill + decode"
        decode_ms = stated.get("decode_ms") or _ms(figures, "decode_latency.mean")
        if decode_ms and found["time_per_output_token_ms"] is None and tokens and tokens > 1:
            found["time_per_output_token_ms"] = decode_ms / (tokens - 1)
    rate_value = quantity(rate)
    if rate_value is not None and "tok" in unit:
        stated["throughput_tokens_per_s"] = found["throughput_tokens_per_s"] = rate_value or None
        if found.get("latency_mean_ms") is None and rate_value and tokens and size["batch_size"]:
            found["latency_mean_ms"] = size["batch_size"] * tokens * MS_PER_S / rate_value
            stated["derived"] = "latency_mean_ms = batch x new tokens / (tokens/s)"
    else:
        found["throughput_items_per_s"] = rate_value
        if rate_value is not None and "iter" in unit and size["batch_size"]:
            # Old tables count calls, not items.
            found["throughput_items_per_s"] = rate_value * size["batch_size"]
    for name, field_name in _MEMORY.items():
        if found.get(field_name) is None and name in figures:
            found[field_name] = scaled(figures[name][0], MIB_PER_MB) or None
    cell = cell_of(document, pointer, config, phase)
    if hardware_named(cell.named.hardware) == "cpu" and found.get("memory_peak_mib") is None:
        # The same columns are of the process where there is no accelerator.
        found["memory_peak_mib"] = found.pop("memory_device_peak_mib", None)
    cell = replace(cell, original={**cell.original, "stated": {k: v for k, v in stated.items() if v is not None}})
    units = {column: unit for _, unit, column in figures.values() if unit}
    return cell.result("ok", {"mode": mode, **size, **found, **load}, units=units)


def _ms(figures: Mapping[str, tuple[Any, str, str]], name: str) -> float | None:
    value, unit, _ = figures.get(name, (None, "", ""))
    return scaled(value, 1.0 if unit == "ms" else MS_PER_S)


def _size(config: Mapping[str, Any], document: Document) -> dict[str, int | None]:
    size = size_of(config, document.source_path)
    for place in ("scenario", "benchmark"):
        batch = config.get(f"{place}.training_arguments.per_device_train_batch_size")
        size["batch_size"] = size["batch_size"] or count(batch, at_least=1)
        size["sequence_length"] = size["sequence_length"] or count(
            config.get(f"{place}.dataset_shapes.sequence_length"), at_least=1
        )
    return size


def _any_known(figures: Mapping[str, tuple[Any, str, str]]) -> bool:
    return any(quantity(value) is not None for what, (value, _, _) in figures.items() if "memory" not in what)


def _figure(column: str) -> tuple[str, str, str] | None:
    """Return phase, figure and unit of a column; None for a column of the configuration."""
    if found := _NEW.fullmatch(column):
        return found["phase"], f"{found['what']}.{found['key']}", "s" if found["what"] == "latency" else ""
    found = _OLD.fullmatch(column) or _PRETTY.fullmatch(column)
    if found is None:
        return None
    what = found["what"].strip().casefold().replace(" ", "_")
    what = {"latency": "latency.mean", "throughput": "throughput.value"}.get(what, what)
    return found["phase"].casefold(), what, found["unit"].strip()
