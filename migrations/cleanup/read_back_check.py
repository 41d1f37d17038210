"""Proof that the log holds everything in a file: a fresh reading against the stored events.

Each document of the file needs its ledger entry and, caused by it, exactly the events that the present readers give.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from uuid import UUID

from accel_platform.events import EventLog
from accel_platform.events.codec import COLUMN, Row, to_rows
from accel_platform.events.types import DocumentImported
from accel_platform.table_io.values import count_of
from migrations.pipeline.ledger import Entry, Ledger
from migrations.pipeline.unpack import DocumentRows, DocumentStart, iter_steps
from migrations.sources.documents import Content, Origin, bytes_of

_TYPE, _VERSION, _OCCURRED_AT, _HOST_ID, _PAYLOAD, _SAMPLES = (
    COLUMN[name] for name in ("type", "schema_version", "occurred_at", "host_id", "payload", "samples_ns")
)


class UnprovenFile(Exception):
    """Reason why a file is not proven."""


@dataclass
class EventDigest:
    """Number of some events and the sum of their content digests, independent of order."""

    events: int = 0
    total: int = 0

    def add(self, row: Row) -> None:
        self.events += 1
        self.total = (self.total + _digest(row)) % 2**256


@dataclass(frozen=True)
class DocumentClaim:
    """Content of one document, to be found as the events of this ledger entry."""

    ledger_id: UUID
    digest: EventDigest


@dataclass
class _Document:
    """A document that has begun, and the digest of its events so far."""

    origin: Origin
    inside_a_copy: bool
    digest: EventDigest = field(default_factory=EventDigest)
    is_whole: bool = False
    """True if its quarantine gives back exactly its bytes: no byte order mark lost, nothing cut."""
    has_parts: bool = False


def entry_of(origin: Origin, ledger: Ledger) -> Entry:
    """Return the entry of this content under this path. Raises UnprovenFile."""
    own = ledger.own(origin)
    if own is None:
        other = ledger.first(origin)
        elsewhere = f", only under {other.document.source_path}" if other else ""
        raise UnprovenFile(f"its content is not in the ledger{elsewhere}: `accel migrate` imports it")
    return own


def document_claims(content: Content, ledger: Ledger) -> Iterator[DocumentClaim]:
    """Yield the claims of a file and of every document inside it on the log. Raises UnprovenFile."""
    begun: list[_Document] = []
    for step in iter_steps(content, lambda _: False):
        if isinstance(step, DocumentStart):
            begun.append(_Document(step.origin, bool(begun) and _is_duplicate(begun[-1], ledger)))
        elif isinstance(step, DocumentRows):
            document = begun[-1]
            for row in step.rows:
                document.digest.add(row)
                document.is_whole = document.is_whole or _holds_original(row, document.origin)
        else:
            document = begun.pop()
            if begun:
                begun[-1].has_parts = True
            assert step.entry is not None
            assert isinstance(step.entry.payload, DocumentImported)
            try:
                yield _claim(document, step.entry.payload, ledger)
            except UnprovenFile as doubt:
                inside = document.origin.source_path[len(content.source_path) :]
                raise UnprovenFile(f"{inside}: {doubt}" if inside else str(doubt)) from None


def stored_digests(log: EventLog, entries: Iterable[UUID]) -> dict[UUID, EventDigest]:
    """Return digests of the events caused by each of these ledger entries; repeated events count once."""
    wanted = set(entries)
    found: dict[UUID, EventDigest] = defaultdict(EventDigest)
    seen: set[bytes] = set()
    if wanted:
        for event in log.read(types={"ResultRecorded", "RecordQuarantined"}):
            if event.causation_id in wanted and event.event_id.bytes not in seen:
                seen.add(event.event_id.bytes)
                found[event.causation_id].add(to_rows([event])[0])
    return found


def difference(claims: Iterable[DocumentClaim], stored: dict[UUID, EventDigest]) -> str | None:
    """Return in words how a fresh reading and the log differ; None where they are equal."""
    for claim in claims:
        there = stored.get(claim.ledger_id, EventDigest())
        if there != claim.digest:
            differ = ", and they differ" if there.events == claim.digest.events else ""
            return f"read today it gives {count_of(claim.digest.events, 'event')}, the log holds {there.events}{differ}"
    return None


def _is_duplicate(outer: _Document, ledger: Ledger) -> bool:
    """Return whether the import recorded a document as a duplicate, and therefore nothing inside it."""
    return outer.inside_a_copy or entry_of(outer.origin, ledger).document.outcome == "duplicate"


def _claim(document: _Document, today: DocumentImported, ledger: Ledger) -> DocumentClaim:
    origin = document.origin
    entry = ledger.first(origin) if document.inside_a_copy else entry_of(origin, ledger)
    if entry is not None and entry.document.outcome == "duplicate":
        entry = ledger.first(origin)
    if entry is None or entry.document.outcome == "duplicate":
        raise UnprovenFile("the log lacks the document that it is a duplicate of")
    outcome = entry.document.outcome
    if today.outcome != outcome:
        raise UnprovenFile(
            f"read today it is {_describe_outcome(today)}, in the ledger {_describe_outcome(entry.document)}"
        )
    if outcome == "not_results":
        raise UnprovenFile("it holds no results, so the log has nothing of it but the ledger entry")
    if outcome == "quarantined" and not document.is_whole:
        raise UnprovenFile("quarantined, and the log does not hold it byte for byte")
    if not document.digest.events and not document.has_parts:
        raise UnprovenFile("the log has nothing of it but the ledger entry")
    return DocumentClaim(entry.event.event_id, document.digest)


def _holds_original(row: Row, origin: Origin) -> bool:
    """Return whether a quarantined row holds the whole document, byte for byte."""
    if row[_TYPE] != "RecordQuarantined":
        return False
    text: str = json.loads(row[_PAYLOAD])["content"]
    return any(hashlib.sha256(raw).hexdigest() == origin.sha256 for raw in bytes_of(text))


def _describe_outcome(entry: DocumentImported) -> str:
    return entry.outcome.replace("_", " ") + (f" ({entry.reason})" if entry.reason else "")


def _digest(row: Row) -> int:
    """Return a digest of an event's content, without ids, clock and path of the envelope."""
    payload = json.loads(row[_PAYLOAD])
    payload.pop("source_path", None)
    happened = row[_OCCURRED_AT] if row[_TYPE] == "ResultRecorded" else None
    content = [row[_TYPE], row[_VERSION], payload, row[_SAMPLES], row[_HOST_ID], happened and happened.isoformat()]
    return int.from_bytes(hashlib.sha256(json.dumps(content, sort_keys=True).encode()).digest(), "big")
