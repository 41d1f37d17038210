"""Unpacking of one file into a stream of steps: its documents, each announced by its hash before it is read.

Documents nest: what lies between a `DocumentStart` and its `DocumentEnd` belongs to it. Inner documents come first, so
that the entry of the outer one accounts for all inside it. Steps can be sent between processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from uuid import UUID

from accel_platform.events import Event
from accel_platform.events.codec import Row
from accel_platform.table_io.values import count_of
from migrations.detect import detect_format
from migrations.formats import Format
from migrations.normalize.records import EmbeddedDocument
from migrations.pipeline.document_reader import (
    DocumentBuilder,
    Reading,
    embedded_document,
    quarantine,
    read_document,
    shift_pointer,
)
from migrations.sources.archives import MAX_DEPTH, ArchiveKind, archive_kind, members
from migrations.sources.chunked_reader import iter_chunks
from migrations.sources.documents import Content, Document, Origin, parse
from migrations.sources.json_text import Note
from migrations.suspicion.claims import NO_CLAIMS, Claims, claims_of


@dataclass(frozen=True)
class DocumentStart:
    """A document was met."""

    origin: Origin


@dataclass(frozen=True)
class DocumentRows:
    """Some of the events of the innermost document, as rows."""

    rows: list[Row]


@dataclass(frozen=True)
class DocumentEnd:
    """The innermost document ends. `entry` is the event of its ledger entry; None where its content was known."""

    entry: Event | None


Step = DocumentStart | DocumentRows | DocumentEnd
Known = Callable[[Origin], bool]
"""Function that returns True if a document need not be read, because its content is accounted for."""
Renewal = Callable[[Content], tuple[Content, UUID | None]]
"""Function that returns a content as it is to be read, and the ledger entry that this reading replaces, if any."""


def iter_steps(
    content: Content,
    known: Known,
    *,
    document: Document | None = None,
    outer_claims: Claims = NO_CLAIMS,
    supersedes: UUID | None = None,
    renewal: Renewal | None = None,
    depth: int = 0,
) -> Iterator[Step]:
    """Yield the steps of one document and of all inside it, `depth` archives deep. Never raises for content.

    `renewal` is asked for the document and for all inside it.
    """
    if renewal is not None:
        content, supersedes = renewal(content)
        document = None if document is None else replace(document, content=content)
    yield DocumentStart(content.origin)
    if known(content.origin):
        yield DocumentEnd(None)
        return
    try:
        if document is None and (kind := archive_kind(content)) is not None:
            yield from _archive_steps(content, kind, known, supersedes, renewal, depth)
        elif content.large_bytes:
            yield from _large_document_steps(content, known, supersedes, renewal)
        else:
            yield from _document_steps(content, document or parse(content), known, outer_claims, supersedes, renewal)
    except Exception as error:  # noqa: BLE001  # whatever one file does to its parser, the others are to be read
        reason = f"reading it failed: {type(error).__name__}: {error}"
        yield from closing_steps(quarantine(content, "unreadable", reason, DocumentBuilder(content.origin, supersedes)))


def _document_steps(
    content: Content,
    document: Document,
    known: Known,
    outer_claims: Claims,
    supersedes: UUID | None,
    renewal: Renewal | None,
) -> Iterator[Step]:
    reading = read_document(document, outer_claims, supersedes)
    for part in reading.embedded:
        inside = embedded_document(content, part)
        yield from iter_steps(inside.content, known, document=inside, outer_claims=reading.claims, renewal=renewal)
    yield from closing_steps(reading)


def _large_document_steps(
    content: Content, known: Known, supersedes: UUID | None, renewal: Renewal | None
) -> Iterator[Step]:
    """Yield the steps of a document too large for memory, detected by its first chunk and read chunk by chunk.

    It has one ledger entry. Rules that compare results see one chunk at a time.
    """
    builder = DocumentBuilder(content.origin, supersedes)
    found: Format | None = None
    try:
        for chunk in iter_chunks(content):
            document = chunk.document
            if found is None:
                found = detect_format(document) if document.kind != "unreadable" else None
                if found is None or found.not_results is not None:
                    yield from closing_steps(read_document(document, NO_CLAIMS, supersedes))
                    return
                builder.format = found.name
            if not document.value:  # nothing of the document but lines between its parts
                for note in document.notes:
                    builder.note(note)
                continue
            claims = claims_of(document)
            for part in builder.add(document, found, claims, first=chunk.first):
                if isinstance(part, EmbeddedDocument):
                    inside = embedded_document(content, replace(part, pointer=shift_pointer(part.pointer, chunk.first)))
                    yield from iter_steps(inside.content, known, document=inside, outer_claims=claims, renewal=renewal)
            yield DocumentRows(builder.take_rows())
    except Exception as error:  # noqa: BLE001  # what was read before stays
        message = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        if found is None:
            yield from closing_steps(quarantine(content, "unreadable", message, builder))
            return
        reason = f"the rest cannot be read: {message}"
        builder.note(Note("unreadable_rest", reason, f"after {count_of(builder.records, 'record')}"))
    yield from closing_steps(builder.close())


def _archive_steps(
    content: Content, kind: ArchiveKind, known: Known, supersedes: UUID | None, renewal: Renewal | None, depth: int
) -> Iterator[Step]:
    """Yield the steps of every member, and the archive's own entry with their number."""
    builder = DocumentBuilder(content.origin, supersedes, kind)
    if depth >= MAX_DEPTH:
        reason = f"archives inside archives, {depth} deep: unpack it, and import its contents"
        yield from closing_steps(quarantine(content, "archive", reason, builder))
        return
    count = 0
    try:
        for count, member in enumerate(members(content, kind), start=1):  # noqa: B007  # the number is used after
            yield from iter_steps(member, known, renewal=renewal, depth=depth + 1)
    except ValueError as error:
        rest = f", after {count_of(count, 'member')}" if count else ""
        yield from closing_steps(quarantine(content, "archive", f"{error}{rest}", builder))
        return
    yield from closing_steps(builder.close("imported", f"an archive of {count_of(count, 'member')}"))


def closing_steps(reading: Reading) -> Iterator[Step]:
    """Yield the last steps of a document: its rows and its end."""
    if reading.rows:
        yield DocumentRows(reading.rows)
    yield DocumentEnd(reading.event)
