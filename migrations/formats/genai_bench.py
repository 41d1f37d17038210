"""genai-bench's file of one scenario and number of requests at once, in the time unit that it states.

Model, engine and GPUs are in `experiment_metadata.json` beside it. Error requests are left out of all statistics.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from migrations.normalize.path_hints import neighbors
from migrations.normalize.records import Part
from migrations.normalize.row_access import object_of, pick, text_of
from migrations.normalize.units import TO_MS, count, quantity
from migrations.sources.documents import Document
from migrations.tools.load_report import STATISTICS, LoadReport, record, statistics

_NAMES = {**{name: name for name in STATISTICS}, "stddev": "std"}


def detect(document: Document) -> float:
    """Return high confidence where aggregated metrics hold the statistics of requests."""
    value = object_of(document.value) if document.kind == "json" else {}
    stats = object_of(object_of(value.get("aggregated_metrics")).get("stats"))
    return 0.95 if {"ttft", "e2e_latency"} <= stats.keys() else 0.0


def parse(document: Document) -> Iterator[Part]:
    """Yield one record of the run."""
    metrics = object_of(document.value["aggregated_metrics"])
    stats = object_of(metrics["stats"])
    factor = TO_MS.get(str(document.value.get("_time_unit") or "s"), 1e3)
    about = next((value for value in map(object_of, neighbors(document, containing="experiment_metadata"))), {})

    def of(name: str, factor: float = 1.0) -> dict[str, float]:
        return statistics(stats.get(name), factor, _NAMES)

    by_batch = metrics.get("iteration_type") == "batch_size"
    yield record(
        LoadReport(
            model=text_of(pick(about, "model", "api_model_name")),
            device=text_of(about.get("server_gpu_type")),
            engine=_engine(about),
            engine_version=text_of(about.get("server_version")),
            settings={"devices": count(about.get("server_gpu_count"), at_least=1)},
            answered=count(metrics.get("num_completed_requests")),
            failed=count(metrics.get("num_error_requests")),
            concurrency=None if by_batch else metrics.get("num_concurrency"),
            input_tokens=of("num_input_tokens").get("mean"),
            output_tokens=of("num_output_tokens").get("mean"),
            first_token_ms=of("ttft", factor),
            output_token_ms=of("tpot", factor),
            whole_ms=of("e2e_latency", factor),
            requests_per_s=quantity(metrics.get("requests_per_second")),
            output_tokens_per_s=quantity(metrics.get("mean_output_throughput_tokens_per_s")),
            stated={
                "scenario": text_of(metrics.get("scenario")),
                "texts_per_request": count(metrics.get("batch_size"), at_least=1) if by_batch else None,
                "task": text_of(about.get("task")),
            },
            error=_first_error(document.value.get("individual_request_metrics")),
        ),
        document.source_path,
        "",
    )


def _engine(about: dict[str, Any]) -> str | None:
    name = text_of(about.get("server_engine"))
    return name.casefold() if name else None


def _first_error(requests: Any) -> str | None:
    found = requests if isinstance(requests, list) else []
    return next((message for one in found if (message := text_of(object_of(one).get("error_message")))), None)
