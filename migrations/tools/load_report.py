"""Common form of load generators' reports: times of a served model's users under one load.

One definition of time per output token holds for all: the time after the first token over the tokens after it. Some
tools have another: GuideLLM counts the first token in, inference-perf the pieces of the stream. Then it follows from
the means of whole requests, first tokens and lengths, and the tool's own figures stay in `original.stated`.

Tools write 0 for times that were not measured. Those are all times where no request was answered, and the first token
and those after it where answers came in one piece. Such statistics count as absent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from migrations.normalize.canonical_names import NOT_STATED, UNKNOWN_ENGINE, hardware_named
from migrations.normalize.path_hints import device_in, given_names, hardware_part, model_part, spaced
from migrations.normalize.record_builder import CellDraft, Machine, NamesInFile
from migrations.normalize.records import Record, RefusedCell
from migrations.normalize.units import count, scaled

STATISTICS = ("mean", "p50", "p90", "p95", "p99", "std", "min", "max")
Statistics = Mapping[str, float]
"""Figures by the names of STATISTICS; those unknown are absent."""


@dataclass(frozen=True)
class LoadReport:
    """One load on a served model. Times are in ms per request; lengths are means."""

    model: str | None = None
    device: str | None = None
    """Device in the file's own words; None where the file names none."""
    engine: str | None = None
    engine_version: str | None = None
    precision: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the engine, such as `tensor_parallel_size`, `data_parallel_size`, `devices`."""
    configuration: Mapping[str, Any] | None = None
    """Layout of a deployment with several engines, such as separate prefill and decoding; None for one engine."""
    answered: int | None = None
    failed: int | None = None
    concurrency: Any = None
    request_rate: Any = None
    input_tokens: float | None = None
    output_tokens: float | None = None
    first_token_ms: Statistics = field(default_factory=dict)
    output_token_ms: Statistics = field(default_factory=dict)
    """Time per token after the first, where the tool defines it so."""
    whole_ms: Statistics = field(default_factory=dict)
    requests_per_s: float | None = None
    output_tokens_per_s: float | None = None
    stated: Mapping[str, Any] = field(default_factory=dict)
    times: Sequence[Any] = ()
    error: str | None = None


def statistics(found: Any, factor: float, names: Mapping[str, str]) -> dict[str, float]:
    """Return the statistics of one metric in another unit; `names` are the tool's for ours."""
    values = found if isinstance(found, Mapping) else {}
    figures = {ours: scaled(values.get(theirs), factor) for theirs, ours in names.items()}
    return {name: figure for name, figure in figures.items() if figure is not None}


def record(report: LoadReport, source_path: str, pointer: str) -> Record | RefusedCell:
    """Return the load as a result; a load without an answer is a failure.

    Its mode is generation, unless the tool counted no output token: embeddings and rankings are forward passes.
    """
    whole = _measured(report.whole_ms)
    first = {} if _at_once(report) else _measured(report.first_token_ms)
    report = replace(report, first_token_ms=first, output_token_ms=_measured(report.output_token_ms), whole_ms=whole)
    mode = "inference" if report.output_tokens == 0 and whole else "generation"
    cell = _cell(report, source_path, pointer)
    if not report.answered and not (whole or first):
        return cell.result(
            "failed", {"mode": mode}, reason=report.error or f"{report.answered or 0} requests were answered"
        )
    figures = {
        "mode": mode,
        "iterations": report.answered,
        "sequence_length": _tokens(report.input_tokens),
        "output_tokens": _tokens(report.output_tokens),
        "throughput_items_per_s": report.requests_per_s,
        "throughput_tokens_per_s": report.output_tokens_per_s or None,
        "time_to_first_token_ms": _median_or_mean(report.first_token_ms),
        "time_per_output_token_ms": _median_or_mean(report.output_token_ms) or _derived_token_ms(report),
        **{f"latency_{name}_ms": report.whole_ms.get(name) for name in STATISTICS},
    }
    return cell.result("ok", figures, units={"*_ms": "ms per request"})


def _at_once(report: LoadReport) -> bool:
    """Return whether the first token of several came with the last, so that nobody timed it."""
    first, whole = report.first_token_ms.get("mean"), report.whole_ms.get("mean")
    return first is not None and first == whole and (report.output_tokens or 0) > 1


def _measured(found: Statistics) -> Statistics:
    return found if any(figure for name, figure in found.items() if name != "std") else {}


def _median_or_mean(found: Statistics) -> float | None:
    return found.get("p50") or found.get("mean")


def _derived_token_ms(report: LoadReport) -> float | None:
    whole, first, tokens = report.whole_ms.get("mean"), report.first_token_ms.get("mean"), report.output_tokens
    if whole is None or first is None or not tokens or tokens <= 1 or whole < first:
        return None
    return (whole - first) / (tokens - 1)


def _read(report: LoadReport) -> dict[str, Statistics]:
    """Return the statistics for which a result has no field."""
    found = {"time_to_first_token_ms": report.first_token_ms, "time_per_output_token_ms": report.output_token_ms}
    return {name: dict(values) for name, values in found.items() if values}


def _tokens(mean: float | None) -> int | None:
    return max(1, round(mean)) if mean else None


def _cell(report: LoadReport, source_path: str, pointer: str) -> CellDraft:
    place = None if report.device else hardware_part(source_path)
    device = report.device or (spaced(place) if place else None)
    hardware = hardware_named(device)
    name = device_in(place) if place else device
    devices = count(report.settings.get("devices"), at_least=2)
    if name and devices:
        name = f"{devices} x {name}"
    given = None if report.engine else given_names().engine
    hints = {"model": None if report.model else model_part(source_path), "hardware": place, "engine": given}
    engine = report.engine or given or UNKNOWN_ENGINE
    original = {
        "hardware": report.device or place or NOT_STATED,
        "backend": report.engine,
        "concurrency": count(report.concurrency, at_least=1),
        "request_rate": None if report.request_rate is None else str(report.request_rate),
        "said_by_path": {key: value for key, value in hints.items() if value},
        "stated": {**_read(report), **report.stated},
        "failed_requests": report.failed,
    }
    if report.configuration is not None:
        original["configuration"] = dict(report.configuration)
    return CellDraft(
        source_path,
        pointer,
        NamesInFile(
            (report.model or hints["model"],), device or NOT_STATED, precision=report.precision, runtime=engine
        ),
        times=report.times,
        machine=Machine(
            device_names={hardware: name} if hardware and name else {},
            software={engine: report.engine_version} if report.engine_version else {},
            settings={key: str(value) for key, value in report.settings.items() if value is not None},
        ),
        original=original,
    )
