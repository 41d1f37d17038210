"""GenAI-Perf's and AIPerf's statistics: `{metric}{unit, avg, p50, p90, …}` as JSON, or a CSV with the unit in the name.

Neither tells the hardware, unless AIPerf watched one kind of GPU; a CSV has no model either, and its place may name
both. AIPerf writes the same figures several times: the JSON of the run is read, and the files that repeat it are not.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from migrations.normalize.path_hints import neighbors
from migrations.normalize.records import NoResult, Part
from migrations.normalize.row_access import object_of, pick, text_of
from migrations.normalize.units import TO_MS, count, quantity, scaled
from migrations.sources.documents import Document, decode_text
from migrations.tools.load_report import STATISTICS, LoadReport, Statistics, record

_HEADER = "metric,avg,min,max,"
_LATENCY = "request_latency"
_KNOWN = (_LATENCY, "request_throughput", "time_to_first_token")
_TOKEN = ("inter_token_latency", "output_token_latency")
_NAMED = re.compile(r"(?P<name>[^(]+?)\s*(?:\((?P<unit>[^)]*)\))?")
_READ = (_LATENCY, "time_to_first_token", *_TOKEN)
_GPU = ("gpu_", "energy_")
_WARM_UP = "the warm-up of a run"
_REPEATED = "it repeats the run in the JSON beside it: import that one"


def detect(document: Document) -> float:
    """Return high confidence where a request's latency has a unit and statistics, or the table begins with its
    header.
    """
    if document.kind in ("text", "csv"):
        first = ",".join(document.columns) if document.kind == "csv" else next(iter(document.value), "")
        return 0.95 if first.casefold().startswith(_HEADER) else 0.0
    return 0.95 if document.kind == "json" and holds_statistics(document.value) else 0.0


def holds_statistics(value: Any) -> bool:
    """Return whether a value has a request's statistics with their unit."""
    return any({"unit", "avg"} <= object_of(object_of(value).get(name)).keys() for name in _KNOWN)


def is_repeated(document: Document) -> bool:
    """Return whether the run's statistics as JSON lie beside a file of it."""
    stem = PurePosixPath(document.source_path.rpartition("!")[2]).stem.casefold()
    return any(map(holds_statistics, neighbors(document, containing=stem)))


def parse(document: Document) -> Iterator[Part]:
    """Yield one record of the whole run."""
    content = object_of(document.value)
    if document.kind == "json":
        metrics, pointer = {str(name): object_of(metric) for name, metric in content.items()}, ""
    else:
        metrics, pointer = _table(decode_text(document.content.raw)), "/0"
    phases = _phases(object_of(content.get("input_config")))
    folders = PurePosixPath(document.source_path.rpartition("!")[2]).parts[-3:-1]
    of_phase = folders[1] if len(folders) == 2 and folders[0] == "phases" else None
    profiled = [phase for phase in phases if phase.get("kind", "profiling") != "warmup"]
    if not metrics:
        yield NoResult(pointer, "a table of no metric")
    elif of_phase and of_phase not in [phase.get("name") for phase in profiled]:
        yield NoResult(pointer, _WARM_UP if document.kind == "json" else _REPEATED)
    elif (of_phase and len(profiled) == 1) or (document.kind != "json" and is_repeated(document)):
        yield NoResult(pointer, _REPEATED)
    else:
        load = next((phase for phase in profiled if phase.get("name") == of_phase), (*profiled, {})[0])
        yield record(_report(content, metrics, load), document.source_path, pointer)


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


def _phases(config: Mapping[str, Any]) -> list[dict[str, Any]]:
    phases = config.get("phases")
    return [object_of(phase) for phase in phases] if isinstance(phases, list) else []


def _report(content: Mapping[str, Any], metrics: Mapping[str, dict[str, Any]], phase: Mapping[str, Any]) -> LoadReport:
    config = object_of(content.get("input_config"))
    endpoint, load = object_of(config.get("endpoint")), object_of(config.get("loadgen"))
    stimulus = object_of(object_of(object_of(config.get("perf_analyzer")).get("stimulus")))
    token = next((metrics[name] for name in _TOKEN if name in metrics), {})

    def mean(name: str) -> float | None:
        return _number(metrics.get(name, {}).get("avg"))

    return LoadReport(
        model=_model(config, endpoint),
        device=_watched_gpu(content),
        engine=text_of(pick(endpoint, "backend") or config.get("backend")),
        answered=count(mean("request_count")),
        failed=count(mean("error_request_count")),
        concurrency=phase.get("concurrency")
        or pick(config, "concurrency")
        or stimulus.get("concurrency")
        or load.get("concurrency"),
        request_rate=text_of(
            phase.get("rate")
            or pick(config, "request_rate")
            or stimulus.get("request_rate")
            or load.get("request_rate")
        ),
        input_tokens=mean("input_sequence_length"),
        output_tokens=mean("output_sequence_length"),
        first_token_ms=_statistics(metrics.get("time_to_first_token", {})),
        output_token_ms=_statistics(token),
        whole_ms=_statistics(metrics.get(_LATENCY, {})),
        requests_per_s=mean("request_throughput"),
        output_tokens_per_s=mean("output_token_throughput"),
        stated={
            name: _stated(metric)
            for name, metric in metrics.items()
            if name not in _READ and not name.startswith(_GPU) and _number(metric.get("avg")) is not None
        },
        times=(content.get("start_time"),),
        error=_first_error(content.get("error_summary")),
    )


def _statistics(metric: Mapping[str, Any]) -> Statistics:
    """Return the statistics of a time in ms; none where its unit is of no time."""
    factor = TO_MS.get(str(metric.get("unit") or "ms").strip().casefold())
    if factor is None:
        return {}
    found = {name: scaled(_number(metric.get("avg" if name == "mean" else name)), factor) for name in STATISTICS}
    return {name: figure for name, figure in found.items() if figure is not None}


def _stated(metric: Mapping[str, Any]) -> dict[str, float]:
    """Return mean and percentiles of a metric that no field of a result holds."""
    numbers = {key: _number(metric.get(key)) for key in ("avg", "p50", "p99")}
    return {key: number for key, number in numbers.items() if number is not None}


def _number(value: Any) -> float | None:
    """Parse a number as tables write it: 1,234.56."""
    return quantity(value.replace(",", "") if isinstance(value, str) else value)


def _watched_gpu(content: Mapping[str, Any]) -> str | None:
    """Return the name of the GPU that was watched; None for several, because the file does not say which served."""
    endpoints = object_of(object_of(content.get("telemetry_data")).get("endpoints"))
    gpus = [gpu for endpoint in endpoints.values() for gpu in object_of(object_of(endpoint).get("gpus")).values()]
    return text_of(object_of(gpus[0]).get("gpu_name")) if len(gpus) == 1 else None


def _first_error(summary: Any) -> str | None:
    first = object_of(summary[0]) if isinstance(summary, list) and summary else {}
    details = object_of(first.get("error_details"))
    return text_of(details.get("message")) or text_of(details.get("type"))


def _model(config: Mapping[str, Any], endpoint: Mapping[str, Any]) -> str | None:
    items = object_of(config.get("models")).get("items")
    listed = [object_of(item).get("name") for item in items] if isinstance(items, list) else []
    for found in (
        config.get("model_names"),
        config.get("model"),
        endpoint.get("model_names"),
        endpoint.get("model"),
        listed,
    ):
        for name in found if isinstance(found, list) else [found]:
            if isinstance(name, str) and name.strip():
                return name
    formatted = config.get("formatted_model_name")
    return text_of(formatted)
