"""What the log knows of documents, read once: which content was looked at, under which paths, and what became of it."""

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
        """Whether this content needs no reading, under whatever path it was met."""
        return key_of(origin) in self._by_content

    def keys(self) -> frozenset[str]:
        """Of every content that is known (`key_of`)."""
        return frozenset(self._by_content)

    def own(self, origin: Origin) -> Entry | None:
        """The entry of this content under this very path."""
        return self._by_content[key_of(origin)].get(origin.source_path) if self.knows(origin) else None

    def require(self, origin: Origin) -> DocumentImported:
        """The entry that is there of this content and path."""
        return self._by_content[key_of(origin)][origin.source_path].document

    def first(self, origin: Origin) -> Entry | None:
        """The entry of this content under any path, rather of what was read than of a duplicate."""
        entries = self._by_content[key_of(origin)].values() if self.knows(origin) else ()
        return min(entries, key=lambda entry: entry.document.outcome == "duplicate", default=None)

    def quarantined(self) -> Iterator[Entry]:
        """The documents in quarantine as of now, in a stable order."""
        entries = (entry for paths in self._by_content.values() for entry in paths.values())
        found = (entry for entry in entries if entry.document.outcome == "quarantined")
        yield from sorted(found, key=lambda entry: (entry.document.source_path, entry.document.content_sha256))


def key_of(origin: Origin) -> str:
    """After the content; a file that cannot be opened has none, so its name stands in until it can."""
    return origin.sha256 or f"unopened {origin.source_path}"
