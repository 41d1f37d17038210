"""Tests of remote language model services: queues, back-off, keys, model lists. No hardware is measured.

Their seconds and tokens per second are those of somebody else's service behind a network, on hardware nobody names.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from migrations.normalize.canonical_names import hardware_of_key
from migrations.normalize.records import members_of
from migrations.sources.documents import Document

NOT_RESULTS = "tests of a remote service, on hardware that nobody names"

_QUEUES = {"backoff_test", "queue_test", "backoff_recovery", "basic_queue", "queue_sizes", "circuit_breaker",
           "queue_tests", "backoff_tests", "multiplexing_test", "round_robin_test"}  # fmt: skip
_MODELS = {"known_models", "api_models", "missing_models", "undocumented_models"}
_FEATURES = {"temperature_results", "system_prompt_results", "streaming_results", "model_comparison"}
_ERROR = {"status", "error", "traceback", "timestamp"}
_CALL_RATES = {"tokens_per_second", "tokens_per_sec", "avg_tokens_per_second", "average_tokens_per_second"}
_CALL = {"response", "tokens", "usage", "model", "success", "avg_time", "time", "completion_tokens", "total_tokens"}
_HARDWARE = {"hardware", "device", "platform", "backend", "gpu", "device_name", "framework"}
_OUTCOMES = ("success", "fail", "error", "valid", "pass", "skip", "not ")


def detect(document: Document) -> float:
    """Return high confidence for the tests' own keys; lower for an error alone, or of outcomes in words that concern no
    hardware.
    """
    value = document.value
    if not isinstance(value, dict) or not value or any(hardware_of_key(key) for key in value):
        return 0.0
    nested = value["results"] if isinstance(value.get("results"), dict) else {}
    if (
        (value.keys() | nested.keys()) & _QUEUES
        or len(value.keys() & _MODELS) >= 2
        or len(value.keys() & _FEATURES) >= 2
    ):
        return 0.8
    if isinstance(value.get("tests"), dict) and {"success_count", "total_tests"} <= value.keys():
        return 0.8
    if {"status", "error", "traceback"} <= value.keys() <= _ERROR:
        return 0.6
    return 0.6 if _rates(value) or _only_outcomes(value) else 0.0


def _rates(value: Any, depth: int = 4) -> bool:
    """Return whether calls of a service state tokens per second, or a time with tokens, by model without hardware."""
    calls = [entry for entry in _objects(value, depth) if entry.keys() & _CALL_RATES and entry.keys() & _CALL]
    return bool(calls) and not any(entry.keys() & _HARDWARE for entry in _objects(value, depth))


def _objects(value: Any, depth: int) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
    if depth:
        for _, member in members_of(value):
            yield from _objects(member, depth - 1)


def _only_outcomes(value: dict[str, Any]) -> bool:
    """Return whether the values are texts by test name, nearly all outcomes of tests, without a number."""
    texts = [text for text in value.values() if isinstance(text, str)]
    plain = all(isinstance(member, str | bool | list) for member in value.values())
    outcomes = sum(text.casefold().startswith(_OUTCOMES) for text in texts)
    return plain and len(texts) >= 3 and outcomes >= 0.8 * len(texts)
