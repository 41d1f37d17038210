"""Operator profiles: times per operator, and the Chrome trace of a run."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable


@dataclass(frozen=True)
class OperatorTime:
    """All executions of one kind of operator in a profiled pass, without what they call in turn."""

    operator: str
    count: int
    total_ms: float


@runtime_checkable
class ProfilingBackend(Protocol):
    """A backend whose runtime keeps operator times. They cost time themselves, so no figure is taken meanwhile."""

    def operators(self, *, runs: int, trace: Path) -> list[OperatorTime]:
        """Run what is bound that often under a profiler; write a Chrome trace. A `compile` or `close` follows.

        Raises Unsupported where the runtime keeps no times of this device.
        """
        ...


def sum_by_operator(spans: Iterable[tuple[str, float]]) -> list[OperatorTime]:
    """Add up executions (operator, microseconds) by operator."""
    found: dict[str, list[float]] = defaultdict(list)
    for operator, duration_us in spans:
        found[operator].append(duration_us)
    return [OperatorTime(name, len(durations), sum(durations) / 1e3) for name, durations in found.items()]


def write_trace(spans: Sequence[tuple[str, str, float]], trace: Path) -> None:
    """Write a Chrome trace of (node, operator, microseconds) end to end, for runtimes that report durations only."""
    events, at = [], 0.0
    for node, operator, duration_us in spans:
        event = {"name": node, "cat": operator, "ph": "X", "ts": at, "dur": duration_us, "pid": 0, "tid": 0}
        events.append(event)
        at += duration_us
    trace.write_text(json.dumps({"traceEvents": events}), encoding="utf-8")
