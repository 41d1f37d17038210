"""optimum-benchmark's JSON: `{config, report}` in one file, or a report alone whose configuration lies beside it.

Seconds; memory in decimal MB (though `gpu_vram_mb` is bytes). A phase is `{latency, throughput, memory}`: `forward`,
`prefill`, `decode`, `per_token`, `generate`, `call`, `train`; loading is `load` or `load_model`, among others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from statistics import median
from typing import Any

from migrations.normalize.records import Record, RefusedCell, child, refuse
from migrations.normalize.row_access import object_of, rows_of
from migrations.normalize.units import MIB_PER_MB, MS_PER_S, NS_PER_S, quantity, samples_ns, scaled
from migrations.sources.documents import Document
from migrations.tools.optimum import cell_of, config_beside, flat, is_config, size_of

_MODES = {
    "forward": "inference", "prefill": "inference", "call": "inference", "decode": "generation",
    "generate": "generation", "train": "training", "training": "training", "overall": "training", "warmup": "training",
}  # fmt: skip
_LOADS = ("load_model", "load", "load_from_pretrained")
_PARTS = {"latency", "throughput", "memory"}
_VALUES = {"unit", "value", "values", "mean", "max_ram"}
_STATISTICS = {
    "mean": "latency_mean_ms", "p50": "latency_p50_ms", "p90": "latency_p90_ms", "p95": "latency_p95_ms",
    "p99": "latency_p99_ms", "stdev": "latency_std_ms", "std": "latency_std_ms", "min": "latency_min_ms",
    "max": "latency_max_ms",
}  # fmt: skip
_RAM = ("max_ram",)
_DEVICE = ("max_process_vram", "max_allocated", "max_reserved", "max_global_vram", "max_vram")
_UNITS = {"latency": "s", "throughput": "items/s", "memory": "MB of 1,000,000 bytes"}


def detect(document: Document) -> float:
    """Return high confidence where a report's phases hold latencies with units, alone or beside a configuration."""
    rows = [row for _, row in rows_of(document)][:20]
    return 0.95 if rows and all(_phases(_report(row)) for row in rows) and document.kind != "csv" else 0.0


def parse(document: Document) -> Iterator[Record | RefusedCell]:
    """Yield one record per phase and run. Decoding is one with its prefill: together they are a whole generation."""
    for pointer, row in rows_of(document):
        config = flat(object_of(row.get("config"))) if is_config(row.get("config")) else config_beside(document)
        report = _report(row)
        base = pointer if report is row else child(pointer, "report")
        phases = _phases(report)
        load = next((_figures(report[name]) for name in _LOADS if name in phases), {})
        for name, phase in phases.items():
            place = base
            for step in name.split("."):
                place = child(place, step)
            if not isinstance(phase, dict):
                yield refuse(place, "unexpected_shape", "an object was expected", phase)
            elif (mode := _MODES.get(name.rpartition(".")[2])) is not None:
                yield _record(document, place, config, (name, mode), phase, report, load)


def _record(
    document: Document,
    pointer: str,
    config: Mapping[str, Any],
    named: tuple[str, str],
    phase: dict[str, Any],
    report: dict[str, Any],
    load: dict[str, Any],
) -> Record | RefusedCell:
    name, mode = named
    size = size_of(config, document.source_path)
    figures = _figures(phase)
    stated = figures.pop("stated")
    if mode != "generation":
        figures.pop("throughput_tokens_per_s")  # of the prompt: no new ones
    if mode == "generation":
        figures |= _generation(name, figures, report, size["new_tokens"], stated)
        size["output_tokens"] = size["new_tokens"]
    elif mode == "training":
        size["batch_size"] = size["batch_size"] or _training_batch(config)
    size.pop("new_tokens")
    cell = cell_of(document, pointer, config, name)
    cell = replace(cell, original={**cell.original, "stated": stated})
    load_ms = load.get("latency_mean_ms") or (load["samples_ns"][0] / 1e6 if load.get("samples_ns") else None)
    return cell.result("ok", {"mode": mode, **size, **figures, "load_ms": load_ms}, units=_UNITS)


