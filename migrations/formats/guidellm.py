"""GuideLLM's `benchmarks.json`: one load after another, requests in seconds and tokens in milliseconds.

Its time per output token includes the first token. Its inter-token latency does not, and is read instead. Versions up
to 0.6 keep the question in `args`, later ones in `config.spec`; those up to 0.3 keep the load with each benchmark. The
same report may be YAML.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from migrations.normalize.records import NoResult, Part, refuse
from migrations.normalize.row_access import object_of, text_of
from migrations.normalize.units import MS_PER_S, count, quantity
from migrations.sources.documents import Document, decode_text
from migrations.sources.yaml_text import plain_yaml
from migrations.tools.load_report import LoadReport, record, statistics

_STATISTICS = {"mean": "mean", "median": "p50", "std_dev": "std", "min": "min", "max": "max"}
_PERCENTILES = {"p50": "p50", "p90": "p90", "p95": "p95", "p99": "p99"}


def detect(document: Document) -> float:
    """Return high confidence where benchmarks hold GuideLLM's metrics by the outcome of requests."""
    if document.kind == "text":
        lines = {line.strip() for line in document.value}
        return 0.95 if lines >= {"benchmarks:", "metrics:", "request_latency:", "inter_token_latency_ms:"} else 0.0
    if document.kind != "json":
        return 0.0
    benchmarks = object_of(document.value).get("benchmarks")
    metrics = [object_of(object_of(one).get("metrics")) for one in benchmarks] if isinstance(benchmarks, list) else []
    return 0.95 if any("request_latency" in one and "inter_token_latency_ms" in one for one in metrics) else 0.0


def parse(document: Document) -> Iterator[Part]:
    """Yield one record per benchmark."""
    report = document.value
    if document.kind == "text":
        try:
            report = object_of(plain_yaml(decode_text(document.content.raw)))
        except ValueError as error:
            yield refuse("", "invalid_yaml", f"no YAML that can be read: {error}: import the report as JSON", None)
            return
    question = object_of(report.get("config")) or object_of(report.get("args"))
    benchmarks = report.get("benchmarks")
    if not isinstance(benchmarks, list) or not benchmarks:
        yield NoResult("/benchmarks", "no benchmark")
        return
    for i, benchmark in enumerate(benchmarks):
        pointer = f"/benchmarks/{i}"
        if not isinstance(benchmark, dict) or not isinstance(benchmark.get("metrics"), dict):
            yield refuse(pointer, "unexpected_shape", "a benchmark with metrics was expected", benchmark)
            continue
        yield record(_report(benchmark, question), document.source_path, pointer)


def _report(benchmark: Mapping[str, Any], question: Mapping[str, Any]) -> LoadReport:
    metrics, totals = benchmark["metrics"], object_of(_of_either(benchmark, "metrics", "request_totals"))
    strategy = object_of(_of_either(benchmark, "config", "strategy") or _of_either(benchmark, "args", "strategy"))
    rate, users = _requested_load(strategy)
    successful = {name: object_of(object_of(metric).get("successful")) for name, metric in metrics.items()}

    def of(name: str, factor: float = 1.0) -> dict[str, float]:
        found = successful.get(name, {})
        return {
            **statistics(found, factor, _STATISTICS),
            **statistics(found.get("percentiles"), factor, _PERCENTILES),
        }

    return LoadReport(
        model=_model(question, benchmark),
        answered=count(totals.get("successful")),
        failed=count(totals.get("errored")),
        concurrency=users,
        request_rate=rate,
        input_tokens=of("prompt_token_count").get("mean"),
        output_tokens=of("output_token_count").get("mean"),
        first_token_ms=of("time_to_first_token_ms"),
        output_token_ms=of("inter_token_latency_ms"),
        whole_ms=of("request_latency", MS_PER_S),
        requests_per_s=of("requests_per_second").get("mean"),
        output_tokens_per_s=of("output_tokens_per_second").get("mean"),
        stated={
            "strategy": text_of(strategy.get("type_")),
            **{
                name: {key: value for key, value in of(name).items() if key in ("mean", "p50", "p99")}
                for name in ("time_to_first_token_ms", "time_per_output_token_ms", "inter_token_latency_ms")
            },
        },
        times=(benchmark.get("start_time"),),
        error=_first_error(benchmark),
    )


def _of_either(benchmark: Mapping[str, Any], place: str, name: str) -> Any:
    """Return a member of the place, or of the benchmark itself."""
    found = object_of(benchmark.get(place)).get(name)
    return benchmark.get(name) if found is None else found


def _first_error(benchmark: Mapping[str, Any]) -> str | None:
    failed = object_of(benchmark.get("requests")).get("errored")
    first = object_of(failed[0]) if isinstance(failed, list) and failed else {}
    return text_of(object_of(first.get("info")).get("error") or first.get("error"))


def _requested_load(strategy: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the requested requests per second and requests at once; None for the one that was not requested."""
    kind = strategy.get("type_")
    if kind == "synchronous":
        return None, 1
    if kind == "concurrent":
        return None, strategy.get("streams", strategy.get("max_concurrency"))
    return quantity(strategy.get("rate")), None


def _model(question: Mapping[str, Any], benchmark: Mapping[str, Any]) -> str | None:
    asked = object_of(object_of(question.get("spec")).get("backend")).get("model") or question.get("model")
    backend = object_of(object_of(benchmark.get("config")).get("backend"))
    return text_of(asked or backend.get("model") or object_of(benchmark.get("worker")).get("backend_model"))
