"""EvalScope's `benchmark_summary.json`: one load, with the percentiles and the arguments in files beside it.

Names and units of columns changed between versions; each tells its unit. Some of them count other tokens in the time
per output token. So it is computed from the means of whole requests, first tokens and lengths.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from migrations.normalize.path_hints import neighbors
from migrations.normalize.records import Part
from migrations.normalize.row_access import object_of, pick, text_of
from migrations.normalize.units import TO_MS, count, quantity, scaled
from migrations.sources.documents import Document
from migrations.tools.load_report import LoadReport, record

_UNITS = ("ms", "s")
_CONCURRENCY = ("Concurrency", "Number of concurrency")
_SUCCEEDED = ("Success Requests", "Succeed requests")
_FAILED = ("Failed Requests", "Failed requests")
_RATE = ("Request Rate (req/s)", "Request rate (req/s)")
_REQUESTS = ("Req Throughput (req/s)", "Request throughput (req/s)")
_TOKENS = ("Output Throughput (tok/s)", "Output token throughput (tok/s)")
_INPUT = ("Avg Input Tokens", "Average input tokens per request")
_OUTPUT = ("Avg Output Tokens", "Average output tokens per request")
_LATENCY = ("Avg Latency", "Average latency")
_FIRST = ("Avg TTFT", "Average time to first token")
_EACH = ("Avg TPOT", "Average time per output token")
_INPUT_ONLY = re.compile(r"embed|rerank", re.IGNORECASE)
_COLUMN = re.compile(r"(?P<name>.+?) \((?P<unit>ms|s)\)")
_ROW = re.compile(r"p?(?P<of>50|90|95|99)%?")


def detect(document: Document) -> float:
    """Return high confidence where the requests that succeeded stand beside their mean latency."""
    value = object_of(document.value) if document.kind == "json" else {}
    return 0.95 if _named(value, _CONCURRENCY) and _named(value, _SUCCEEDED) and _mean_ms(value, _LATENCY) else 0.0


def parse(document: Document) -> Iterator[Part]:
    """Yield one record of the load."""
    value: dict[str, Any] = document.value
    asked = next((one for one in map(object_of, neighbors(document, containing="benchmark_args"))), {})
    rows = next((rows for rows in neighbors(document, containing="benchmark_percentile") if isinstance(rows, list)), [])
    first, each, whole = _mean_ms(value, _FIRST), _mean_ms(value, _EACH), _mean_ms(value, _LATENCY)
    makes_none = _INPUT_ONLY.search(str(asked.get("api")))
    yield record(
        LoadReport(
            model=text_of(asked.get("model")),
            answered=count(pick(value, *_SUCCEEDED)),
            failed=count(pick(value, *_FAILED)),
            concurrency=pick(value, *_CONCURRENCY),
            request_rate=quantity(pick(value, *_RATE)),
            input_tokens=quantity(pick(value, *_INPUT)),
            output_tokens=0.0 if makes_none else quantity(pick(value, *_OUTPUT)),
            first_token_ms=first | _percentiles(rows, "TTFT"),
            whole_ms=whole | _percentiles(rows, "Latency"),
            requests_per_s=quantity(pick(value, *_REQUESTS)),
            output_tokens_per_s=quantity(pick(value, *_TOKENS)),
            stated={"time_per_output_token_ms": each | _percentiles(rows, "TPOT")},
        ),
        document.source_path,
        "",
    )


def _named(value: Mapping[str, Any], names: tuple[str, ...]) -> bool:
    return any(name in value for name in names)


def _mean_ms(value: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, float]:
    """Return the mean that a column of one of these names tells with its unit."""
    found = [scaled(value.get(f"{name} ({unit})"), TO_MS[unit]) for name in names for unit in _UNITS]
    return next(({"mean": figure} for figure in found if figure is not None), {})


def _percentiles(rows: list[Any], metric: str) -> dict[str, float]:
    """Return the percentiles of a metric; each row holds one of every metric."""
    found: dict[str, float] = {}
    for row in map(object_of, rows):
        of = _ROW.fullmatch(str(row.get("Percentiles")))
        for column, value in row.items():
            named = _COLUMN.fullmatch(column)
            if of and named and named["name"] == metric and (time := scaled(value, TO_MS[named["unit"]])):
                found[f"p{of['of']}"] = time
    return found
