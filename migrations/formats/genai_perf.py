"""GenAI-Perf's and AIPerf's statistics: `{metric}{unit, avg, p50, p90, …}` as JSON, or a CSV with the unit in the name.

A request joins whatever batch the server makes, so no batch size is recorded. Both configure the model, neither tells
the hardware; a CSV has no model either, and its place may name both.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from typing import Any

from migrations.normalize.canonical_names import NOT_STATED, hardware_named
from migrations.normalize.path_hints import device_in, hardware_part, model_part, spaced
from migrations.normalize.record_builder import CellDraft, Machine, NamesInFile
from migrations.normalize.records import NoResult, Part
from migrations.normalize.row_access import object_of, pick, text_of
from migrations.normalize.units import MS_PER_S, count, quantity, scaled
from migrations.sources.documents import Document, decode_text

_HEADER = "metric,avg,min,max,p99,"
_TO_MS = {"ms": 1.0, "s": MS_PER_S, "sec": MS_PER_S, "us": 1e-3, "ns": 1e-6}
_STATISTICS = ("p50", "p90", "p95", "p99", "min", "max", "std")
_LATENCY = "request_latency"
_TOKEN = ("inter_token_latency", "output_token_latency")
_NAMED = re.compile(r"(?P<name>[^(]+?)\s*(?:\((?P<unit>[^)]*)\))?")
_GPU = ("gpu_", "energy_")


def detect(document: Document) -> float:
    """Return high confidence where a request's latency has a unit and statistics, or the table begins with its
    header.
    """
    if document.kind in ("text", "csv"):
        first = ",".join(document.columns) if document.kind == "csv" else next(iter(document.value), "")
        return 0.95 if first.casefold().startswith(_HEADER) else 0.0
    value = object_of(document.value)
    metrics = (object_of(value.get(name)) for name in (_LATENCY, "request_throughput", "time_to_first_token"))
    known = any("unit" in metric and "avg" in metric for metric in metrics)
    return 0.95 if known and document.kind == "json" else 0.0


def parse(document: Document) -> Iterator[Part]:
    """Yield one record of the whole run."""
    if document.kind == "json":
        metrics, pointer = {str(name): object_of(metric) for name, metric in document.value.items()}, ""
    else:
        metrics, pointer = _table(decode_text(document.content.raw)), "/0"
    if not metrics:
        yield NoResult(pointer, "a table of no metric")
        return
    figures = _figures(metrics)
    cell = _cell(document, pointer, metrics)
    if not any(value for value in figures.values()):
        yield cell.result("failed", {"mode": "generation"}, reason="the statistics hold no figure")
    else:
        units = {name: str(metric["unit"]) for name, metric in metrics.items() if metric.get("unit")}
        yield cell.result("ok", {"mode": "generation", **figures}, units=units)


def _table(text: str) -> dict[str, dict[str, Any]]:
    """Return the statistics of every metric by its plain name, from sections with headers of their own."""
    found: dict[str, dict[str, Any]] = {}
    header: list[str] = []
    for line in csv.reader(text.splitlines()):
        if line and line[0] == "Metric":
            header = line
        elif line and header and (named := _NAMED.fullmatch(line[0].strip())):
            name = re.sub(r"\W+", "_", named["name"].strip().casefold())
            statistics = dict(zip(header[1:], line[1:], strict=False))
            found[name] = {"unit": named["unit"], "avg": statistics.pop("Value", None), **statistics}
    return found


def _figures(metrics: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    latency = object_of(metrics.get(_LATENCY))
    token = next((metrics[name] for name in _TOKEN if name in metrics), {})
    rates = {name: _number(metrics.get(name, {}).get("avg")) for name in ("request_throughput", "request_count")}
    return {
        "latency_mean_ms": _ms(latency, "avg"),
        **{f"latency_{name}_ms": _ms(latency, name) for name in _STATISTICS},
        "throughput_items_per_s": rates["request_throughput"],
        "throughput_tokens_per_s": _number(metrics.get("output_token_throughput", {}).get("avg")) or None,
        "iterations": count(rates["request_count"]),
        "time_to_first_token_ms": _median_or_mean(object_of(metrics.get("time_to_first_token"))),
        "time_per_output_token_ms": _median_or_mean(token),
    }


def _median_or_mean(metric: Mapping[str, Any]) -> float | None:
    median = _ms(metric, "p50")
    return median if median is not None else _ms(metric, "avg")


def _ms(metric: Mapping[str, Any], statistic: str) -> float | None:
    factor = _TO_MS.get(str(metric.get("unit") or "ms").strip().casefold())
    return None if factor is None else scaled(_number(metric.get(statistic)), factor)


def _number(value: Any) -> float | None:
    """Parse a number as tables write it: 1,234.56."""
    return quantity(value.replace(",", "") if isinstance(value, str) else value)


def _cell(document: Document, pointer: str, metrics: Mapping[str, dict[str, Any]]) -> CellDraft:
    path = document.source_path
    config = object_of(object_of(document.value).get("input_config"))
    endpoint, load = object_of(config.get("endpoint")), object_of(config.get("loadgen"))
    stimulus = object_of(object_of(object_of(config.get("perf_analyzer")).get("stimulus")))
    model = _model(config, endpoint)
    place = hardware_part(path)
    hardware = hardware_named(spaced(place)) if place else None
    hints = {"model": None if model else model_part(path), "hardware": place}
    name = device_in(place)
    return CellDraft(
        path,
        pointer,
        NamesInFile(
            (model or hints["model"],),
            spaced(place) if place else NOT_STATED,
            runtime=text_of(pick(endpoint, "backend") or config.get("backend")) or "unknown",
        ),
        times=(object_of(document.value).get("start_time"),),
        machine=Machine(device_names={hardware: name} if hardware and name else {}),
        original={
            "hardware": place or NOT_STATED,
            "said_by_path": {key: value for key, value in hints.items() if value},
            "concurrency": count(
                pick(config, "concurrency") or stimulus.get("concurrency") or load.get("concurrency"), at_least=1
            ),
            "request_rate": text_of(
                pick(config, "request_rate") or stimulus.get("request_rate") or load.get("request_rate")
            ),
            "stated": {
                name: {key: number for key in ("avg", "p50", "p99") if (number := _number(metric.get(key))) is not None}
                for name, metric in metrics.items()
                if name != _LATENCY and not name.startswith(_GPU) and _number(metric.get("avg")) is not None
            },
        },
    )


def _model(config: Mapping[str, Any], endpoint: Mapping[str, Any]) -> str | None:
    for found in (config.get("model_names"), config.get("model"), endpoint.get("model_names"), endpoint.get("model")):
        for name in found if isinstance(found, list) else [found]:
            if isinstance(name, str) and name.strip():
                return name
    formatted = config.get("formatted_model_name")
    return text_of(formatted)
