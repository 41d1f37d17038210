"""Which operators multiply matrices or convolve, by the names that ONNX graphs give them. No runtime is imported."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from accel_platform.backends.base import share

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
    )
)


def is_product(operator: str) -> bool:
    return operator in _FLOATING or operator in _INTEGER


def integer_share(operators: Iterable[str], precision: str) -> float | None:
    """Of the products among these operators, those in int8, or for another precision those that are not."""
    wanted = _INTEGER if precision == "int8" else _FLOATING
    return share(Counter(operator in wanted for operator in operators if is_product(operator)))
