"""Documented fallbacks for failed cells, by failure class and in order. Add a fallback here."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from accel_platform.bench.measure.failures import FailureReason
from accel_platform.bench.plan.plan import Cell
from accel_platform.bench.prepare.artifacts import Exporter
from accel_platform.workloads.sources import is_sourced

FallbackName = Literal[
    "second_attempt", "float32", "eager_attention", "torchscript_exporter", "openvino_converter", "smaller_batch"
]

_GRAPH_FALLBACKS: tuple[FallbackName, ...] = ("eager_attention", "torchscript_exporter", "openvino_converter")
_FALLBACKS: dict[str, tuple[FallbackName, ...]] = {
    "not_exported": _GRAPH_FALLBACKS,
    "attention": ("eager_attention",),
    "unsupported_operator": ("float32", *_GRAPH_FALLBACKS),
    "invalid_model": ("torchscript_exporter", "openvino_converter"),
    "wrong_output": ("float32", *_GRAPH_FALLBACKS),
    # Try a second attempt first, so that no other fallback is credited with its success.
    "crash": ("second_attempt", *_GRAPH_FALLBACKS),
    "out_of_memory": ("smaller_batch",),
    "killed": ("smaller_batch",),
    "timeout": ("smaller_batch",),
}
"""Failure class to what may help. A class that is not here (`error`, `fake`) says nothing of what would."""
_EXPORTERS: dict[FallbackName, Exporter] = {"torchscript_exporter": "torchscript", "openvino_converter": "openvino"}


@dataclass(frozen=True)
class Fallback:
    """One alternative: the cell to measure instead, and the exporter of its graph."""

    name: FallbackName
    cell: Cell
    exporter: Exporter = "dynamo"

    def changes(self, cell: Cell) -> bool:
        """Return whether it measures another cell. Then `cell` stays failed, and the other one is recorded."""
        return (self.cell.batch_size, self.cell.precision) != (cell.batch_size, cell.precision)


def fallbacks_for(cell: Cell, cause: FailureReason, taken: Collection[Cell] = ()) -> tuple[Fallback, ...]:
    """Return the fallbacks for the cell, in order. Cells in `taken` are measured anyway: no fallback repeats them."""
    return tuple(
        fallback
        for name in _FALLBACKS.get(cause.failure_class, ())
        for fallback in _expand(name, cell, taken)
        if fallback.cell not in taken or fallback.cell == cell
    )


def _expand(name: FallbackName, cell: Cell, taken: Collection[Cell]) -> Iterator[Fallback]:
    """Yield the fallbacks of this name: several for a batch to be halved, none where it would change nothing."""
    runtime = cell.runtime
    if name == "second_attempt":
        yield Fallback(name, cell)
    elif name == "float32":
        # A runtime whose default precision is another one has no float32.
        if cell.precision != "float32" == runtime.precision:
            yield Fallback(name, replace(cell, precision="float32"))
    elif name == "eager_attention":
        if is_sourced(cell.model) or cell.model.draws_images:
            return
        eager = {**cell.model.config, "attn_implementation": "eager"}
        if eager != cell.model.config:
            yield Fallback(name, replace(cell, model=replace(cell.model, config=eager)))
    elif name == "smaller_batch":
        size = cell.batch_size // 2
        while size >= 1 and replace(cell, batch_size=size) not in taken:
            yield Fallback(name, replace(cell, batch_size=size))
            size //= 2
    # OpenVINO's converter writes a format that only OpenVINO reads.
    elif runtime.precisions.get(cell.precision) == "onnx" and (
        name != "openvino_converter" or cell.hardware == "openvino"
    ):
        yield Fallback(name, cell, _EXPORTERS[name])
