"""Coverage reports: for which hardware a test script has code, in shares and pass rates. Claims about code, derived by
reading it; nothing was run and nothing measured."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from migrations.normalize.records import members_of
from migrations.sources.documents import Document

NOT_RESULTS = "a coverage report: claims about code and pass rates, derived, with no measurement"

_PERCENTAGE = re.compile(r"\d+(\.\d+)?\s*%")
_MAX_DEPTH = 4
"""Levels of nesting that are searched for figures."""
_FIGURE = re.compile(r"latency|throughput|per_second|inference_time|elapsed|duration")


def detect(document: Document) -> float:
    """Return high confidence where coverage by platform stands beside counts of models, or pass rates beside counts of
    tests.
    """
    value = document.value
    if not isinstance(value, dict):
        return 0.0
    if "platform_coverage" in value or "hardware_coverage" in value:
        return 0.9
    rates = {"coverage_percentage", "pass_rate", "success_rate", "overall_pass_rate", "overall_coverage"}
    counts = {"total_models", "total_tests", "models_tested", "total"}
    summary = value["summary"] if isinstance(value.get("summary"), dict) else {}
    keys = value.keys() | summary.keys()
    if {"tests", "stats", "results"} & value.keys():
        return 0.0
    return 0.7 if keys & rates and keys & counts else 0.6 if _only_percentages(value) else 0.0


def _only_percentages(value: Any) -> bool:
    """Return whether rates are written as `"100.0%"`, without any time or speed beside them."""
    leaves = list(_leaves(value, _MAX_DEPTH))
    rates = [text for _, text in leaves if isinstance(text, str) and _PERCENTAGE.fullmatch(text.strip())]
    return len(rates) >= 2 and not any(_FIGURE.search(str(key)) for key, _ in leaves)


def _leaves(value: Any, depth: int) -> Iterator[tuple[Any, Any]]:
    for key, member in members_of(value):
        if isinstance(member, dict | list) and depth:
            yield from _leaves(member, depth - 1)
        else:
            yield key, member
