"""The time, rate and memory of one call, wherever an old test put them: beside its output, inside it, or in metrics.

Keys without a unit are seconds. Tokens per second and memory that is no peak are kept as the file states them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from migrations.normalize.field_aliases import stated_ms
from migrations.normalize.units import MS_PER_S, count, number, quantity, scaled

_IN_S = ("elapsed_time", "average_inference_time", "avg_inference_time", "inference_time", "inference_time_seconds",
         "average_time", "avg_time", "mean_time", "total_time", "processing_time", "processing_time_seconds",
         "generation_time", "generation_time_seconds", "latency_seconds", "latency_s")  # fmt: skip
_IN_MS = ("latency_ms", "average_latency_ms", "avg_latency_ms", "inference_time_ms", "elapsed_time_ms",
          "total_time_ms", "processing_time_ms", "generation_time_ms")  # fmt: skip
_RATES = (
    "throughput",
    "throughput_items_per_second",
    "items_per_second",
    "samples_per_second",
    "embeddings_per_second",
)
_TOKENS = ("tokens_per_second", "tokens_per_sec", "generation_tokens_per_second", "output_tokens_per_second")
_STATED = re.compile(r"(time|latency|duration|memory|tokens?|per_second|factor|throughput)(_|$)|_(mb|gb|ms|s)$")
_PEAK = re.compile(r"(peak|max)_.*memory.*_mb|memory_(peak|max)_mb|peak_memory_mb")
_INSIDE = ("output", "performance", "performance_metrics", "metrics", "metadata", "benchmark")
_BATCH_OF = re.compile(r"[Bb]atch of (?P<size>\d+)\b")


@dataclass(frozen=True)
class Timing:
    """Figures of one call. `key` is where the latency stood, `stated` every other figure as the file wrote it."""

    key: str
    figures: Mapping[str, Any]
    units: Mapping[str, str]
    stated: Mapping[str, Any] = field(default_factory=dict)


def timing_in(value: Mapping[str, Any]) -> Timing | None:
    """Return the timing of one call; None without a time or rate anywhere in it."""
    found = list(_levels(value))
    latency = next(_latencies(found), None)
    rate = next((q for level in found for k in _RATES if (q := quantity(level.get(k))) is not None), None)
    if latency is None and rate is None:
        return None
    key, milliseconds, unit = latency or ("throughput", None, "items/s")
    stated = {k: v for level in reversed(found) for k, v in level.items() if k != key and _is_stated(k, v)}
    peak = next((quantity(v) for k, v in stated.items() if _PEAK.fullmatch(k)), None)
    figures = {
        "latency_mean_ms": milliseconds,
        "throughput_items_per_s": rate,
        "memory_peak_mib": peak,
        "batch_size": _batch_size(value, found),
        "throughput_tokens_per_s": next((q for k, v in stated.items() if k in _TOKENS and (q := quantity(v))), None),
        "iterations": next((n for level in found if (n := count(level.get("iterations"))) is not None), None),
        "mode": "generation" if any(re.search("generat|token", k) for k in (key, *stated)) else "inference",
    }
    return Timing(key, figures, {key: unit, **({"throughput": "items/s"} if rate is not None else {})}, stated)


def operation_time(key: str, value: Any) -> Timing | None:
    """Return the time of one named operation in seconds (`audio_embedding_time`); None for another key."""
    milliseconds = scaled(value, MS_PER_S)
    return None if milliseconds is None else Timing(key, {"latency_mean_ms": milliseconds}, {key: "s"})


def _levels(value: Mapping[str, Any], depth: int = 2) -> Iterator[Mapping[str, Any]]:
    """Yield the object and the objects inside it that hold figures, the outer first."""
    yield value
    for key in _INSIDE:
        inner = value.get(key)
        if isinstance(inner, dict) and depth:
            yield from _levels(inner, depth - 1)


def _latencies(levels: list[Mapping[str, Any]]) -> Iterator[tuple[str, float, str]]:
    for level in levels:
        for keys, unit in ((_IN_S, "s"), (_IN_MS, "ms")):
            for key in keys:
                if (milliseconds := stated_ms(level.get(key), unit)) is not None:
                    yield key, milliseconds, unit


def _is_stated(key: str, value: Any) -> bool:
    return number(value) is not None and bool(_STATED.search(key))


def _batch_size(value: Mapping[str, Any], levels: list[Mapping[str, Any]]) -> int | None:
    """Return the stated batch size, or the first dimension of the output, or of `Batch of 2 texts`; else None."""
    for level in levels:
        if (stated := count(level.get("batch_size"), at_least=1)) is not None:
            return stated
    match = _BATCH_OF.search(value["input"]) if isinstance(value.get("input"), str) else None
    if match:
        return count(match["size"], at_least=1)
    for level in levels:
        for key in ("embedding_shape", "output_shape"):
            shape = level.get(key)
            if isinstance(shape, list) and len(shape) > 1:
                return count(shape[0], at_least=1)
    return None
