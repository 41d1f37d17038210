"""AccelMark's `result.json` of one scenario: a served model under requests one at a time, or under eight at once.

A file states neither the lengths nor the number of requests: both follow from its suite, whose prompts are fixed.
Output tokens and times per token follow from rates, where the file states none.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from migrations.normalize.records import NoResult, Part, refuse
from migrations.normalize.row_access import object_of, rows_of, share_of_rows, strays_of, text_of
from migrations.normalize.units import MS_PER_S, count, quantity
from migrations.sources.documents import Document
from migrations.tools.load_report import LoadReport, record

_OF_A_MINUTE = ("requests_completed", "tokens_out", "throughput_tokens_per_sec", "ttft_ms_p50")
"""Fields that each sample of a sustained run must state."""


class _Suite(NamedTuple):
    """Prompts and number of requests, which are the same in all runs of a suite."""

    input_tokens: float
    """Mean `input_tokens` of the 500 prompts of its dataset."""
    requests: int | None = None
    """Requests of one run that asks one at a time (`interactive_request_count`); None where there is no such run."""


_STANDARD, _EDGE = 236.33, 71.886
_SUITES = {
    "suite_A": _Suite(_STANDARD, 150),
    "suite_B": _Suite(_STANDARD, 50),
    "suite_C": _Suite(_STANDARD),
    "suite_F": _Suite(_EDGE, 150),
    "suite_G": _Suite(_STANDARD, 50),
}
"""Suites by their id. Of suite D's prompts (about 28,000 tokens) lengths are unknown; E has none of the scenarios."""
_RUNS_OF_OTHER_KINDS = {
    "offline": "all requests are sent at once, whatever its concurrency says",
    "online": "requests come at a rate, and users are not limited",
    "burst": "requests come at changing rates",
    "speculative": "speculative decoding, of requests that are all sent at once",
    "accuracy": "right answers, and no times",
}


def detect(document: Document) -> float:
    """Return high confidence where results have a suite, a chip and metrics by scenario."""
    return 0.95 * share_of_rows(document, "suite_id", "implementation_id", "chip", "metrics")


def parse(document: Document) -> Iterator[Part]:
    """Yield one record per result of one of the two scenarios that state users."""
    for pointer, value in strays_of(document):
        yield refuse(pointer, "unexpected_shape", "an object was expected", value)
    for pointer, result in rows_of(document):
        scenario = text_of(object_of(result.get("task")).get("scenario"))
        suite = _SUITES.get(str(result.get("suite_id")))
        if scenario is None:
            yield NoResult(pointer, "it sums up the results of several scenarios, which are in files of their own")
        elif scenario in _RUNS_OF_OTHER_KINDS:
            yield NoResult(pointer, f"{scenario}: {_RUNS_OF_OTHER_KINDS[scenario]}")
        elif suite is None:
            yield refuse(pointer, "unexpected_shape", f"lengths of {result.get('suite_id')} are not known", result)
        else:
            yield record(_report(result, scenario, suite), document.source_path, pointer)


def _report(result: Mapping[str, Any], scenario: str, suite: _Suite) -> LoadReport:
    chip, software, model, task, meta = (
        object_of(result.get(name)) for name in ("chip", "software", "model", "task", "meta")
    )
    split, settings = object_of(task.get("parallelism")), object_of(task.get("extra_config"))
    metrics = object_of(object_of(result.get("metrics")).get(scenario))
    times = _one_at_a_time(metrics, suite) if scenario == "interactive" else _sustained(metrics)
    return LoadReport(
        model=text_of(model.get("model_id")),
        device=text_of(chip.get("name")),
        engine=text_of(software.get("framework")),
        # A plus begins the build's own name: `0.20.1+transformers-5.8.1`.
        engine_version=str(software.get("framework_version") or "").partition("+")[0] or None,
        precision=text_of(model.get("precision")),
        settings={
            "devices": count(chip.get("count"), at_least=2),
            **{name: count(split.get(name), at_least=2) for name in ("tensor_parallel_size", "data_parallel_size")},
            "quantization": text_of(model.get("quantization_method")),
        },
        configuration={"mode": "eager execution"} if settings.get("enforce_eager") is True else None,
        input_tokens=suite.input_tokens,
        times=(meta.get("benchmark_end_time"), meta.get("date")),
        **times,
    )


def _one_at_a_time(metrics: Mapping[str, Any], suite: _Suite) -> dict[str, Any]:
    """Return the load of one user. The time per token is the run's time beyond first tokens over all further tokens."""
    first, token = (_percentiles(metrics, name) for name in ("ttft", "tpot"))
    elapsed = quantity(metrics.get("elapsed_seconds_median"))
    if not elapsed or not suite.requests or not first.get("p50") or not token.get("p50"):
        return {}
    whole = elapsed * MS_PER_S / suite.requests
    return {
        "answered": suite.requests,
        "concurrency": 1,
        "output_tokens": 1 + (whole - first["p50"]) / token["p50"],
        "first_token_ms": first,
        "output_token_ms": token,
        "whole_ms": {"mean": whole},
        "stated": {"elapsed_seconds_median": elapsed, "derived": "output_tokens = 1 + (whole - first) / token"},
    }


def _sustained(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the load of users who ask again at once, from the counts of each minute after the first ones."""
    samples = metrics.get("samples")
    stated = [
        {name: quantity(sample.get(name)) or 0.0 for name in _OF_A_MINUTE}
        for sample in map(object_of, samples if isinstance(samples, list) else ())
        if not sample.get("is_warmup")
    ]
    minutes = [minute for minute in stated if all(minute.values())]
    users = count(metrics.get("sustained_concurrency"), at_least=1)
    answered, tokens = (round(sum(minute[name] for minute in minutes)) for name in ("requests_completed", "tokens_out"))
    if not users or not answered or tokens <= answered:
        return {}
    seconds = sum(minute["tokens_out"] / minute["throughput_tokens_per_sec"] for minute in minutes)
    first = statistics.median(minute["ttft_ms_p50"] for minute in minutes)
    whole = users * seconds * MS_PER_S / answered
    made = tokens / answered
    return {
        "answered": answered,
        "concurrency": users,
        "output_tokens": made,
        "first_token_ms": {"p50": first},
        "output_token_ms": {"mean": (whole - first) / (made - 1)},
        "whole_ms": {"mean": whole},
        "requests_per_s": answered / seconds,
        "output_tokens_per_s": tokens / seconds,
        "stated": {
            "sustained_throughput_tokens_per_sec": quantity(metrics.get("sustained_throughput_tokens_per_sec")),
            "derived": "latency_mean_ms = users / requests per s; time_per_output_token_ms = what follows / tokens",
        },
    }


def _percentiles(metrics: Mapping[str, Any], metric: str) -> dict[str, float]:
    found = {name: quantity(metrics.get(f"{metric}_ms_{name}")) for name in ("p50", "p90", "p99")}
    return {name: value for name, value in found.items() if value is not None}
