"""Operators of a model as tables, one for each kind: what is computed for one is computed for all, at any batch.

They are the operators of a pass (`ProfileTables`), of a training step (`training_tables`), and those of which kernels
were measured (`priced_parts`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from accel_platform.workloads.operators import Operator, OperatorKind, OperatorProfile
from predictor.operators.features import Array

_ADAM_READS, _ADAM_WRITES = 4, 3
"""Numbers per parameter that Adam reads (weight, gradient, two moments) and writes (weight, two moments)."""


@dataclass(frozen=True)
class OperatorTable:
    """All operators of one kind in a model."""

    kind: OperatorKind
    columns: Array
    """A row for each dimension, in the order of `DIMENSIONS[kind]`; a column for each operator."""
    counts: Array
    """Times that the model computes each."""
    places: Array
    """Place of each in the order of the model."""
    count: int
    """Sum of the counts."""


@dataclass(frozen=True)
class PricedPart:
    """Operators of one kind, as kernels were measured that tell about them."""

    kind: OperatorKind
    """Kind in the model."""
    priced_as: OperatorKind
    columns: Array
    counts: Array


@dataclass(frozen=True)
class ProfileTables:
    """Tables of an `OperatorProfile`, for any batch size."""

    of_two: list[OperatorTable]
    growth: list[Array]
    """Growth of each table's columns by one more item."""
    least: list[Array]
    """Bounds of the columns from below."""
    parameters: float

    @classmethod
    def of(cls, profile: OperatorProfile) -> ProfileTables:
        """Return the tables of a profile."""
        two, three = operator_tables(profile.of_two), operator_tables(profile.of_three)
        growth = [more.columns - less.columns for less, more in zip(two, three, strict=True)]
        return cls(two, growth, [np.minimum(table.columns, 1.0) for table in two], profile.parameters)

    def at(self, batch_size: int) -> list[OperatorTable]:
        """Return the tables of a batch, whose operators are those of `OperatorProfile.at`."""
        found = []
        for table, growth, least in zip(self.of_two, self.growth, self.least, strict=True):
            columns = np.maximum(least, table.columns + growth * (batch_size - 2))
            found.append(OperatorTable(table.kind, columns, table.counts, table.places, table.count))
        return found


def operator_tables(operators: Sequence[Operator]) -> list[OperatorTable]:
    """Return the tables of a model's operators, the kinds in the order in which they appear."""
    found = []
    for kind in dict.fromkeys(operator.kind for operator in operators):
        places = [place for place, operator in enumerate(operators) if operator.kind == kind]
        columns = np.array([operators[place].dimensions for place in places], dtype=float).T
        counts = np.array([operators[place].count for place in places], dtype=float)
        found.append(_table(kind, columns, counts, np.array(places, dtype=float)))
    return found


def _table(kind: OperatorKind, columns: Array | Sequence[Array], counts: Array, places: Array) -> OperatorTable:
    return OperatorTable(kind, np.array(columns, order="C"), counts, places, int(counts.sum()))


def training_tables(forward: Sequence[OperatorTable], parameters: float = 0.0) -> list[OperatorTable]:
    """Return the tables of a step: forward and backward, and Adam's update of so many parameters."""
    after = sum(len(table.counts) for table in forward)
    step = {table.kind: [table] for table in forward}
    for table in forward:
        for gradient in _gradients(table, after):
            step.setdefault(gradient.kind, []).append(gradient)
    if parameters:
        columns = np.array([[_ADAM_READS * parameters], [_ADAM_WRITES * parameters], [1.0]])
        step.setdefault("elementwise", []).append(_table("elementwise", columns, np.ones(1), np.array([math.inf])))
    return [_joined(kind, tables) for kind, tables in step.items()]


def _joined(kind: OperatorKind, tables: Sequence[OperatorTable]) -> OperatorTable:
    """Return tables of one kind as one, in the order of the model."""
    places = np.concatenate([table.places for table in tables])
    order = np.argsort(places, kind="stable")
    columns = np.concatenate([table.columns for table in tables], axis=1)[:, order]
    return _table(kind, columns, np.concatenate([table.counts for table in tables])[order], places[order])


def _gradients(table: OperatorTable, after: int) -> Iterator[OperatorTable]:
    """Yield the operators that compute gradients: of a product two products, of others what they touch.

    Their places follow those of the `after` operators of the pass.
    """
    columns, counts, places = table.columns, table.counts, after + 2 * table.places
    if table.kind in ("linear", "batched_matmul"):
        *copies, m, n, k = columns
        yield _table(table.kind, [*copies, m, k, n], counts, places)
        yield _table(table.kind, [*copies, k, n, m], counts, places + 1)
    elif table.kind in ("convolution", "attention"):
        yield _table(table.kind, columns, 2 * counts, places)
    elif table.kind == "elementwise":
        read, written, slow = columns
        yield _table("elementwise", [read + written, read, slow], counts, places)
    else:
        rows, width = columns
        numbers = rows * width
        reads = numbers if table.kind == "embedding" else 2 * numbers
        yield _table("elementwise", [reads, numbers, np.zeros_like(numbers)], counts, places)


def priced_parts(table: OperatorTable, bits: int) -> Iterator[PricedPart]:
    """Yield the operators of which the time of a table's operators is made up, as kernels of these were measured."""
    if table.kind == "convolution":
        yield from _convolution_parts(table)
    elif table.kind == "attention" and bits == 32:
        # Fused kernels were measured in 16 bits alone. In 32 they write no scores either, so the products remain.
        b, heads, _, m, n, k, v, _ = table.columns
        copies = b * heads
        both = np.stack([[copies, m, n, k], [copies, m, v, n]], axis=2).reshape(4, -1)
        yield PricedPart("attention", "batched_matmul", both, np.repeat(table.counts, 2))
    else:
        yield PricedPart(table.kind, table.kind, table.columns, table.counts)


def _convolution_parts(table: OperatorTable) -> Iterator[PricedPart]:
    b, pixels, n, k, groups, taps, read, written = table.columns
    # A depthwise convolution computes little for what it moves.
    depthwise = (groups > 1) & (n <= 1)
    pointwise = (groups == 1) & (taps == 1)
    parts: list[tuple[OperatorKind, np.typing.NDArray[np.bool_], list[Array]]] = [
        ("elementwise", depthwise, [read, written, np.zeros_like(read)]),
        ("linear", pointwise, [b * pixels, n, k]),
        ("convolution", ~(depthwise | pointwise), list(table.columns)),
    ]
    # In the order of the model, because sums depend on it.
    for priced_as, here, columns in sorted(parts, key=lambda part: int(part[1].argmax())):
        if here.any():
            yield PricedPart("convolution", priced_as, np.array(columns)[:, here], table.counts[here])
