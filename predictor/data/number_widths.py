"""Bytes of a number by the name of its precision, also where figures state none."""

from __future__ import annotations

import re
from functools import lru_cache

from accel_platform.precisions import PRECISIONS

UNSTATED = "unstated"
HALF_PRECISION_BYTES = 2
"""Bytes of a number in `amp`, in a key-value cache, and in a published checkpoint of unstated precision."""


@lru_cache(maxsize=1_024)
def weight_bytes(precision: str, mode: str) -> float:
    """Return the bytes of one weight by the precision's name: half a byte for `int4`.

    A name without bits means float32, or 16 bits for generation and `amp`.
    """
    precision_spec = PRECISIONS.get(precision)
    if precision_spec:
        return precision_spec.weight_bytes
    bits = re.search(r"(64|32|16|8|4)", precision)
    if bits:
        return int(bits.group()) / 8
    return 4 if precision == UNSTATED and mode != "generation" else HALF_PRECISION_BYTES


@lru_cache(maxsize=1_024)
def activation_bytes_per_number(precision: str) -> float:
    """Return the bytes of a number between layers by the precision's name: 2 at least where the name is unknown."""
    precision_spec = PRECISIONS.get(precision)
    if precision_spec:
        return precision_spec.activation_bytes
    return max(HALF_PRECISION_BYTES, weight_bytes(precision, "inference"))
