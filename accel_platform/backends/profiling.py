"""Operators of a run: their times, a Chrome trace, and the share of products in the requested precision."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from accel_platform.backends.base import share


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


_FLOATING = frozenset(
    (
        "MatMul",
        "Gemm",
        "Conv",
        "ConvTranspose",
        "FusedMatMul",
        "FusedGemm",
        "FusedConv",
        "Einsum",
        "Attention",
        "MultiHeadAttention",
        "GroupQueryAttention",
    )
)
_INTEGER = frozenset(
    (
        "MatMulInteger",
        "ConvInteger",
        "MatMulIntegerToFloat",
        "DynamicQuantizeMatMul",
        "QLinearMatMul",
        "QLinearConv",
        "QGemm",
        "MatMulNBits",
    )
)


def is_product(operator: str) -> bool:
    return operator in _FLOATING or operator in _INTEGER


def integer_share(operators: Iterable[str], precision: str) -> float | None:
    """Return the share of the products among these operators in integers for int8 and int4, of others otherwise."""
    wanted = _INTEGER if precision in ("int8", "int4") else _FLOATING
    return share(Counter(operator in wanted for operator in operators if is_product(operator)))
