"""Source files that the log has no more need of: verified against it, accounted for, deleted. Importing is elsewhere.

A file goes only where its content hash stands in the ledger under its path, and a fresh reading by today's readers
gives the very events that the log holds of it, embedded documents included. On any doubt it stays, with the reason.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import stat
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal
from uuid import NAMESPACE_URL, UUID, uuid5

from accel_platform.events import Event, EventLog
from accel_platform.events.types import DocumentImported, RecordQuarantined, ResultRecorded, SourceDeleted
from migrations.claims import NOTHING_CLAIMED, Claims
from migrations.documents import Content, Document, find_files, load, parse
from migrations.reading import Reading, read
from migrations.records import Embedded

SOURCE = "clean"
_BATCH = 64
"""Files that one segment accounts for."""

Action = Literal["deleted", "deletable", "kept", "undeletable"]


@dataclass(frozen=True)
class FileReport:
    """What became of one file; `deletable` in a dry run, `undeletable` where the file system refused."""

    source_path: str
    size_bytes: int
    action: Action
    reason: str


@dataclass(frozen=True)
class CleanReport:
    """One clean-up. `actions` adds up to the files; `size_bytes` is what went, or would go."""

    files: int
    actions: dict[str, int]
    size_bytes: int
    dry_run: bool
    documents: tuple[FileReport, ...] = field(repr=False)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class _Doubt(Exception):
    """Why a file stays."""


@dataclass(frozen=True)
class _Claim:
    """What one document says, to be found as the events of this ledger entry."""

    ledger_id: UUID
    said: Counter[bytes]


@dataclass(frozen=True)
class _Candidate:
    """A file that is old enough and whose documents all have ledger entries."""

    path: Path
    state: tuple[int, ...]
    source: SourceDeleted
    claims: tuple[_Claim, ...]


def clean(
    paths: Iterable[Path], log: EventLog, *, older_than: timedelta, spare: Sequence[Path] = (), dry_run: bool = False
) -> CleanReport:
    """Delete the files under the paths that are older (by modification) and proven to be in the log.

    All are verified before the first goes, for readers may look at a file's neighbours. Nothing under `spare` is
    touched. Killed at any moment it leaves files whole or gone, and every one that is gone accounted for. Raises
    NotFound for a path that is not there, LogUnavailable where the log cannot be read or written.
    """
    ledger = _Ledger(log)
    newest = datetime.now(UTC) - older_than
    spared = tuple(path.resolve() for path in spare)
    files = list(find_files(paths))
    candidates: dict[Path, _Candidate] = {}
    reports: dict[Path, FileReport] = {}
    for path in files:
        try:
            candidates[path] = _candidate(path, ledger, newest, spared)
        except _Doubt as doubt:
            reports[path] = FileReport(str(path), _size(path), "kept", str(doubt))
    stored = _stored(log, {claim.ledger_id for candidate in candidates.values() for claim in candidate.claims})
    proven = []
    for path, candidate in candidates.items():
        if (difference := _difference(candidate, stored)) is not None:
            reports[path] = FileReport(str(path), candidate.source.size_bytes, "kept", difference)
        else:
            proven.append(candidate)
    for start in range(0, len(proven), _BATCH):
        for candidate, action, reason in _delete(proven[start : start + _BATCH], log, dry_run):
            reports[candidate.path] = FileReport(str(candidate.path), candidate.source.size_bytes, action, reason)
    documents = tuple(reports[path] for path in files)
    gone = [document for document in documents if document.action in ("deleted", "deletable")]
    return CleanReport(
        files=len(files),
        actions=dict(Counter(document.action for document in documents)),
        size_bytes=sum(document.size_bytes for document in gone),
        dry_run=dry_run,
        documents=documents,
    )


class _Ledger:
    """Every ledger entry of a log, by content."""

    def __init__(self, log: EventLog) -> None:
        self._entries: dict[str, list[tuple[Event, DocumentImported]]] = defaultdict(list)
        for event in log.read(types={"DocumentImported"}):
            if isinstance(event.payload, DocumentImported):
                self._entries[event.payload.content_sha256].append((event, event.payload))

    def own(self, content: Content) -> tuple[Event, DocumentImported]:
        """The newest entry of this content under this path. Raises _Doubt."""
        entries = self._entries.get(content.sha256, [])
        own = [(event, entry) for event, entry in entries if entry.source_path == content.source_path]
        if not own:
            elsewhere = f", only under {entries[0][1].source_path}" if entries else ""
            raise _Doubt(f"its content is not in the ledger{elsewhere}: `accel migrate` imports it")
        return max(own, key=_age)

    def holder(self, sha256: str) -> tuple[Event, DocumentImported]:
        """The newest entry whose events hold this content, of whatever path. Raises _Doubt."""
        holders = [(event, entry) for event, entry in self._entries[sha256] if entry.outcome != "duplicate"]
        if not holders:
            raise _Doubt("the log lacks the document that it is a duplicate of")
        return max(holders, key=_age)


def _age(entry: tuple[Event, DocumentImported]) -> tuple[datetime, UUID]:
    return entry[0].recorded_at, entry[0].event_id


def _candidate(path: Path, ledger: _Ledger, newest: datetime, spared: tuple[Path, ...]) -> _Candidate:
    """The file as it is now, with what its documents say. Raises _Doubt."""
    if any(path.resolve().is_relative_to(own) for own in spared):
        raise _Doubt("it belongs to this installation")
    state = _state(path)
    modified = datetime.fromtimestamp(path.lstat().st_mtime, UTC)
    if modified > newest:
        raise _Doubt(f"it was modified on {modified:%Y-%m-%d}")
    content = load(path)
    if content.problem is not None:
        raise _Doubt(content.problem)
    if len(content.raw) != path.lstat().st_size:
        raise _Doubt("it cannot be read whole")
    entry, _ = ledger.own(content)  # before the parsing, which costs more
    source = SourceDeleted(
        source_path=content.source_path,
        content_sha256=content.sha256,
        size_bytes=len(content.raw),
        ledger_id=entry.event_id,
    )
    return _Candidate(path, state, source, tuple(_claims(parse(content), NOTHING_CLAIMED, ledger)))


def _claims(document: Document, around: Claims, ledger: _Ledger) -> Iterator[_Claim]:
    """What a document, and every one inside it, must find in the log. Raises _Doubt where that cannot be enough."""
    content = document.content
    event, entry = ledger.own(content)
    if entry.outcome == "duplicate":
        event, entry = ledger.holder(content.sha256)
    where = f"{content.source_path.partition('#')[2]}: " if "#" in content.source_path else ""
    reading = read(document, around)
    if reading.entry.outcome != entry.outcome:
        raise _Doubt(f"{where}read today it is {_said(reading.entry)}, in the ledger {_said(entry)}")
    if entry.outcome == "not_results":
        raise _Doubt(f"{where}it holds no results, so the log has nothing of it but the ledger entry")
    if entry.outcome == "quarantined" and not _kept_whole(reading, content.raw):
        raise _Doubt(f"{where}quarantined, and the log does not hold it byte for byte")
    said = Counter(_digest(each) for each in reading.events if not isinstance(each.payload, DocumentImported))
    if not said and not reading.embedded:
        raise _Doubt(f"{where}the log has nothing of it but the ledger entry")
    yield _Claim(event.event_id, said)
    for part in reading.embedded:
        yield from _claims(_inside(content, part), reading.claims, ledger)


def _inside(outer: Content, part: Embedded) -> Document:
    """A document inside another as the importer takes it: with the bytes of a file of its own."""
    content = Content.of(json.dumps(part.value, indent=2).encode(), f"{outer.source_path}#{part.pointer}")
    return Document(content, "json", part.value)


def _kept_whole(reading: Reading, raw: bytes) -> bool:
    """Whether the quarantine gives these very bytes back: no byte order mark lost, nothing cut."""
    kept = [each.payload.content for each in reading.events if isinstance(each.payload, RecordQuarantined)]
    return any(raw in (text.encode(), _from_base64(text)) for text in kept)


def _from_base64(text: str) -> bytes | None:
    return base64.b64decode(text.removeprefix("base64:")) if text.startswith("base64:") else None


def _said(entry: DocumentImported) -> str:
    return entry.outcome.replace("_", " ") + (f" ({entry.reason})" if entry.reason else "")


def _stored(log: EventLog, wanted: set[UUID]) -> dict[UUID, Counter[bytes]]:
    """The digests of the events that each of these ledger entries caused; an event that is there twice counts once."""
    found: dict[UUID, Counter[bytes]] = defaultdict(Counter)
    seen: set[UUID] = set()
    if wanted:
        for event in log.read(types={"ResultRecorded", "RecordQuarantined"}):
            if event.causation_id in wanted and event.event_id not in seen:
                seen.add(event.event_id)
                found[event.causation_id][_digest(event)] += 1
    return found


def _digest(event: Event) -> bytes:
    """Of what an event says, without its envelope's ids and clock and without the path, under which a copy differs."""
    said = event.payload.model_dump(mode="json", exclude_none=True, exclude={"source_path"})
    happened = event.occurred_at if isinstance(event.payload, ResultRecorded) else None
    text = json.dumps([event.type, said, event.host_id, happened and happened.isoformat()], sort_keys=True)
    return hashlib.sha256(text.encode()).digest()


