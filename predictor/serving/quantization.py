"""Quantizations of a served model: their names, the sizes of weights and cache, and the precision of products."""

from __future__ import annotations

from dataclasses import dataclass

from accel_platform.errors import InvalidInput
from predictor.schemas.serving import CacheType


@dataclass(frozen=True)
class Quantization:
    """Sizes in which weights and key-value cache are stored, and the precision of products."""

    weight_bytes: float
    """Bytes of a weight, with its share of the scales of its block."""
    cache_bytes: float
    """Bytes of one number of keys and values."""
    computed_in: str
    """Precision of the matrix products, as `peak_ops_per_s` names it."""


QUANTIZATIONS = {
    "bfloat16": Quantization(2.0, 2.0, "bfloat16"),
    "float16": Quantization(2.0, 2.0, "float16"),
    "fp8": Quantization(1.0, 1.0, "float8"),
    "int8": Quantization(1.0, 2.0, "int8"),
    # Blocks of 16 (nvfp4) or 32 (mxfp4) weights share a scale of 8 bits; groups of 128 (awq, gptq) a scale and a zero.
    "fp4": Quantization(0.5625, 1.0, "float4"),
    "int4": Quantization(0.52, 2.0, "bfloat16"),
}
INTEGERS = frozenset(("int8", "int4"))
"""Quantizations in whole numbers."""
LOW_BIT_FLOATS = frozenset(("fp8", "fp4"))
"""Quantizations that not every device computes in, and not every engine widens."""
_QUANTIZATION_NAMES = {
    "bf16": "bfloat16", "fp16": "float16", "half": "float16", "float8": "fp8", "e4m3": "fp8", "fp8_block": "fp8",
    "w8a8": "int8", "w8a16": "int8", "q8_0": "int8", "nvfp4": "fp4", "mxfp4": "fp4", "float4": "fp4", "awq": "int4",
    "gptq": "int4", "w4a16": "int4", "int4_wo": "int4", "q4_0": "int4", "q4_k_m": "int4",
}  # fmt: skip
STATE_BYTES = 4.0
"""Bytes of a number in the state of a linear layer: repositories ask for 32 bits (`mamba_ssm_dtype`)."""
CACHE_BYTES: dict[CacheType, float] = {"bfloat16": 2.0, "fp8": 1.0}
"""Bytes of one number of keys and values, by the type that a query asks for."""


def resolve_quantization(name: str) -> str:
    """Return the quantization of this name: `fp4` for nvfp4. Raises InvalidInput with the known names."""
    word = name.strip().casefold()
    found = _QUANTIZATION_NAMES.get(word, word)
    if found not in QUANTIZATIONS:
        known = ", ".join([*QUANTIZATIONS, *_QUANTIZATION_NAMES])
        raise InvalidInput(f"No quantization is called {name!r}. Known: {known}.")
    return found
