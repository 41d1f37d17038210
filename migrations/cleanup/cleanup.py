"""Deletion of source files whose content is proven to be in the log.

A file stays, with the reason, on any doubt. The deletion is recorded before the file goes.
"""

from __future__ import annotations

import json
import os
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal
from uuid import NAMESPACE_URL, uuid5

from accel_platform.events import Event, EventLog
from accel_platform.events.types import SourceDeleted
from accel_platform.table_io.values import count_of
from migrations.cleanup.read_back_check import (
    DocumentClaim,
    UnprovenFile,
    difference,
    document_claims,
    entry_of,
    stored_digests,
)
from migrations.pipeline.ledger import Ledger
from migrations.sources.documents import find_files, load

SOURCE = "clean"
_BATCH = 64
"""Files that one segment accounts for."""
Action = Literal["deleted", "deletable", "kept", "undeletable"]


@dataclass(frozen=True)
class FileReport:
    """Outcome of one file; `deletable` in a dry run, `undeletable` where the file system refused."""

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


@dataclass(frozen=True)
class _Candidate:
    """A file that is old enough and whose documents all have ledger entries."""

    path: Path
    state: tuple[int, ...]
    source: SourceDeleted
    claims: tuple[DocumentClaim, ...]


def clean(
    paths: Iterable[Path], log: EventLog, *, older_than: timedelta, exclude: Sequence[Path] = (), dry_run: bool = False
) -> CleanReport:
    """Delete the files under the paths that are older (by modification) and proven to be in the log.

    All are verified before the first goes, for readers may look at a file's neighbours. Nothing under `exclude` is
    touched. If it is killed, each file is whole or gone, and the log accounts for each that is gone. Raises NotFound
    for a path that is not there, LogUnavailable where the log cannot be read or written.
    """
    ledger = Ledger(log)
    newest = datetime.now(UTC) - older_than
    excluded = tuple(path.resolve() for path in exclude)
    files = list(find_files(paths))
    candidates: dict[Path, _Candidate] = {}
    reports: dict[Path, FileReport] = {}
    for path in files:
        try:
            candidates[path] = _candidate(path, ledger, newest, excluded)
        except UnprovenFile as doubt:
            reports[path] = FileReport(str(path), _size(path), "kept", str(doubt))
    stored = stored_digests(log, (claim.ledger_id for candidate in candidates.values() for claim in candidate.claims))
    proven = []
    for path, candidate in candidates.items():
        if (differs := difference(candidate.claims, stored)) is not None:
            reports[path] = FileReport(str(path), candidate.source.size_bytes, "kept", differs)
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


def _candidate(path: Path, ledger: Ledger, newest: datetime, excluded: tuple[Path, ...]) -> _Candidate:
    """Return the file as it is now, with the claims of its documents. Raises UnprovenFile."""
    if any(path.resolve().is_relative_to(place) for place in excluded):
        raise UnprovenFile("it belongs to this installation")
    state = _state(path)
    modified = datetime.fromtimestamp(path.lstat().st_mtime, UTC)
    if modified > newest:
        raise UnprovenFile(f"it was modified on {modified:%Y-%m-%d}")
    content = load(path)
    if content.problem is not None:
        raise UnprovenFile(content.problem)
    entry = entry_of(content.origin, ledger)  # before the reading, which costs more
    source = SourceDeleted(
        source_path=content.source_path,
        content_sha256=content.sha256,
        size_bytes=content.origin.size_bytes,
        ledger_id=entry.event.event_id,
    )
    return _Candidate(path, state, source, tuple(document_claims(content, ledger)))


def _delete(batch: Sequence[_Candidate], log: EventLog, dry_run: bool) -> Iterator[tuple[_Candidate, Action, str]]:
    """Account for these files in one append, then delete them."""
    going = []
    for candidate in batch:
        if (changed := _change_reason(candidate)) is None:
            going.append(candidate)
        else:
            yield candidate, "kept", changed
    if going and not dry_run:
        log.append([_deletion_event(candidate) for candidate in going])
    for candidate in going:
        yield candidate, *_unlink(candidate, dry_run)


def _unlink(candidate: _Candidate, dry_run: bool) -> tuple[Action, str]:
    if (changed := _change_reason(candidate)) is not None:
        return "kept", changed
    events = sum(claim.digest.events for claim in candidate.claims)
    reason = f"the log has all it says, in {count_of(events, 'event')}"
    if dry_run:
        return "deletable", reason
    try:
        candidate.path.unlink()
    except OSError as error:
        return "undeletable", f"cannot be deleted: {error.strerror}"
    return "deleted", reason


def _deletion_event(candidate: _Candidate) -> Event:
    """Return the event of one deletion; a repeated one, after a crash, is the same event."""
    source = candidate.source
    same = uuid5(NAMESPACE_URL, json.dumps([source.source_path, source.content_sha256, candidate.state]))
    return Event.of(source, source=SOURCE, causation_id=source.ledger_id, event_id=same)


def _change_reason(candidate: _Candidate) -> str | None:
    """Return why a file is no longer the verified one; None if it is."""
    try:
        return None if _state(candidate.path) == candidate.state else "it changed while it was verified"
    except UnprovenFile as doubt:
        return str(doubt)


def _state(path: Path) -> tuple[int, ...]:
    """Return the facts that change when a file is written or replaced. Raises UnprovenFile for other than regular
    files.
    """
    try:
        found = os.lstat(path)
    except OSError as error:
        raise UnprovenFile(f"cannot be looked at: {error.strerror}") from error
    if stat.S_ISLNK(found.st_mode):
        raise UnprovenFile("a symbolic link")
    if not stat.S_ISREG(found.st_mode):
        raise UnprovenFile("not a regular file")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise UnprovenFile(f"nothing can be deleted in {path.parent}")
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:
        return 0