def _difference(candidate: _Candidate, stored: dict[UUID, Counter[bytes]]) -> str | None:
    """In words, how the log and a fresh reading of a file differ; None where they are equal."""
    said: dict[UUID, Counter[bytes]] = {}
    for claim in candidate.claims:
        said.setdefault(claim.ledger_id, claim.said)
        if said[claim.ledger_id] != claim.said:
            return "two documents inside it are one in the ledger and read differently"
    missing = sum((said[entry] - stored.get(entry, Counter())).total() for entry in said)
    other = sum((stored.get(entry, Counter()) - said[entry]).total() for entry in said)
    if missing or other:
        events = sum(each.total() for each in said.values())
        return f"of the {events} events it gives today the log lacks {missing}, and holds {other} that it does not give"
    return None


def _delete(batch: Sequence[_Candidate], log: EventLog, dry_run: bool) -> Iterator[tuple[_Candidate, Action, str]]:
    """Account for these files in one append, and delete them."""
    going = []
    for candidate in batch:
        if (changed := _changed(candidate)) is None:
            going.append(candidate)
        else:
            yield candidate, "kept", changed
    if going and not dry_run:
        log.append([_deletion(candidate) for candidate in going])
    for candidate in going:
        yield candidate, *_unlink(candidate, dry_run)


