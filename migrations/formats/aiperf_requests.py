"""AIPerf's `profile_export.jsonl`: a line per request with its metrics, each with its unit, of one load.

The aggregate beside it, `profile_export_aiperf.json`, is read by `genai_perf` and knows the model; this file names
neither model nor hardware, its place may.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from migrations.formats.genai_perf import is_repeated
from migrations.normalize.path_hints import neighbors
from migrations.normalize.records import NoResult, Part, refuse
from migrations.normalize.row_access import object_of, rows_of, share_of_rows, strays_of, text_of
from migrations.normalize.units import TO_MS, quantity
from migrations.sources.documents import Document
from migrations.tools.load_report import LoadReport, record

_NS_PER_S = 1e9


def detect(document: Document) -> float:
    """Return high confidence where lines have metrics and the metadata of a request."""
    if document.kind not in ("json", "json_lines") or not share_of_rows(document, "metadata", "metrics"):
        return 0.0
    first = next((row for _, row in rows_of(document)), {})
    return 0.95 if "request_start_ns" in object_of(first.get("metadata")) else 0.0


def parse(document: Document) -> Iterator[Part]:
    """Yield one record of all requests that were not warm-up."""
    for pointer, value in strays_of(document):
        yield refuse(pointer, "unexpected_shape", "an object was expected", value)
    if document.content.large_bytes:
        yield NoResult("", "too many requests to read at once: import profile_export_aiperf.json, which lies beside it")
        return
    if is_repeated(document):
        yield NoResult("", "the requests of the run in the JSON beside them: import that one")
        return
    counted = [row for _, row in rows_of(document) if _metadata(row).get("benchmark_phase", "profiling") == "profiling"]
    answered = [row for row in counted if not row.get("error") and not _metadata(row).get("was_cancelled")]
    errors = [row["error"] for row in counted if row.get("error")]
    report = _report(answered, len(counted), errors)
    yield record(replace(report, model=_asked_model(document)), document.source_path, "")


def _asked_model(document: Document) -> str | None:
    """Return the model in `inputs.json` beside the requests, which do not name it."""
    for beside in neighbors(document, containing="inputs"):
        sessions = object_of(beside).get("data")
        first = object_of(sessions[0]) if isinstance(sessions, list) and sessions else {}
        payloads = first.get("payloads")
        if isinstance(payloads, list) and payloads:
            return text_of(object_of(payloads[0]).get("model"))
    return None


def _report(answered: Sequence[dict[str, Any]], requests: int, errors: Sequence[Any]) -> LoadReport:
    spans = [
        (quantity(_metadata(r).get("request_start_ns")), quantity(_metadata(r).get("request_end_ns"))) for r in answered
    ]
    known = [(start, end) for start, end in spans if start is not None and end is not None]
    seconds = (max(end for _, end in known) - min(start for start, _ in known)) / _NS_PER_S if known else 0.0
    tokens = _values(answered, "output_sequence_length")
    prompts = _values(answered, "input_sequence_length")
    first_error = errors[0] if errors else None
    return LoadReport(
        answered=len(answered),
        failed=requests - len(answered),
        input_tokens=float(np.mean(prompts)) if prompts else None,
        output_tokens=float(np.mean(tokens)) if tokens else None,
        first_token_ms=_statistics(_values(answered, "time_to_first_token")),
        output_token_ms=_statistics(_values(answered, "inter_token_latency")),
        whole_ms=_statistics(_values(answered, "request_latency")),
        requests_per_s=len(answered) / seconds if seconds else None,
        output_tokens_per_s=sum(tokens) / seconds if seconds and tokens else None,
        times=(min(start for start, _ in known),) if known else (),
        error=text_of(object_of(first_error).get("message")) or text_of(first_error),
    )


def _metadata(row: dict[str, Any]) -> dict[str, Any]:
    return object_of(row.get("metadata"))


def _values(rows: Sequence[dict[str, Any]], name: str) -> list[float]:
    """Return one metric of the requests that have it; times in ms."""
    found = []
    for row in rows:
        metric = object_of(object_of(row.get("metrics")).get(name))
        value = quantity(metric.get("value"))
        if value is not None:
            found.append(value * TO_MS.get(str(metric.get("unit")), 1.0))
    return found


def _statistics(values: Sequence[float]) -> dict[str, float]:
    if not values:
        return {}
    percentiles = {f"p{of}": float(np.percentile(values, of)) for of in (50, 90, 95, 99)}
    return {
        "mean": float(np.mean(values)),
        "std": float(np.std(values)),
        "min": min(values),
        "max": max(values),
        **percentiles,
    }
