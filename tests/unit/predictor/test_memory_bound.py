"""The least memory that a batch takes counts what runtimes cannot avoid, and nothing else."""

from __future__ import annotations

from accel_platform.workloads.operators import Operator, OperatorProfile
from predictor.operators.memory_bound import least_numbers_per_item


def _numbers(*operators: tuple[Operator, Operator]) -> float:
    two, three = zip(*operators, strict=True)
    return least_numbers_per_item(OperatorProfile(two, three, 0.0))


def _linear(rows: float) -> Operator:
    return Operator("linear", "addmm", (rows, 3072, 768))


def _convolution(items: int, groups: int) -> Operator:
    weights, read, written = 1_000, items * 50, items * 400
    return Operator("convolution", "convolution", (items, 100, 4, 9, groups, 9, read + weights, written))


def test_a_product_holds_its_inputs_and_outputs_and_no_weights_by_item() -> None:
    assert _numbers((_linear(2 * 128), _linear(3 * 128))) == 128 * (768 + 3072)


def test_the_largest_operator_counts() -> None:
    assert _numbers((_linear(2), _linear(3)), (_linear(20), _linear(30)), (_linear(4), _linear(6))) == 38_400


def test_of_a_convolution_the_smaller_side_counts() -> None:
    assert _numbers((_convolution(2, 1), _convolution(3, 1))) == 50
    assert _numbers((_convolution(2, 4), _convolution(3, 4))) == 0


def test_what_runtimes_fuse_and_what_does_not_grow_is_not_counted() -> None:
    rise = [Operator("elementwise", "relu", (n * 1e6, n * 1e6, 0.0)) for n in (2, 3)]
    scores = [Operator("batched_matmul", "bmm", (n, 512.0, 512.0, 64.0)) for n in (2, 3)]
    assert _numbers((rise[0], rise[1]), (scores[0], scores[1]), (_linear(7), _linear(7))) == 0
    assert least_numbers_per_item(OperatorProfile((), (), 0.0)) == 0
