"""inference-perf's `stage_N_lifecycle_metrics.json`: one stage of a load, in seconds; its summary of all stages.

A stage with a number of requests at once also states a rate, which was not requested. Versions from 0.7 on call the
lengths of prompts `prompt_tokens`. Its time per output token counts pieces of the stream, and a token may have several.
So the time per token is computed from the means of whole requests and lengths. The file names neither model nor
hardware; its folder may.
"""

from __future__ import annotations

from collections.abc import Iterator

from migrations.normalize.records import Part
from migrations.normalize.row_access import object_of
from migrations.normalize.units import MS_PER_S, count, quantity
from migrations.sources.documents import Document
from migrations.tools.load_report import LoadReport, Statistics, record, statistics

_NAMES = {"median": "p50", **{name: name for name in ("mean", "p90", "p95", "p99", "min", "max")}}
_OLD_NAMES = {**_NAMES, "p50": "p50"}
_TIMES = ("time_to_first_token", "time_per_output_token", "normalized_time_per_output_token", "inter_token_latency")


def detect(document: Document) -> float:
    """Return high confidence where successes with latencies stand beside failures and the summary of the load."""
    if document.kind != "json":
        return 0.0
    value = object_of(document.value)
    successes = object_of(value.get("successes"))
    return 0.95 if "load_summary" in value and "failures" in value and "latency" in successes else 0.0


def parse(document: Document) -> Iterator[Part]:
    """Yield one record."""
    load, successes = object_of(document.value["load_summary"]), object_of(document.value["successes"])
    latency, rates = object_of(successes.get("latency")), object_of(successes.get("throughput"))
    failures = object_of(document.value.get("failures"))
    prompts = successes.get("prompt_len") or successes.get("prompt_tokens")

    def times(name: str) -> Statistics:
        found = object_of(latency.get(name))
        return statistics(found, MS_PER_S, _NAMES if "median" in found else _OLD_NAMES)

    yield record(
        LoadReport(
            answered=count(successes.get("count")),
            failed=count(failures.get("count")),
            concurrency=load.get("concurrency"),
            request_rate=None if load.get("concurrency") else quantity(load.get("requested_rate")),
            input_tokens=quantity(object_of(prompts).get("mean")),
            output_tokens=quantity(object_of(successes.get("output_len")).get("mean")),
            first_token_ms=times("time_to_first_token"),
            whole_ms=times("request_latency"),
            requests_per_s=quantity(rates.get("requests_per_sec")),
            output_tokens_per_s=quantity(rates.get("output_tokens_per_sec")),
            stated={
                f"{name}_ms": {key: value for key, value in times(name).items() if key in ("mean", "p50", "p99")}
                for name in _TIMES
                if name in latency
            },
        ),
        document.source_path,
        "",
    )
