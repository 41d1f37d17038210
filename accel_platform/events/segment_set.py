"""Sets of segments, which snapshots of the log are, and the ids that stand for them.

An id is a hash of a set of names that follows additions and removals (MuHash3072). Each name is hashed to a number
modulo a prime of 3,072 bits, and a set's product is the product of these numbers. So k names more or less cost k
multiplications, however large the set is. Finding two sets with one product is as hard as the discrete logarithm modulo
that prime, about 128 bits (Bellare and Micciancio 1997). Bitcoin Core hashes its set of unspent outputs in the same
way, with the same prime.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

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


@dataclass(frozen=True)
class Snapshot:
    """The log at one moment, as the set of its segments."""

    segments: frozenset[str]
    near: Snapshot | None = field(default=None, repr=False, compare=False)
    """A snapshot with many of the same segments, if one is known: the id is computed from what differs."""

    @classmethod
    def of_product(cls, segments: frozenset[str], product: int) -> Snapshot:
        """Return a snapshot whose product is known."""
        snapshot = cls(segments)
        snapshot.__dict__["product"] = product
        return snapshot

    @cached_property
    def product(self) -> int:
        """Product of the segment names, see `multiply`."""
        near, names = self.near, self.segments
        object.__setattr__(self, "near", None)  # so that a row of snapshots does not keep all before it in memory
        if near is not None:
            added, removed = names - near.segments, near.segments - names
            if len(added) + len(removed) < len(names):
                return divide(multiply(near.product, added), removed)
        return multiply(EMPTY, names)

    @property
    def is_hashed(self) -> bool:
        """True if the id is known without hashing names."""
        return "product" in self.__dict__

    @cached_property
    def id(self) -> str:
        """Hash of the set of segment names, 32 hex digits; equal ids mean equal events."""
        return digest(self.product)

    def has_id(self, snapshot_id: str) -> bool:
        """Return whether this is the snapshot's id, or the hash of the sorted names, its id before December 2026."""
        former = hashlib.sha256("\n".join(sorted(self.segments)).encode()).hexdigest()[:32]
        return snapshot_id in (former, self.id)

    def beginning(self, prefix: str) -> Snapshot:
        """Return the snapshot of the segments whose names begin with `prefix`."""
        return Snapshot(frozenset(name for name in self.segments if name.startswith(prefix)))
