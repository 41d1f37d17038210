"""inference-perf's `stage_N_lifecycle_metrics.json`: one stage of a load, in seconds; its summary of all stages.

Its time per output token counts pieces of the stream, of which a token may have several, so ours follows from the means
of whole requests and lengths. The file names neither model nor hardware: its place may.
"""

from __future__ import annotations

from collections.abc import Iterator

from migrations.normalize.records import Part
from migrations.normalize.row_access import object_of
from migrations.normalize.units import MS_PER_S, count, quantity
from migrations.sources.documents import Document
from migrations.tools.load_report import LoadReport, record, statistics

_NAMES = {"mean": "mean", "median": "p50", "p90": "p90", "p95": "p95", "p99": "p99", "min": "min", "max": "max"}
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
    yield record(
        LoadReport(
            answered=count(successes.get("count")),
            failed=count(failures.get("count")),
            concurrency=load.get("concurrency"),
            request_rate=quantity(load.get("requested_rate")),
            input_tokens=quantity(object_of(successes.get("prompt_len")).get("mean")),
            output_tokens=quantity(object_of(successes.get("output_len")).get("mean")),
            first_token_ms=statistics(latency.get("time_to_first_token"), MS_PER_S, _NAMES),
            whole_ms=statistics(latency.get("request_latency"), MS_PER_S, _NAMES),
            requests_per_s=quantity(rates.get("requests_per_sec")),
            output_tokens_per_s=quantity(rates.get("output_tokens_per_sec")),
            stated={
                f"{name}_ms": {
                    key: value
                    for key, value in statistics(latency.get(name), MS_PER_S, _NAMES).items()
                    if key in ("mean", "p50", "p99")
                }
                for name in _TIMES
                if name in latency
            },
        ),
        document.source_path,
        "",
    )
