"""Lower bound of the memory that a batch takes, from the operators of its model."""

from __future__ import annotations

from accel_platform.workloads.operators import DIMENSIONS, Operator, OperatorProfile


def least_numbers_per_item(profile: OperatorProfile) -> float:
    """Return the numbers that one operator holds at once for each item of a batch: those of the largest.

    It is a lower bound for every runtime on GPUs and CPUs. Weights are not counted, because they do not grow with the
    batch. Of attention and of operators that move numbers nothing is counted, because runtimes fuse them and work in
    place.
    """
    return max(map(_held_per_item, profile.of_two, profile.of_three), default=0.0)


def _held_per_item(two: Operator, three: Operator) -> float:
    """Return the numbers that an operator holds for each item; 0 where none have to be."""
    if two.kind == "linear":
        return three.moved - two.moved
    if two.kind != "convolution":
        return 0.0
    of_two, of_three = (dict(zip(DIMENSIONS[two.kind], op.dimensions, strict=True)) for op in (two, three))
    # The smaller side of one, because a depthwise convolution may be fused to the other. Of that nothing is sure.
    smaller = min(of_three[side] - of_two[side] for side in ("read", "written"))
    return smaller if of_two["groups"] == 1 else 0.0
