"""Ledger of imported documents, read once from the log, and event ids that follow from content."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from uuid import UUID

from accel_platform.events import Event, EventLog
from accel_platform.events.types import DocumentImported
from migrations.pipeline.batches import SEGMENT_PREFIX
from migrations.sources.documents import Origin

_NUMBER_BITS = 36


@dataclass(frozen=True)
class Entry:
    """One ledger entry and the event that holds it."""

    event: Event
    document: DocumentImported


class Ledger:
    """The newest entry of every content and path. Entries added during a run are included."""

    def __init__(self, log: EventLog) -> None:
        self._by_content: dict[str, dict[str, Entry]] = defaultdict(dict)
        self._superseded: dict[UUID, Entry] = {}
        entries = log.read(log.snapshot().beginning(SEGMENT_PREFIX), types={"DocumentImported"})
        for event in sorted(entries, key=lambda event: event.recorded_at):
            self.add(event)

    def add(self, event: Event) -> None:
        assert isinstance(event.payload, DocumentImported)
        origin = Origin(event.payload.source_path, event.payload.content_sha256, event.payload.size_bytes)
        entry = self._by_content[key_of(origin)][origin.source_path] = Entry(event, event.payload)
        if event.payload.supersedes is not None:
            self._superseded[event.payload.supersedes] = entry

    def knows(self, origin: Origin) -> bool:
        """Return whether this content needs no reading, under whatever path it was met."""
        return key_of(origin) in self._by_content

    def keys(self) -> frozenset[str]:
        """Return the keys (`key_of`) of all known contents."""
        return frozenset(self._by_content)

    def own(self, origin: Origin) -> Entry | None:
        """Return the entry of this content under this path."""
        return self._by_content[key_of(origin)].get(origin.source_path) if self.knows(origin) else None

    def unopened(self, source_path: str) -> Entry | None:
        """Return the entry of a file that could not be opened, and since then was not either."""
        unopened = Origin(source_path, "", 0)
        own = self.own(unopened)
        return own if own is not None and own.event.event_id not in self._superseded else None

    def require(self, origin: Origin) -> DocumentImported:
        """Return the existing entry of this content and path."""
        return self._by_content[key_of(origin)][origin.source_path].document

    def first(self, origin: Origin) -> Entry | None:
        """Return the entry of this content under any path, preferably not a duplicate."""
        entries = self._by_content[key_of(origin)].values() if self.knows(origin) else ()
        return min(entries, key=lambda entry: entry.document.outcome == "duplicate", default=None)

    def newest(self, entry: Entry) -> Entry:
        """Return the entry that has taken this one's place, if any has."""
        while (later := self._superseded.get(entry.event.event_id)) is not None:
            entry = later
        return entry

    def entries(self) -> Iterator[Entry]:
        """Yield the entries of all contents and paths."""
        return (entry for paths in self._by_content.values() for entry in paths.values())

    def quarantined(self) -> Iterator[Entry]:
        """Yield the documents now in quarantine, in a stable order."""
        quarantined = (entry for entry in self.entries() if entry.document.outcome == "quarantined")
        found = (entry for entry in quarantined if entry.event.event_id not in self._superseded)
        yield from sorted(found, key=lambda entry: (entry.document.source_path, entry.document.content_sha256))


def key_of(origin: Origin) -> str:
    """Return the content hash, or the name of a file that cannot be opened."""
    return origin.sha256 or f"unopened {origin.source_path}"


def numbered_id(of: str, number: int = 0) -> UUID:
    """Return the id of the numbered event of something: a UUID version 8 (RFC 9562)."""
    return UUID(bytes=numbered_bytes(of, number))


def numbered_bytes(of: str, number: int) -> bytes:
    """Return the bytes of `numbered_id`.

    The same document gives the same events, however often it is imported, and the warehouse counts an id once.
    It holds 86 bits of the SHA-256 of `of` and, last, the number below 2^36, so ids of one document compress well.
    """
    return (_base(of) | number).to_bytes(16, "big")


@lru_cache(maxsize=64)
def _base(of: str) -> int:
    digest = int.from_bytes(hashlib.sha256(of.encode()).digest()[:16], "big")
    return digest >> _NUMBER_BITS << _NUMBER_BITS & ~(0xF << 76) & ~(0x3 << 62) | 8 << 76 | 2 << 62
