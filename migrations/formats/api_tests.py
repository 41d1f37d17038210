"""Tests of remote language model services: queues, back-off, keys, model lists. No hardware is measured.

Their seconds and tokens per second are those of somebody else's service behind a network, on hardware nobody names.
"""

from __future__ import annotations

from typing import Any

from migrations.documents import Document
from migrations.identity import hardware_of_key

NOT_RESULTS = "tests of a remote service, on hardware that nobody names"

_QUEUES = {"backoff_test", "queue_test", "backoff_recovery", "basic_queue", "queue_sizes", "circuit_breaker",
           "queue_tests", "backoff_tests", "multiplexing_test", "round_robin_test"}  # fmt: skip
_MODELS = {"known_models", "api_models", "missing_models", "undocumented_models"}
_FEATURES = {"temperature_results", "system_prompt_results", "streaming_results", "model_comparison"}
_ERROR = {"status", "error", "traceback", "timestamp"}
_OUTCOMES = ("success", "fail", "error", "valid", "pass", "skip", "not ")


def recognise(document: Document) -> float:
    """Sure of the tests' own keys; less so of an error alone, or of outcomes in words that concern no hardware."""
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


def _rates(value: dict[str, Any]) -> bool:
    """Calls of services by model, with tokens per second and no hardware."""
    calls = [entry for entry in value.values() if isinstance(entry, dict)]
    calls += [
        entry for calls_ in value.values() if isinstance(calls_, list) for entry in calls_ if isinstance(entry, dict)
    ]
    services = [
        c
        for c in calls
        if c.keys() & {"tokens_per_second", "tokens_per_sec"} and c.keys() & {"response", "tokens", "usage"}
    ]
    return bool(services) and not any(c.keys() & {"hardware", "device", "platform"} for c in services)


def _only_outcomes(value: dict[str, Any]) -> bool:
    """Texts by test name, nearly all of them the outcome of a test, and no number anywhere."""
    texts = [text for text in value.values() if isinstance(text, str)]
    plain = all(isinstance(member, str | bool | list) for member in value.values())
    outcomes = sum(text.casefold().startswith(_OUTCOMES) for text in texts)
    return plain and len(texts) >= 3 and outcomes >= 0.8 * len(texts)
