"""Ledger of imported documents, read once from the log: contents, their paths and outcomes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from accel_platform.events import Event, EventLog
from accel_platform.events.types import DocumentImported
from migrations.pipeline.batches import SEGMENT_PREFIX
from migrations.sources.documents import Origin


@dataclass(frozen=True)
class Entry:
    """One ledger entry and the event that holds it."""

    event: Event
    document: DocumentImported


class Ledger:
    """The newest entry of every content and path. What a run adds is known from then on."""

    def __init__(self, log: EventLog) -> None:
        self._by_content: dict[str, dict[str, Entry]] = defaultdict(dict)
        entries = log.read(log.snapshot().beginning(SEGMENT_PREFIX), types={"DocumentImported"})
        for event in sorted(entries, key=lambda event: event.recorded_at):
            self.add(event)

    def add(self, event: Event) -> None:
        assert isinstance(event.payload, DocumentImported)
        origin = Origin(event.payload.source_path, event.payload.content_sha256, event.payload.size_bytes)
        self._by_content[key_of(origin)][origin.source_path] = Entry(event, event.payload)

    def knows(self, origin: Origin) -> bool:
        """Return whether this content needs no reading, under whatever path it was met."""
        return key_of(origin) in self._by_content

    def keys(self) -> frozenset[str]:
        """Return the keys (`key_of`) of all known contents."""
        return frozenset(self._by_content)

    def own(self, origin: Origin) -> Entry | None:
        """Return the entry of this content under this path."""
        return self._by_content[key_of(origin)].get(origin.source_path) if self.knows(origin) else None

    def require(self, origin: Origin) -> DocumentImported:
        """Return the existing entry of this content and path."""
        return self._by_content[key_of(origin)][origin.source_path].document

    def first(self, origin: Origin) -> Entry | None:
        """Return the entry of this content under any path, preferably not a duplicate."""
        entries = self._by_content[key_of(origin)].values() if self.knows(origin) else ()
        return min(entries, key=lambda entry: entry.document.outcome == "duplicate", default=None)

    def quarantined(self) -> Iterator[Entry]:
        """Yield the documents now in quarantine, in a stable order."""
        entries = (entry for paths in self._by_content.values() for entry in paths.values())
        found = (entry for entry in entries if entry.document.outcome == "quarantined")
        yield from sorted(found, key=lambda entry: (entry.document.source_path, entry.document.content_sha256))


def key_of(origin: Origin) -> str:
    """Return the content hash, or the name of a file that cannot be opened."""
    return origin.sha256 or f"unopened {origin.source_path}"
