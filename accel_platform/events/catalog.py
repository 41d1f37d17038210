"""Catalogs: one compressed file that names every segment of many snapshots and packs, each name once.

Compaction writes it, so that a reader knows the contents of packs without reading them. It is never the only source.
A pack also names its own segments, and a snapshot has a file of its own until a catalog holds it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from accel_platform.events.segment_set import Snapshot


@dataclass(frozen=True)
class Entry:
    """One snapshot, as the difference to the entry before it."""

    id: str
    added: Sequence[str]
    removed: Sequence[str]


@dataclass(frozen=True)
class Pack:
    """Contents of a pack."""

    segments: frozenset[str]
    events: int
    """Number of events."""


@dataclass(frozen=True)
class Catalog:
    """Snapshots in the order of their size, and what packs hold, by pack id."""

    entries: tuple[Entry, ...]
    packs: Mapping[str, Pack]
    packed: Snapshot
    """The segments of all packs."""

    @cached_property
    def ids(self) -> frozenset[str]:
        """Ids of the snapshots."""
        return frozenset(entry.id for entry in self.entries)

    @classmethod
    def of(cls, entries: Iterable[Entry], packs: Mapping[str, Pack], near: Snapshot | None) -> Catalog:
        """Return a catalog; `near` is a snapshot with many of the packs' segments, None if none is known."""
        return cls(tuple(entries), packs, Snapshot(_union(packs), near))

    def encode(self) -> bytes:
        """Return the content of the catalog's file."""
        places: dict[str, int] = {}
        packed = (sorted(pack.segments) for pack in self.packs.values())
        for names in (*(entry.added for entry in self.entries), *packed):
            for name in names:
                places.setdefault(name, len(places))
        content = {
            "names": list(places),
            "snapshots": [[e.id, _ranges(e.added, places), _ranges(e.removed, places)] for e in self.entries],
            "packs": [[i, pack.events, _ranges(pack.segments, places)] for i, pack in sorted(self.packs.items())],
            "product": f"{self.packed.product:x}",
        }
        text = json.dumps(content, separators=(",", ":")).encode()
        # The length goes first, because pyarrow's zstd needs the decompressed size.
        compressed: bytes = pa.Codec("zstd", 9).compress(text, asbytes=True)
        return len(text).to_bytes(8, "little") + compressed

    @classmethod
    def decode(cls, data: bytes) -> Catalog:
        """Return the catalog that a file holds."""
        size = int.from_bytes(data[:8], "little")
        content = json.loads(pa.decompress(data[8:], size, codec="zstd", asbytes=True))
        if isinstance(content, list):  # versions before December 2026 listed snapshots alone
            return cls.of((Entry(*entry) for entry in content), {}, None)
        names = content["names"]
        entries = tuple(Entry(i, _names(a, names), _names(r, names)) for i, a, r in content["snapshots"])
        packs = {i: Pack(frozenset(_names(ranges, names)), events) for i, events, ranges in content["packs"]}
        return cls(entries, packs, Snapshot.of_product(_union(packs), int(content["product"], 16)))


def file_name(data: bytes) -> str:
    """Return the name of a catalog's file, which holds the hash of its content."""
    return f"catalog-{hashlib.sha256(data).hexdigest()[:32]}.json.zst"


def _union(packs: Mapping[str, Pack]) -> frozenset[str]:
    return frozenset[str]().union(*(pack.segments for pack in packs.values()))


def _ranges(names: Collection[str], places: Mapping[str, int]) -> list[int]:
    """Return the places of the names as starts and ends of ranges, one after another."""
    ranges: list[int] = []
    for place in sorted(places[name] for name in names):
        if ranges and ranges[-1] == place:
            ranges[-1] = place + 1
        else:
            ranges += [place, place + 1]
    return ranges


def _names(ranges: Sequence[int], names: Sequence[str]) -> list[str]:
    return [name for start, end in zip(ranges[::2], ranges[1::2], strict=True) for name in names[start:end]]
