"""Cells of micro-benchmarks: code timed by itself on a processor, without model or batch.

They are kept as the family `microbenchmark`; matrix, models and evidence leave that family out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from migrations.normalize.record_builder import CellDraft, Machine, NamesInFile
from migrations.normalize.records import child
from migrations.normalize.units import MS_PER_S, scaled

HOST_CPU = "the host's processor (cpu)"
LATENCIES = {
    "mean": "latency_mean_ms", "median": "latency_p50_ms", "min": "latency_min_ms", "max": "latency_max_ms",
    "stddev": "latency_std_ms",
}  # fmt: skip
"""Figures by the names of statistics in files."""


def cell(
    source_path: str,
    pointer: str,
    name: Any,
    *,
    tool: str,
    times: Sequence[Any] = (),
    host: Mapping[str, Any] | None = None,
    cpu: str | None = None,
    software: Mapping[str, str] | None = None,
    original: Mapping[str, Any] | None = None,
) -> CellDraft:
    """Return the cell of one timed piece of code, with its exact name."""
    return CellDraft(
        source_path,
        pointer,
        NamesInFile((name,), HOST_CPU, runtime=tool, is_microbenchmark=True),
        times=times,
        machine=Machine(host=host or {}, device_names={"cpu": cpu} if cpu else {}, software=software or {}),
        original={"tool": tool, **(original or {})},
    )


def latencies(statistics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures of statistics that a file states in seconds."""
    return {figure: scaled(statistics.get(name), MS_PER_S) for name, figure in LATENCIES.items()}


def member(pointer: str, *steps: str | int) -> str:
    """Return a pointer some steps further in."""
    for step in steps:
        pointer = child(pointer, step)
    return pointer
