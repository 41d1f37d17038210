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
