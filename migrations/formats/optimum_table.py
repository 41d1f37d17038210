"""optimum-benchmark's CSV: results of one run, or reports merged from many with 50 and more configuration columns.

Units stand in the headers: `forward.latency(s)`, `Forward Latency (s)`, `report.forward.latency.mean` (seconds); memory
is in decimal MB. Some tables have an index column; a table without model or hardware takes them from its path.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

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


class _Figure(NamedTuple):
    """One cell of the table."""

    value: Any
    unit: str
    column: str


_NO_FIGURE = _Figure(None, "", "")
Figures = dict[str, _Figure]
"""Figures of one phase, by name."""


@dataclass(frozen=True)
class _Run:
    """Figures of one row."""

    phases: dict[str, Figures]
    """Figures by phase; phases without a time or rate are left out."""
    per_token: Figures
    load_ms: float | None


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
        run = _run_of(row, columns)
        for phase, figures in run.phases.items():
            column = next(iter(figures.values())).column
            yield _record(document, child(pointer, column), config, phase, run)
        if not run.phases:
            size = {key: value for key, value in _size(config, document).items() if key != "new_tokens"}
            yield cell_of(document, pointer, config, "none").result("failed", size, reason="the row holds no figure")


def _run_of(row: Mapping[str, Any], columns: Mapping[str, tuple[str, str, str]]) -> _Run:
    """Return the figures of a row; `columns` holds phase, figure and unit by column."""
    phases: dict[str, Figures] = defaultdict(dict)
    for column, (phase, name, unit) in columns.items():
        phases[phase][name] = _Figure(row[column], unit, column)
    any_load = phases.pop("load", {})
    load = phases.pop("load_model", any_load)
    load_ms = scaled(load["latency.mean"].value, MS_PER_S) if "latency.mean" in load else None
    per_token = phases.pop("per_token", {})
    known = {phase: figures for phase, figures in phases.items() if _any_known(figures)}
    if "generate" in known and "prefill" not in known:
        # Old tables split a generation no further: its decoding is a part of it.
        known["generate"] |= {f"decode_{name}": figure for name, figure in known.pop("decode", {}).items()}
    if "decode" in known and "generate" not in known:
        # Its memory is that of the whole generation.
        known["decode"] |= {name: figure for name, figure in phases.get("generate", {}).items() if "memory" in name}
    return _Run(known, per_token, load_ms)


def _record(document: Document, pointer: str, config: Mapping[str, Any], phase: str, run: _Run) -> Record | RefusedCell:
    figures = run.phases[phase]
    size = _size(config, document)
    batch_size, tokens = size["batch_size"], size.pop("new_tokens")
    last = phase.rpartition(".")[2]
    mode = "training" if last in _TRAINING else _MODES[last]
    found: dict[str, Any] = {field: _ms(figures, name) for name, field in _STATISTICS.items() if name in figures}
    stated: dict[str, Any] = {
        f"{name} ({figure.unit})": quantity(figure.value) for name, figure in figures.items() if name not in _READ
    }
    if mode == "generation":
        _add_generation(found, stated, last, run, figures, tokens)
    _add_rate(found, stated, figures.get("throughput.value", _NO_FIGURE), batch_size, tokens)
    for name, field in _MEMORY.items():
        if found.get(field) is None and name in figures:
            found[field] = scaled(figures[name].value, MIB_PER_MB) or None
    cell = cell_of(document, pointer, config, phase)
    if hardware_named(cell.named.hardware) == "cpu" and found.get("memory_peak_mib") is None:
        # The same columns are of the process where there is no accelerator.
        found["memory_peak_mib"] = found.pop("memory_device_peak_mib", None)
    cell = replace(cell, original={**cell.original, "stated": {k: v for k, v in stated.items() if v is not None}})
    units = {figure.column: figure.unit for figure in figures.values() if figure.unit}
    return cell.result("ok", {"mode": mode, **size, **found, "load_ms": run.load_ms}, units=units)


def _add_generation(
    found: dict[str, Any], stated: dict[str, Any], phase: str, run: _Run, figures: Figures, tokens: int | None
) -> None:
    """Add the times of a generation's parts to a result, and the latency of the whole where it follows from these."""
    prefill_ms = _ms(run.phases.get("prefill", {}), "latency.mean")
    per_token_ms = _ms(run.per_token, "latency.mean")
    if phase == "decode" and found.get("latency_mean_ms") is not None:
        stated["decode_ms"] = found["latency_mean_ms"]
        if prefill_ms:  # Decoding alone is no whole generation; with its prefill it is.
            found |= dict.fromkeys(_STATISTICS.values())
            found["latency_mean_ms"] = prefill_ms + stated["decode_ms"]
            stated["derived"] = "latency_mean_ms = prefill + decode"
    decode_ms = stated.get("decode_ms") or _ms(figures, "decode_latency.mean")
    if decode_ms and per_token_ms is None and tokens and tokens > 1:
        per_token_ms = decode_ms / (tokens - 1)
    found |= {
        "output_tokens": tokens,
        "time_per_output_token_ms": per_token_ms,
        "prefill_ms": prefill_ms,
        "time_to_first_token_ms": prefill_ms,
    }


def _add_rate(
    found: dict[str, Any], stated: dict[str, Any], rate: _Figure, batch_size: int | None, tokens: int | None
) -> None:
    """Add the rate to a result, and the latency where only a rate in tokens tells it."""
    value = quantity(rate.value)
    if value is not None and "tok" in rate.unit:
        stated["throughput_tokens_per_s"] = found["throughput_tokens_per_s"] = value or None
        if found.get("latency_mean_ms") is None and value and tokens and batch_size:
            found["latency_mean_ms"] = batch_size * tokens * MS_PER_S / value
            stated["derived"] = "latency_mean_ms = batch x new tokens / (tokens/s)"
    elif value is not None and "iter" in rate.unit and batch_size:
        # Old tables count calls, not items.
        found["throughput_items_per_s"] = value * batch_size
    else:
        found["throughput_items_per_s"] = value


def _ms(figures: Figures, name: str) -> float | None:
    figure = figures.get(name, _NO_FIGURE)
    return scaled(figure.value, 1.0 if figure.unit == "ms" else MS_PER_S)


def _size(config: Mapping[str, Any], document: Document) -> dict[str, int | None]:
    size = size_of(config, document.source_path)
    for place in ("scenario", "benchmark"):
        batch = config.get(f"{place}.training_arguments.per_device_train_batch_size")
        size["batch_size"] = size["batch_size"] or count(batch, at_least=1)
        size["sequence_length"] = size["sequence_length"] or count(
            config.get(f"{place}.dataset_shapes.sequence_length"), at_least=1
        )
    return size


def _any_known(figures: Figures) -> bool:
    return any(quantity(figure.value) is not None for name, figure in figures.items() if "memory" not in name)


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
