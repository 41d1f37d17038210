"""MLPerf inference's `mlperf_log_summary.txt`: a scenario's rate and latencies in nanoseconds, as lines of text."""

from __future__ import annotations

import re
from collections.abc import Iterator

from migrations.normalize.records import Record, RefusedCell
from migrations.normalize.row_access import first_positive
from migrations.normalize.units import quantity
from migrations.sources.documents import Document
from migrations.tools import mlperf

_TITLE = "MLPerf Results Summary"
_RATES = (
    "Samples per second", "Completed samples per second", "Scheduled samples per second", "QPS w/o loadgen overhead",
    "QPS w/ loadgen overhead",
)  # fmt: skip
_TOKENS = ("Tokens per second", "Completed tokens per second")
_MORE = re.compile(r".*(?:latency|time to first token|time per output token|tokens per second).*", re.IGNORECASE)


def detect(document: Document) -> float:
    """Return high confidence where a line is the title."""
    return 0.95 if document.kind == "text" and any(_TITLE in line for line in document.value[:400]) else 0.0


def parse(document: Document) -> Iterator[Record | RefusedCell]:
    """Yield one record per summary in the text; a run for accuracy alone has no times and is none."""
    starts = [number for number, line in enumerate(document.value) if _TITLE in line]
    for start, end in zip(starts, [*starts[1:], len(document.value)], strict=True):
        found = mlperf.summary_lines(document.value[start:end])
        mode = found.get("Mode", "")
        if "accuracy" in mode.casefold():
            continue
        scenario = mlperf.scenario_of(found.get("Scenario"))
        figures = {
            "batch_size": mlperf.batch_of(scenario, found.get("samples_per_query")),
            "throughput_items_per_s": first_positive(found, *_RATES),
            "throughput_tokens_per_s": first_positive(found, *_TOKENS),
            **mlperf.latencies(found, scenario, mlperf.LATENCIES),
        }
        about = {
            "scenario": found.get("Scenario"),
            "validity": found.get("Result is"),
            "stated": {
                name: number
                for name, value in found.items()
                if (name in (*_RATES, *_TOKENS) or _MORE.fullmatch(name)) and (number := quantity(value)) is not None
            },
            "samples_per_query": found.get("samples_per_query"),
        }
        cell = mlperf.cell_of(document.source_path, f"/{start}", found.get("SUT name"), None, about)
        if any(value for key, value in figures.items() if key != "batch_size"):
            yield cell.result("ok", figures, units={"latency": "ns", "samples per second": "items/s"})
        else:
            yield cell.result(
                "failed", {}, reason=f"the summary holds no figure; its result is {found.get('Result is')}"
            )
