"""One file taken apart: the documents it consists of, each announced by its hash before it is read, as a flow of steps.

Documents nest: what lies between a `Begun` and its `Done` belongs to it. What is found inside another document, or in
an archive, is done before the one around it, so that what is known of the outer one holds for all inside it. What
becomes of the steps is `importer.py`; they can be sent between processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from uuid import UUID

from accel_platform.events import Event
from accel_platform.events.codec import Row, to_rows
from migrations.claims import NOTHING_CLAIMED, Claims
from migrations.documents import Content, Document, Origin, parse
from migrations.reading import Reading, embedded_document, quarantine, read


@dataclass(frozen=True)
class Begun:
    """A document was met."""

    origin: Origin


@dataclass(frozen=True)
class Kept:
    """Some of the events of the innermost document, as rows."""

    rows: list[Row]


@dataclass(frozen=True)
class Done:
    """The innermost document ends. `entry` is the event of its ledger entry; None where its content was known."""

    entry: Event | None


Step = Begun | Kept | Done
Known = Callable[[Origin], bool]
"""Whether a document need not be read, for its content is accounted for."""


def take(
    content: Content,
    known: Known,
    *,
    document: Document | None = None,
    around: Claims = NOTHING_CLAIMED,
    supersedes: UUID | None = None,
) -> Iterator[Step]:
    """The steps of one document, which may be parsed already, and of all inside it. Never raises for what it holds."""
    yield Begun(content.origin)
    if known(content.origin):
        yield Done(None)
        return
    try:
        reading = read(document or parse(content), around, supersedes)
    except Exception as error:  # noqa: BLE001  # whatever one file does to its parser, the others are to be read
        reading = quarantine(content, "unreadable", f"reading it failed: {type(error).__name__}: {error}")
    for part in reading.embedded:
        inside = embedded_document(content, part)
        yield from take(inside.content, known, document=inside, around=reading.claims)
    yield from _finish(reading)


def _finish(reading: Reading) -> Iterator[Step]:
    entry, *others = reading.events
    if others:
        yield Kept(to_rows(others))
    yield Done(entry)
