"""Operators of a training step: those of the forward pass, of its gradients, and of Adam's update of the weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from accel_platform.workloads.operators import Operator, OperatorProfile
from predictor.operators.tables import is_depthwise

_ADAM_READS, _ADAM_WRITES = 4, 3
"""Numbers per parameter that Adam reads (weight, gradient, two moments) and writes (weight, two moments)."""
_DEPTHWISE_SLOWDOWN = 4.0
"""Time of each gradient of a depthwise convolution over that of an operator that moves its numbers.

Chosen among 1 to 6: the mean log error of nine models' steps on an RTX 3090 (pack `timm`) is nearest 0. Steps of other
GPUs bear it out, see `benchmarks/results/latency.md`.
"""


def training_step(profile: OperatorProfile, *, updates_weights: bool = True) -> OperatorProfile:
    """Return the operators of a training step, in the order of execution, from those of a forward pass."""
    parameters = profile.parameters if updates_weights else 0.0
    return replace(profile, of_two=_step(profile.of_two, parameters), of_three=_step(profile.of_three, parameters))


def _step(forward: tuple[Operator, ...], parameters: float) -> tuple[Operator, ...]:
    gradients = tuple(gradient for operator in forward for gradient in _gradients(operator))
    adam = Operator("elementwise", "adam", (_ADAM_READS * parameters, _ADAM_WRITES * parameters, 1.0))
    return (*map(_in_training, forward), *gradients, *((adam,) if parameters else ()))


def _in_training(operator: Operator) -> Operator:
    """Return an operator of the pass as a training step computes it: batch norms first read all for the mean."""
    if not _is_batch_norm(operator):
        return operator
    read, written, slow = operator.dimensions
    return replace(operator, dimensions=(read + written, written, slow))


def _gradients(operator: Operator) -> Iterator[Operator]:
    """Yield the operators that compute an operator's gradients.

    A matrix product has two, one for each operand; a convolution and fused attention count twice. Norms read their
    input and the gradient of their output twice: for the sums over them, and for the gradient of the input. Other
    operators move numbers as in the forward pass.
    """
    kind, name, dimensions, count = operator.kind, f"{operator.name}_backward", operator.dimensions, operator.count
    if kind in ("linear", "batched_matmul"):
        *batch, m, n, k = dimensions
        yield Operator(kind, name, (*batch, m, k, n), count)
        yield Operator(kind, name, (*batch, k, n, m), count)
    elif kind == "attention":
        yield Operator(kind, name, dimensions, 2 * count)
    elif kind == "convolution":
        *_, n, _, groups, _, read, written = dimensions
        slowdown = _DEPTHWISE_SLOWDOWN if is_depthwise(groups, n) else 1.0
        yield Operator(kind, name, (*dimensions[:-2], slowdown * read, slowdown * written), 2 * count)
    elif kind == "elementwise":
        read, written, slow = dimensions
        moved = (4 * written, written) if _is_batch_norm(operator) else (read + written, read)
        yield Operator(kind, name, (*moved, slow), count)
    else:
        rows, width = dimensions
        reads = {"embedding": 1, "softmax": 2, "layer_norm": 4}[kind]
        yield Operator("elementwise", name, (reads * rows * width, rows * width, 0.0), count)


def _is_batch_norm(operator: Operator) -> bool:
    return "batch_norm" in operator.name
