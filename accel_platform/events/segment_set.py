"""Sets of segments, which snapshots of the log are, and the ids that stand for them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property

from accel_platform.events import set_hash


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
        """Product of the segment names, see `set_hash`."""
        near, names = self.near, self.segments
        object.__setattr__(self, "near", None)  # so that a row of snapshots does not keep all before it in memory
        if near is not None:
            added, removed = names - near.segments, near.segments - names
            if len(added) + len(removed) < len(names):
                return set_hash.divide(set_hash.multiply(near.product, added), removed)
        return set_hash.multiply(set_hash.EMPTY, names)

    @property
    def is_hashed(self) -> bool:
        """True if the id is known without hashing names."""
        return "product" in self.__dict__

    @cached_property
    def id(self) -> str:
        """Hash of the set of segment names, 32 hex digits; equal ids mean equal events."""
        return set_hash.digest(self.product)

    def has_id(self, snapshot_id: str) -> bool:
        """Return whether this is the snapshot's id, or the hash of the sorted names, its id before December 2026."""
        former = hashlib.sha256("\n".join(sorted(self.segments)).encode()).hexdigest()[:32]
        return snapshot_id in (former, self.id)

    def beginning(self, prefix: str) -> Snapshot:
        """Return the snapshot of the segments whose names begin with `prefix`."""
        return Snapshot(frozenset(name for name in self.segments if name.startswith(prefix)))
