"""Operators that multiply matrices or convolve, by their names in ONNX graphs."""

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
    """Return the share of the products among these operators in int8, or for another precision of the others."""
    wanted = _INTEGER if precision == "int8" else _FLOATING
    return share(Counter(operator in wanted for operator in operators if is_product(operator)))
