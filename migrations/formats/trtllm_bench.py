"""TensorRT-LLM's `trtllm-bench` report: requests through an engine in its own process, times in milliseconds.

It names model, GPU, devices and precision. How many requests it allowed at once it does not say, only how many were
under way in the mean. First tokens and those after it are there where the run streamed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from migrations.normalize.records import Part
from migrations.normalize.row_access import object_of, pick, text_of
from migrations.normalize.units import count, quantity
from migrations.sources.documents import Document
from migrations.tools.load_report import LoadReport, record, statistics

_NAMES = {
    "average": "mean", "p50": "p50", "p90": "p90", "p95": "p95", "p99": "p99", "minimum": "min", "maximum": "max",
}  # fmt: skip
_STATED = ("system_total_throughput_tok_s", "output_throughput_per_user_tok_s", "output_throughput_per_gpu_tok_s")


def detect(document: Document) -> float:
    """Return high confidence where an engine and its world stand beside requests and their performance."""
    value = object_of(document.value) if document.kind == "json" else {}
    needed = {"engine", "world_info", "request_info", "performance"}
    return 0.95 if needed <= value.keys() and "total_latency_ms" in object_of(value["performance"]) else 0.0


def parse(document: Document) -> Iterator[Part]:
    """Yield one record of the run."""
    value: dict[str, Any] = document.value
    engine, world = object_of(value["engine"]), object_of(value["world_info"])
    requests, seen = object_of(value["request_info"]), object_of(value["performance"])
    streamed, speculation = object_of(value.get("streaming_metrics")), object_of(value.get("decoding_stats"))
    whole = statistics(seen.get("request_latency_percentiles_ms"), 1.0, _NAMES)
    yield record(
        LoadReport(
            model=text_of(engine.get("model")),
            device=text_of(object_of(value.get("machine")).get("name")),
            engine="trtllm",
            engine_version=text_of(engine.get("version")),
            precision=text_of(pick(engine, "quantization", "dtype")),
            settings={
                "devices": count(world.get("world_size"), at_least=1),
                "tensor_parallel_size": count(world.get("tp_size"), at_least=1),
                "pipeline_parallel_size": count(world.get("pp_size"), at_least=1),
                "max_batch_size": count(world.get("max_batch_size"), at_least=1),
                "backend": text_of(engine.get("backend")),
            },
            configuration={"mode": f"speculative decoding: {speculation.get('mode')}"} if speculation else None,
            answered=count(requests.get("num_requests")),
            input_tokens=quantity(requests.get("avg_input_length")),
            output_tokens=quantity(requests.get("avg_output_length")),
            first_token_ms=statistics(streamed.get("ttft_percentiles"), 1.0, _NAMES),
            output_token_ms=statistics(streamed.get("tpot_percentiles"), 1.0, _NAMES),
            whole_ms=whole or statistics(seen, 1.0, {"avg_request_latency_ms": "mean"}),
            requests_per_s=quantity(seen.get("request_throughput_req_s")),
            output_tokens_per_s=quantity(seen.get("system_output_throughput_tok_s")),
            stated={
                "requests_at_once_mean": quantity(requests.get("avg_num_concurrent_requests")),
                **{name: quantity(seen.get(name)) for name in _STATED},
            },
        ),
        document.source_path,
        "",
    )
