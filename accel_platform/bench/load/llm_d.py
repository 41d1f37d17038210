"""A measured load as a Benchmark Report of llm-d, version 0.2, which other tools of Kubernetes read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from accel_platform.errors import InvalidInput

VERSION = "0.2"
TOOL = "accel"
"""Named as the tool of the load; its time per output token is that after the first token."""
_STATISTICS = ("mean", "p50", "p90", "p95", "p99", "min", "max")

LIST_COMMAND = """`accel db query "SELECT event_id FROM results WHERE mode = 'generation'"`"""
"""Command that lists results that a report may be of."""


def llm_d_report(event_id: str, result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the report of one result, given as its event's payload.

    Raises InvalidInput where the result is no load, or lacks a mean, which reports need.
    """
    original = result.get("original") or {}
    first = _token_times(result, "ttft", "time_to_first_token_ms")
    token = _token_times(result, "tpot", "time_per_output_token_ms")
    whole = {name: result.get(f"latency_{name}_ms") for name in _STATISTICS}
    if result.get("status") != "ok" or first.get("p50") is None:
        raise InvalidInput(
            f"Result {event_id} is no load on a served model: it has no time to the first token. "
            f"{LIST_COMMAND} lists those that may have one."
        )
    if first.get("mean") is None:
        raise InvalidInput(f"Result {event_id} does not say its mean time to the first token, which a report needs.")
    answered, failed = result.get("iterations"), original.get("failed_requests") or 0
    aggregate = {
        "requests": _known(
            total=(answered or 0) + failed,
            failures=failed,
            input_length=_length(result.get("sequence_length")),
            output_length=_length(result.get("output_tokens")),
        ),
        "latency": _known(
            time_to_first_token=_statistics(first, "ms"),
            time_per_output_token=_statistics(token, "ms/token"),
            request_latency=_statistics(whole, "ms"),
        ),
        "throughput": _known(
            output_token_rate=_statistics({"mean": result.get("throughput_tokens_per_s")}, "tokens/s"),
            request_rate=_statistics({"mean": result.get("throughput_items_per_s")}, "queries/s"),
        ),
    }
    stack = _stack(result, original)
    scenario = {"load": _load(event_id, result, original)} | ({"stack": [stack]} if stack else {})
    return {
        "version": VERSION,
        "run": {"uid": event_id, "description": f"result {event_id} of accel-platform"},
        "scenario": scenario,
        "results": {"request_performance": {"aggregate": aggregate}},
    }


def _load(event_id: str, result: Mapping[str, Any], original: Mapping[str, Any]) -> dict[str, Any]:
    rate = str(original.get("request_rate"))
    return {
        "metadata": {"schema_version": "0.0.1", "cfg_id": event_id},
        "standardized": _known(
            tool=TOOL,
            tool_version=VERSION,
            source="unknown",
            input_seq_len={"distribution": "other", "value": result.get("sequence_length") or 0},
            output_seq_len={"distribution": "other", "value": result.get("output_tokens") or 0},
            rate_qps=float(rate) if re.fullmatch(r"\d+(\.\d+)?", rate) else None,
            concurrency=original.get("concurrency"),
        ),
        "native": {},
    }


def _stack(result: Mapping[str, Any], original: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the engine on its devices; None where the result names no device."""
    named = result.get("device_name") or original.get("hardware")
    several = re.fullmatch(r"(\d+) x (.+)", str(named))
    environment = result.get("environment") or {}
    settings = environment.get("settings") or {}
    split = int(settings.get("tensor_parallel_size") or settings.get("tp_size") or 1)
    copies = int(settings.get("data_parallel_size") or settings.get("dp_size") or 1)
    count = int(several[1]) if several else int(settings.get("devices") or split * copies)
    engine = str(result.get("backend"))
    if not named or named == "not stated":
        return None
    return {
        "metadata": {"schema_version": "0.0.1", "label": "engine", "cfg_id": engine},
        "standardized": {
            "kind": "inference_engine",
            "tool": engine,
            "tool_version": str(environment.get(engine) or "unknown"),
            "role": "replica",
            "replicas": 1,
            "model": {"name": str(original.get("model") or result.get("model_id"))},
            "accelerator": {
                "model": several[2] if several else str(named),
                "count": count,
                "parallelism": {"tp": split, "dp": copies},
            },
        },
        "native": {},
    }


def _token_times(result: Mapping[str, Any], short: str, field: str) -> dict[str, Any]:
    """Return a metric's statistics: the median of the result, and what its file stated beside it."""
    stated = (result.get("original") or {}).get("stated") or {}
    named = stated.get(field)
    nested = named if isinstance(named, Mapping) else {}
    found = {name: stated.get(f"{name}_{short}_ms", nested.get(name)) for name in _STATISTICS}
    return {**found, "p50": result.get(field)}


def _length(mean: Any) -> dict[str, Any] | None:
    return None if not mean else {"units": "count", "mean": mean}


def _statistics(found: Mapping[str, Any], units: str) -> dict[str, Any] | None:
    """Return the statistics with their unit; None without a mean, which the report's form demands."""
    return None if found.get("mean") is None else {"units": units, **_known(**found)}


def _known(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
