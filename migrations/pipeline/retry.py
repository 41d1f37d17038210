"""Second reading of quarantined documents by the present readers.

The new ledger entry supersedes the old one. The bytes come from the document's place if unchanged, else from the copy
in the log.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from uuid import UUID

from accel_platform.events import Event, EventLog
from accel_platform.events.codec import COLUMN
from accel_platform.events.types import DocumentImported, RecordQuarantined
from migrations.pipeline.batches import SEGMENT_PREFIX
from migrations.pipeline.importer import Import, ImportReport, Progress
from migrations.pipeline.ledger import Entry
from migrations.pipeline.unpack import DocumentEnd, DocumentRows, DocumentStart, Known, Step, iter_steps
from migrations.sources.archives import archive_kind, members
from migrations.sources.documents import Content, Origin, bytes_of, load

_TYPE = COLUMN["type"]


def retry_quarantine(
    log: EventLog, *, under: Iterable[Path] = (), dry_run: bool = False, on_progress: Progress | None = None
) -> ImportReport:
    """Read the documents in quarantine again: all of them, or those under some paths.

    Nothing is written for a document that stays there for the same reason. Raises LogUnavailable.
    """
    run = Import(log, dry_run)
    prefixes = [str(path.absolute()) for path in under]
    entries = [
        entry
        for entry in run.ledger.quarantined()
        if not prefixes or any(_is_under(entry.document.source_path, prefix) for prefix in prefixes)
    ]
    copies = _logged_copies(log, {entry.event.event_id for entry in entries})
    flows = (_retry_steps(entry, copies[entry.event.event_id], run) for entry in entries)
    return run.report(len(entries), flows, on_progress, again=True)


def _retry_steps(entry: Entry, copies: list[bytes], run: Import) -> Iterator[Step]:
    """Yield the steps of one document read again; only its known start if nothing changed."""
    for content in _contents(entry, copies):
        # Without a hash the file could not be opened; its content may be known under another path.
        itself = content.origin if entry.document.content_sha256 else None
        known: Known = lambda other, itself=itself: other != itself and run.ledger.knows(other)  # type: ignore[misc]  # noqa: E731
        yield from _steps_if_changed(entry, iter_steps(content, known, supersedes=entry.event.event_id))
        return
    origin = Origin(entry.document.source_path, entry.document.content_sha256, entry.document.size_bytes)
    yield from (DocumentStart(origin), DocumentEnd(None))


def _steps_if_changed(entry: Entry, steps: Iterator[Step]) -> Iterator[Step]:
    """Yield the steps, except those that only say that the document stays in quarantine."""
    pending: list[Step] = []
    depth = 0
    for step in steps:
        depth += isinstance(step, DocumentStart) - isinstance(step, DocumentEnd)
        if depth == 1 and isinstance(step, DocumentRows):
            pending.append(step)
            if any(row[_TYPE] != "RecordQuarantined" for row in step.rows):
                yield from pending
                pending = []
        elif depth == 0 and isinstance(step, DocumentEnd) and step.entry is not None:
            yield from (
                (DocumentEnd(None),)
                if _outcome_and_reason(step.entry) == _outcome_and_reason(entry.event)
                else (*pending, step)
            )
        else:
            yield step


def _outcome_and_reason(event: Event) -> tuple[str, str | None]:
    assert isinstance(event.payload, DocumentImported)
    return event.payload.outcome, event.payload.reason


def _contents(entry: Entry, copies: list[bytes]) -> Iterator[Content]:
    """Yield the content of a document from every place that still has it."""
    path, sha256 = entry.document.source_path, entry.document.content_sha256
    file, *names = path.split("!")
    if "#" not in path:
        with suppress(ValueError):  # an archive broken from some place on
            for content in _members_named(load(Path(file)), names):
                if content.sha256 and sha256 in ("", content.sha256):
                    yield content
    for raw in copies:
        content = Content.of(raw, path)
        if content.sha256 == sha256:
            yield content


def _members_named(content: Content, names: list[str]) -> Iterator[Content]:
    if not names:
        yield content
    elif (kind := archive_kind(content)) is not None:
        for member in members(content, kind):
            if member.source_path == f"{content.source_path}!{names[0]}":
                yield from _members_named(member, names[1:])


def _logged_copies(log: EventLog, entries: set[UUID]) -> dict[UUID, list[bytes]]:
    """Return the log's copies of these documents, as their original bytes."""
    found: dict[UUID, list[bytes]] = defaultdict(list)
    for event in log.read(log.snapshot().beginning(SEGMENT_PREFIX), types={"RecordQuarantined"}):
        if event.causation_id in entries and isinstance(event.payload, RecordQuarantined):
            found[event.causation_id] += bytes_of(event.payload.content)
    return found


def _is_under(source_path: str, prefix: str) -> bool:
    return source_path == prefix or source_path.startswith(tuple(f"{prefix.rstrip('/')}{mark}" for mark in "/!#"))