def _figures(phase: Any) -> dict[str, Any]:
    """Return latency, rate and memory of a phase in the event's units; all else under `stated`."""
    found = object_of(phase)
    latency = found.get("latency")
    times = object_of(latency)
    values = times.get("values", latency)
    samples = samples_ns(values, ns_per_unit=NS_PER_S)
    if not samples and not isinstance(latency, dict) and not isinstance(latency, list):
        times = {"mean": latency}
    throughput = found.get("throughput")
    rate = object_of(throughput)
    unit = str(rate.get("unit") or "")
    value = quantity(rate.get("value", throughput))
    memory = {key: scaled(member, MIB_PER_MB) for key, member in object_of(found.get("memory")).items()}
    figures: dict[str, Any] = {"samples_ns": samples} if samples else {}
    if not samples:
        figures = {field_name: scaled(times[key], MS_PER_S) for key, field_name in _STATISTICS.items() if key in times}
    per_item = "token" not in unit and "step" not in unit
    return {
        **figures,
        "throughput_items_per_s": value if per_item else None,
        "throughput_tokens_per_s": value or None if "token" in unit else None,
        "memory_peak_mib": next((m for key in _RAM if (m := memory.get(key))), None),
        "memory_device_peak_mib": next((m for key in _DEVICE if (m := memory.get(key))), None),
        "stated": {
            **({} if per_item or value is None else {f"throughput_{unit.replace('/', '_per_')}": value}),
            **{f"{key}_mib": member for key, member in memory.items() if member is not None},
            **{key: found[key] for key in ("energy", "efficiency") if found.get(key)},
        },
    }


def _generation(
    name: str, own: dict[str, Any], report: dict[str, Any], tokens: int | None, stated: dict[str, Any]
) -> dict[str, Any]:
    """Return a decoding phase as a whole generation, with its prefill and the time per token."""
    prefill = _figures(report.get("prefill"))
    each = _figures(report.get("per_token"))
    first_ms, decode_ms, token_ms = _median_or_mean(prefill), _median_or_mean(own), _median_or_mean(each)
    if token_ms is None and name == "decode" and decode_ms is not None and tokens is not None and tokens > 1:
        token_ms = decode_ms / (tokens - 1)
    figures: dict[str, Any] = {
        "prefill_ms": first_ms,
        "time_to_first_token_ms": first_ms,
        "time_per_output_token_ms": token_ms,
    }
    if name != "decode" or first_ms is None:
        return figures
    before, after = prefill.get("samples_ns", ()), own.get("samples_ns", ())
    whole = (
        {"samples_ns": tuple(a + b for a, b in zip(before, after, strict=True))} if len(before) == len(after) else {}
    )
    stated |= {"decode_ms": decode_ms, "decode_samples_ns": list(after) or None}
    stated["derived"] = "a sample is one prefill and one decode"
    if whole.get("samples_ns"):
        return {**figures, **whole}
    means = [_mean(prefill), _mean(own)]
    own_statistics = dict.fromkeys(_STATISTICS.values())
    total = sum(mean for mean in means if mean is not None) if None not in means else None
    return {**figures, **own_statistics, "samples_ns": (), "latency_mean_ms": total}


def _median_or_mean(figures: Mapping[str, Any]) -> float | None:
    samples = figures.get("samples_ns")
    if samples:
        return float(median(samples)) / 1e6
    return figures.get("latency_p50_ms") or figures.get("latency_mean_ms")


def _mean(figures: Mapping[str, Any]) -> float | None:
    samples = figures.get("samples_ns")
    return sum(samples) / len(samples) / 1e6 if samples else figures.get("latency_mean_ms")


def _training_batch(config: Mapping[str, Any]) -> int | None:
    for key in ("scenario", "benchmark"):
        size = quantity(config.get(f"{key}.training_arguments.per_device_train_batch_size"))
        if size:
            return int(size)
    return None


def _report(row: dict[str, Any]) -> dict[str, Any]:
    """Return the report of a run, which may stand alone."""
    report = row.get("report")
    return report if isinstance(report, dict) else row


def _phases(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return the phases of a report; some versions name those of training `train.overall`."""
    found: dict[str, Any] = {}
    for name, phase in report.items():
        if name in _MODES or name in _LOADS or name == "per_token":
            if _is_phase(phase):
                found[name] = phase
            elif isinstance(phase, dict):
                inner = {f"{name}.{key}": part for key, part in phase.items() if _is_phase(part)}
                found |= {key: part for key, part in inner.items() if key.rpartition(".")[2] in _MODES}
    return found


def _is_phase(phase: Any) -> bool:
    """Return whether an object has a part with a value or statistics; scripts of others name training's speed alike."""
    parts = [object_of(part) for name, part in object_of(phase).items() if name in _PARTS]
    return any(part.keys() & _VALUES for part in parts)
