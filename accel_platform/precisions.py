"""Number formats: names and aliases, widths and rounding errors. Add a precision here."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from accel_platform.errors import InvalidInput, did_you_mean


@dataclass(frozen=True)
class Precision:
    """One number format of weights."""

    name: str
    weight_bytes: float
    activation_bytes: int
    """Width of operator inputs and outputs: quantized layers here take and return float32."""
    roundoff: float
    """Largest relative error of rounding one number: 2^-p for p bits of significand.

    For int8 and int4 it is the step: 2^-7 or 2^-3 of the largest number with the same scale.
    """
    aliases: tuple[str, ...] = ()


PRECISIONS: dict[str, Precision] = {
    precision.name: precision
    for precision in (
        Precision("float64", 8, 8, 2.0**-53, ("fp64", "f64", "double")),
        Precision("float32", 4, 4, 2.0**-24, ("fp32", "f32", "float")),
        # Weights and activations of float32 whose products round their operands to 10 bits after the point.
        Precision("tf32", 4, 4, 2.0**-11),
        Precision("float16", 2, 2, 2.0**-11, ("fp16", "f16", "half")),
        Precision("bfloat16", 2, 2, 2.0**-8, ("bf16",)),
        Precision("int8", 1, 4, 2.0**-7, ("i8", "qint8")),
        Precision("int4", 0.5, 4, 2.0**-3, ("i4",)),
    )
}
MEASURABLE = ("float32", "tf32", "float16", "bfloat16", "int8", "int4")
"""The precisions that some runtime here supports."""
_WITHOUT_BITS = ("amp", "mixed", "awq", "gptq")
"""Names of several precisions at once, and of schemes that state no bits."""
_SCHEME_BITS = frozenset(("1", "2", "3", "4", "5", "6", "8", "16", "32", "64"))
"""Bits of a number in the names of schemes, such as q4_k_m, w8a16 or nf4."""
_NAMES = {alias: precision.name for precision in PRECISIONS.values() for alias in (precision.name, *precision.aliases)}


def canonical_precision(text: str) -> str:
    """Return `float32` for fp32, FP32 or torch.float32; an unknown name in lower case."""
    word = text.strip().lower().removeprefix("torch.")
    return _NAMES.get(word, word)


@lru_cache(maxsize=1_024)
def names_precision(name: str) -> bool:
    """Return whether a canonical name is that of a precision, of several, or of a scheme that states its bits."""
    return name in PRECISIONS or name in _WITHOUT_BITS or not _SCHEME_BITS.isdisjoint(re.findall(r"\d+", name))


def require_precision(text: str) -> str:
    """Return the canonical name of a precision, or of a scheme that states its bits, such as w8a8 or q4_k_m.

    Raises InvalidInput for any other text, with the closest names.
    """
    name = canonical_precision(text)
    if not names_precision(name):
        raise InvalidInput(unknown_precision(text, tuple(PRECISIONS)))
    return name


def resolve_precision(text: str) -> str:
    """Return the measurable precision of this name. Raises InvalidInput with the closest names."""
    name = canonical_precision(text)
    if name not in MEASURABLE:
        raise InvalidInput(unknown_precision(text, MEASURABLE))
    return name


def unknown_precision(text: str, known: Sequence[str]) -> str:
    """Return the message that refuses a precision: it has the closest of the known names, else all of them."""
    names = {alias: name for alias, name in _NAMES.items() if name in known} | {name: name for name in known}
    close = difflib.get_close_matches(canonical_precision(text), names, n=3)
    hint = did_you_mean((names[alias] for alias in close), otherwise=f"Known: {', '.join(known)}.")
    return f"No precision is called {text!r}. {hint}"
