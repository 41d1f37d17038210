"""Operators of a model as tables, one array per kind, so that NumPy computes all operators of a kind at once.

`ProfileTables` gives the operators of a pass or a training step at any batch size. `kernel_parts` replaces operators by
those whose kernels were measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from accel_platform.workloads.operators import Operator, OperatorKind, OperatorProfile
from predictor.operators.features import Array


@dataclass(frozen=True)
class OperatorTable:
    """All operators of one kind in a model."""

    kind: OperatorKind
    columns: Array
    """Array of shape (dimensions, operators), with dimensions in the order of `DIMENSIONS[kind]`."""
    counts: Array
    """Number of times that the model computes each operator."""
    count: int
    """Sum of the counts."""


@dataclass(frozen=True)
class KernelPart:
    """Operators of one kind, described by the dimensions of the kernels that compute them."""

    kind: OperatorKind
    """Kind of operator in the model."""
    kernel_kind: OperatorKind
    """Kind whose kernels compute it, such as `linear` for a 1x1 convolution."""
    columns: Array
    """Array of shape (dimensions, operators), with dimensions in the order of `DIMENSIONS[kernel_kind]`."""
    counts: Array


@dataclass(frozen=True)
class ProfileTables:
    """Tables of an `OperatorProfile`, for any batch size.

    All dimensions grow linearly with the batch, so they follow from traces at two and at three items.
    """

    at_two: list[OperatorTable]
    """Tables of a batch of two items."""
    growth: list[Array]
    """Increase of each table's columns per further item."""
    minimum: list[Array]
    """Least values of the columns: 1, or 0 for a dimension that is 0."""

    @classmethod
    def of(cls, profile: OperatorProfile) -> ProfileTables:
        """Return the tables of a profile."""
        two, three = operator_tables(profile.of_two), operator_tables(profile.of_three)
        growth = [after.columns - before.columns for before, after in zip(two, three, strict=True)]
        return cls(two, growth, [np.minimum(table.columns, 1.0) for table in two])

    def at(self, batch_size: int) -> list[OperatorTable]:
        """Return the tables of a batch, with the same operators as `OperatorProfile.at`."""
        tables = []
        for table, growth, minimum in zip(self.at_two, self.growth, self.minimum, strict=True):
            columns = np.maximum(minimum, table.columns + growth * (batch_size - 2))
            tables.append(OperatorTable(table.kind, columns, table.counts, table.count))
        return tables


def operator_tables(operators: Sequence[Operator]) -> list[OperatorTable]:
    """Return the tables of a model's operators, the kinds in the order in which they appear."""
    tables = []
    for kind in dict.fromkeys(operator.kind for operator in operators):
        of_kind = [operator for operator in operators if operator.kind == kind]
        columns = np.array(np.array([operator.dimensions for operator in of_kind], dtype=float).T, order="C")
        counts = np.array([operator.count for operator in of_kind], dtype=float)
        tables.append(OperatorTable(kind, columns, counts, int(counts.sum())))
    return tables


def is_depthwise(groups: npt.ArrayLike, n: npt.ArrayLike) -> npt.NDArray[np.bool_]:
    """Return which convolutions are depthwise: those in several groups with one of `n` output channels each."""
    return np.asarray((np.asarray(groups) > 1) & (np.asarray(n) <= 1))


def kernel_parts(table: OperatorTable, bits: int) -> Iterator[KernelPart]:
    """Yield a table's operators as the kernels that compute them; each kernel kind was measured at this width."""
    if table.kind == "convolution":
        yield from _convolution_parts(table)
    elif table.kind == "attention" and bits == 32:
        # Fused attention kernels were measured in 16 bits only. In 32 bits their time is taken for that of the two
        # products (queries by keys, scores by values), without the softmax, because they write no scores either.
        b, heads, _, m, n, k, v, _ = table.columns
        products = b * heads
        both = np.stack([[products, m, n, k], [products, m, v, n]], axis=2).reshape(4, -1)
        yield KernelPart("attention", "batched_matmul", both, np.repeat(table.counts, 2))
    else:
        yield KernelPart(table.kind, table.kind, table.columns, table.counts)


def _convolution_parts(table: OperatorTable) -> Iterator[KernelPart]:
    """Yield depthwise, pointwise (1x1) and other convolutions apart, in the order of each kind's first operator."""
    b, pixels, n, k, groups, taps, read, written = table.columns
    # A depthwise convolution is as slow as an element-wise operator, because it computes little per number moved.
    depthwise = is_depthwise(groups, n)
    pointwise = (groups == 1) & (taps == 1)
    parts: list[tuple[OperatorKind, npt.NDArray[np.bool_], list[Array]]] = [
        ("elementwise", depthwise, [read, written, np.zeros_like(read)]),
        ("linear", pointwise, [b * pixels, n, k]),
        ("convolution", ~(depthwise | pointwise), list(table.columns)),
    ]
    # In the order of the model, because the last digit of sums depends on it.
    for kernel_kind, here, columns in sorted(parts, key=lambda part: int(part[1].argmax())):
        if here.any():
            yield KernelPart("convolution", kernel_kind, np.array(columns)[:, here], table.counts[here])
