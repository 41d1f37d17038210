"""Operators of a training step: the forward pass, its gradients, and the update of the parameters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from accel_platform.workloads.operators import Operator

_ADAM_READS, _ADAM_WRITES = 4, 3
"""Numbers per parameter that Adam reads (weight, gradient, two moments) and writes (weight, two moments)."""


def training_step(forward: Sequence[Operator], parameters: float = 0.0) -> tuple[Operator, ...]:
    """Return the operators of a step: forward and backward, and Adam's update of so many parameters."""
    backward = [gradient for operator in forward for gradient in _gradients(operator)]
    update = Operator("elementwise", "adam", (_ADAM_READS * parameters, _ADAM_WRITES * parameters, 1.0))
    return (*forward, *backward, *((update,) if parameters else ()))


def _gradients(operator: Operator) -> Iterable[Operator]:
    """Yield the operators that compute the gradients of one: of a product two products, of others what they touch."""
    dimensions, count = operator.dimensions, operator.count
    if operator.kind == "linear":
        m, n, k = dimensions
        yield Operator("linear", operator.name, (m, k, n), count)
        yield Operator("linear", operator.name, (k, n, m), count)
    elif operator.kind == "batched_matmul":
        b, m, n, k = dimensions
        yield Operator("batched_matmul", operator.name, (b, m, k, n), count)
        yield Operator("batched_matmul", operator.name, (b, k, n, m), count)
    elif operator.kind in ("convolution", "attention"):
        yield Operator(operator.kind, operator.name, dimensions, 2 * count)
    elif operator.kind in ("softmax", "layer_norm"):
        rows, width = dimensions
        yield Operator("elementwise", operator.name, (2 * rows * width, rows * width, 0.0), count)
    elif operator.kind == "elementwise":
        read, written, slow = dimensions
        yield Operator("elementwise", operator.name, (read + written, read, slow), count)
    else:
        rows, width = dimensions
        yield Operator("elementwise", operator.name, (rows * width, rows * width, 0.0), count)
