"""llm-d's Benchmark Report, versions 0.2 and 0.2.1, as YAML or JSON: a stack, a load, and what users saw.

Figures have units of their own. Tools define the time per output token in different ways. So it is computed from the
means of whole requests and lengths where these are known.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from migrations.normalize.records import NoResult, Part, refuse
from migrations.normalize.row_access import object_of, text_of
from migrations.normalize.units import count, quantity
from migrations.sources.documents import Document, decode_text
from migrations.sources.yaml_text import plain_yaml
from migrations.tools.load_report import STATISTICS, LoadReport, record, statistics

VERSIONS = ("0.2", "0.2.1")
_TO_MS = {"s": 1e3, "ms": 1.0, "us": 1e-3, "s/token": 1e3, "ms/token": 1.0}
_NAMES = {**{name: name for name in STATISTICS}, "stddev": "std"}
_OF_OUR_KIND = ("accel", "vllm-benchmark")
"""Tools whose time per output token is that after the first."""
_SECTION = re.compile(r"(?:version|run|scenario|results)\s*:")


def detect(document: Document) -> float:
    """Return high confidence where results hold the performance of requests."""
    if document.kind == "text":
        lines = [line.rstrip() for line in document.value]
        return 0.95 if "results:" in lines and any(line.strip() == "request_performance:" for line in lines) else 0.0
    value = object_of(document.value) if document.kind == "json" else {}
    return 0.95 if "request_performance" in object_of(value.get("results")) else 0.0


def parse(document: Document) -> Iterator[Part]:
    """Yield one record of the report; one of another version is refused."""
    report = document.value
    if document.kind == "text":
        try:
            report = plain_yaml(_own_lines(document))
        except ValueError as error:
            yield NoResult("", f"no YAML that can be read: {error}")
            return
    version = str(object_of(report).get("version"))
    if version not in VERSIONS:
        reason = f"version {version} of the report is not known, only {' and '.join(VERSIONS)}"
        yield refuse("", "unexpected_shape", reason, {"version": version})
        return
    uid = text_of(object_of(report.get("run")).get("uid")) or ""
    if "scenario" not in report and uid.startswith("inference-perf-stage-"):
        yield NoResult("", "a part for others to complete: import stage_N_lifecycle_metrics.json beside it")
        return
    results = object_of(object_of(report["results"]).get("request_performance"))
    yield record(_report(report, object_of(results.get("aggregate"))), document.source_path, "")


def _own_lines(document: Document) -> str:
    """Return the report without the lines of a log before and after it."""
    lines = decode_text(document.content.raw).splitlines()
    return "\n".join(line for line in lines if not line.strip() or line[0] in " -#" or _SECTION.match(line))


def _report(report: Mapping[str, Any], seen: Mapping[str, Any]) -> LoadReport:
    scenario = object_of(report.get("scenario"))
    stack = scenario.get("stack")
    parts = [object_of(object_of(part).get("standardized")) for part in stack] if isinstance(stack, list) else []
    engines = [part for part in parts if part.get("kind") == "inference_engine"]
    engine = engines[0] if engines else {}
    accelerator = object_of(engine.get("accelerator"))
    parallel = object_of(accelerator.get("parallelism"))
    load = object_of(object_of(scenario.get("load")).get("standardized"))
    requests, latency = object_of(seen.get("requests")), object_of(seen.get("latency"))
    rates = object_of(seen.get("throughput"))
    total, failed = count(requests.get("total")), count(requests.get("failures"))
    first, whole = _times(latency.get("time_to_first_token")), _times(latency.get("request_latency"))
    tokens = quantity(object_of(requests.get("output_length")).get("mean"))
    own = _times(latency.get("time_per_output_token")) or _times(latency.get("inter_token_latency"))
    derivable = "mean" in first and "mean" in whole and tokens is not None and tokens > 1
    copies, replicas = count(parallel.get("dp"), at_least=1), count(engine.get("replicas"), at_least=1) or 1
    several = len(engines) > 1 or replicas > 1 or engine.get("role") in ("prefill", "decode")
    return LoadReport(
        model=text_of(object_of(engine.get("model")).get("name")),
        device=text_of(accelerator.get("model")),
        engine=_engine(engine),
        engine_version=text_of(engine.get("tool_version")),
        settings={
            "devices": count(accelerator.get("count"), at_least=1),
            "tensor_parallel_size": count(parallel.get("tp"), at_least=1),
            "data_parallel_size": copies,
            "replicas": replicas if replicas > 1 else None,
        },
        configuration={"mode": "several engines", "engines": len(engines), "replicas": replicas} if several else None,
        answered=total - (failed or 0) if total is not None else None,
        failed=failed,
        concurrency=load.get("concurrency"),
        request_rate=quantity(load.get("rate_qps")),
        input_tokens=quantity(object_of(requests.get("input_length")).get("mean")),
        output_tokens=tokens,
        first_token_ms=first,
        output_token_ms={} if derivable and load.get("tool") not in _OF_OUR_KIND else own,
        whole_ms=whole,
        requests_per_s=quantity(object_of(rates.get("request_rate")).get("mean")),
        output_tokens_per_s=quantity(object_of(rates.get("output_token_rate")).get("mean")),
        stated={
            "tool": text_of(load.get("tool")),
            **{
                f"{name}_ms": {
                    key: value for key, value in _times(latency[name]).items() if key in ("mean", "p50", "p99")
                }
                for name in latency
            },
        },
        times=tuple(str(object_of(object_of(report.get("run")).get("time")).get(name)) for name in ("start", "end")),
    )


def _engine(part: Mapping[str, Any]) -> str | None:
    """Return the engine's name; llm-d serves with vLLM."""
    name = text_of(part.get("tool"))
    return "vllm" if name == "llm-d" else name


def _times(found: Any) -> dict[str, float]:
    metric = object_of(found)
    factor = _TO_MS.get(str(metric.get("units")))
    return {} if factor is None else statistics(metric, factor, _NAMES)