def _unlink(candidate: _Candidate, dry_run: bool) -> tuple[Action, str]:
    if (changed := _changed(candidate)) is not None:
        return "kept", changed
    events = sum(claim.said.total() for claim in candidate.claims)
    reason = f"the log has all it says, in {events} event{'s' if events > 1 else ''}"
    if dry_run:
        return "deletable", reason
    try:
        candidate.path.unlink()
    except OSError as error:
        return "undeletable", f"cannot be deleted: {error.strerror}"
    return "deleted", reason


def _deletion(candidate: _Candidate) -> Event:
    """The event of one deletion; the same file accounted for twice, after a crash, is the same event."""
    source = candidate.source
    event = Event.of(source, source=SOURCE, causation_id=source.ledger_id)
    same = uuid5(NAMESPACE_URL, json.dumps([source.source_path, source.content_sha256, candidate.state]))
    return event.model_copy(update={"event_id": same})


def _changed(candidate: _Candidate) -> str | None:
    """Why a file is no longer the one that was verified; None if it is."""
    try:
        return None if _state(candidate.path) == candidate.state else "it changed while it was verified"
    except _Doubt as doubt:
        return str(doubt)


def _state(path: Path) -> tuple[int, ...]:
    """What changes when a file is written to or replaced. Raises _Doubt for what is no regular file of its own."""
    try:
        found = os.lstat(path)
    except OSError as error:
        raise _Doubt(f"cannot be looked at: {error.strerror}") from error
    if stat.S_ISLNK(found.st_mode):
        raise _Doubt("a symbolic link")
    if not stat.S_ISREG(found.st_mode):
        raise _Doubt("not a regular file")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise _Doubt(f"nothing can be deleted in {path.parent}")
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:
        return 0
