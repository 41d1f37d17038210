"""Integrity checks of the log: damaged blobs, lost segments, and their repair.

A blob that fails its check is moved to `quarantine/` and recorded as an event; its segments are missing from then on.
`restore_segments` brings them back from a pack or a back-up. `forget_segments` gives them up, which is an event too.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from accel_platform.errors import InvalidInput, LogUnavailable, one_line
from accel_platform.events import codec, seal
from accel_platform.events.log import (
    PACKS,
    SEGMENTS,
    SUFFIX,
    EventLog,
    SegmentSource,
    members_of,
    segment_key,
    unreadable,
)
from accel_platform.events.types import Event, SegmentQuarantined, SegmentsForgotten
from accel_platform.table_io.values import count_of

QUARANTINE = "quarantine"
_CHECKSUMS = "checksums"
_EVENTS = "integrity-"
"""Name prefix of segments with this module's events, so that they are found without reading the log."""
_EXAMPLES = 3
_READERS = 4
"""Number of files that are read and hashed at once, each held in memory meanwhile."""


@dataclass(frozen=True)
class Damage:
    """A damaged blob: its content differs from the content that was written."""

    key: str
    reason: str
    segments: tuple[str, ...]
    """Names of the segments that it held, as far as they are known."""

    def __str__(self) -> str:
        return f"{self.key} ({self.reason})"


class LogCopy(Protocol):
    """A copy of the log in another place, such as a back-up."""

    @property
    def keys(self) -> Set[str]:
        """Keys of the blobs in the copy."""
        ...

    def read(self, keys: Collection[str]) -> dict[str, bytes]:
        """Return the content of these blobs by key; those damaged in the copy are left out."""
        ...


class SegmentsDamaged(LogUnavailable):
    """Blobs of the log are damaged; nothing was built from them."""

    def __init__(self, log: EventLog, damages: Collection[Damage]) -> None:
        self.damages = tuple(damages)
        super().__init__(
            f"The event log at {log.location} is damaged: {summarize([str(damage) for damage in damages])}. `accel db "
            "validate --fix` sets this aside and takes it from a pack that has it whole; with `--from BACKUP`, from a "
            "back-up."
        )


class SegmentsGone(LogUnavailable):
    """Segments that were published are no longer in the log; the tables in service still hold them."""

    def __init__(self, log: EventLog, names: Collection[str]) -> None:
        self.names = tuple(sorted(names))
        count = count_of(len(names), "segment")
        super().__init__(
            f"The event log at {log.location} has lost {count} that the tables were made of: {summarize(self.names)}. "
            "What is in service stays. `accel db validate --fix --from BACKUP` brings them back; `accel db rebuild "
            f"--forget {self.names[0] if len(names) == 1 else 'all'}` goes on without them."
        )


def find_damage(log: EventLog, sources: Iterable[SegmentSource]) -> list[Damage]:
    """Return the damage among these files.

    Blobs written by earlier versions of the platform carry no hash; theirs is recorded when they are first read.
    """
    checks = Checks(log)
    found = []
    listed = list(sources)
    with ThreadPoolExecutor(_READERS) as pool:  # hashing lets other threads run
        problems = list(pool.map(lambda source: checks.problem(source.key, source.path), listed))
    for source, problem in zip(listed, problems, strict=True):
        if problem is not None:
            # Fetched again, because only the local copy of a remote blob may be damaged.
            log.store.drop_copy(source.key)
            reason = checks.problem(source.key, log.store.local_path(source.key))
            if reason is not None:
                found.append(Damage(source.key, reason, segments_in_blob(log, source.key)))
    checks.save()
    return found


def require_sound(log: EventLog, segments: Collection[str]) -> None:
    """Raise SegmentsDamaged if a file that holds these segments is damaged."""
    if damaged := find_damage(log, log.sources(segments)):
        raise SegmentsDamaged(log, damaged)


def set_aside(log: EventLog, damages: Collection[Damage]) -> None:
    """Move damaged blobs into quarantine, where they are not read, and record that as events.

    The events are appended first, so a process killed in between finds and moves the same blobs again.
    """
    if not damages:
        return
    store = log.store
    for damage in damages:
        content = store.local_path(damage.key).read_bytes()
        name = f"{damage.key.replace('/', '-')}.{seal.sha256(content)[:12]}"
        payload = SegmentQuarantined(
            key=damage.key, moved_to=f"{QUARANTINE}/{name}", reason=damage.reason, segments=damage.segments
        )
        log.append([Event.of(payload, source="integrity")], key=f"{_EVENTS}{seal.sha256(name.encode())[:32]}")
        store.move(damage.key, payload.moved_to)


def segments_in_blob(log: EventLog, key: str) -> tuple[str, ...]:
    """Return the segments that a blob holds, as far as they are known of a damaged one."""
    return (_stem(key),) if key.startswith(f"{SEGMENTS}/") else tuple(sorted(log.packs().get(_stem(key), ())))


def published_segments(log: EventLog) -> frozenset[str]:
    """Return every segment that a saved snapshot holds, except segments that were once in quarantined blobs."""
    return log.saved.union() - quarantined_segments(log)


def lost_segments(log: EventLog) -> frozenset[str]:
    """Return every segment of any saved snapshot or damaged blob that is neither in the log nor forgotten."""
    return _missing_segments(log, log.saved.union() | quarantined_segments(log))


def require_complete(log: EventLog, names: Set[str]) -> None:
    """Raise SegmentsGone if some of these segments are no longer in the log and were not forgotten."""
    if gone := _missing_segments(log, names):
        raise SegmentsGone(log, gone)


def _missing_segments(log: EventLog, names: Set[str]) -> frozenset[str]:
    gone = frozenset(names - log.snapshot().segments)
    return gone - forgotten_segments(log) if gone else gone


def quarantined_segments(log: EventLog) -> frozenset[str]:
    """Return the segments of quarantined blobs; some may have been restored since."""
    return _named_by(log, SegmentQuarantined)


def forgotten_segments(log: EventLog) -> frozenset[str]:
    """Return the segments that were given up as lost."""
    return _named_by(log, SegmentsForgotten)


def forget_segments(log: EventLog, names: Collection[str], *, by: str | None = None) -> None:
    """Record that these lost segments are given up. Raises InvalidInput for one that is present or never existed."""
    if not names:
        raise InvalidInput("Nothing is to be forgotten: name lost segments, or `all` for every one.")
    present = log.snapshot().segments
    if here := sorted(set(names) & present):
        raise InvalidInput(f"{summarize(here)} is in the log: only what is gone can be forgotten.")
    if unknown := sorted(set(names) - log.saved.union() - quarantined_segments(log)):
        raise InvalidInput(
            f"No snapshot of this log ever held {summarize(unknown)}: `accel db validate` names what is gone."
        )
    payload = SegmentsForgotten(segments=tuple(sorted(names)), by=by)
    key = seal.sha256("\n".join(payload.segments).encode())[:32]
    log.append([Event.of(payload, source="integrity")], key=f"{_EVENTS}forgotten-{key}")


def restore_segments(log: EventLog, names: Collection[str], copy: LogCopy) -> set[str]:
    """Publish missing segments again from a copy of the log, and return those that are back.

    Packs of the copy are searched for segments that it no longer holds as files of their own.
    """
    wanted = {segment_key(name) for name in names} & copy.keys
    found = copy.read(wanted)
    missing = set(names) - {_stem(key) for key in found}
    for key in sorted(key for key in copy.keys if key.startswith(f"{PACKS}/") and key.endswith(SUFFIX)):
        if missing:
            held = {key: data for key, data in copy.read([key]).items() if missing & members_of(pa.BufferReader(data))}
            found |= held
            missing -= {name for data in held.values() for name in members_of(pa.BufferReader(data))}
    checks = Checks(log)
    for key, content in found.items():
        if checks.problem_in(key, content) is None:
            log.store.publish(key, content)
    return set(names) & log.snapshot().segments


def summarize(texts: Collection[str], most: int = _EXAMPLES) -> str:
    """Join the first few texts, with the number of the others."""
    listed = list(texts)
    rest = len(listed) - most
    return ", ".join(listed[:most]) + (f" and {rest} more" if rest > 0 else "")


class Checks:
    """Checks of blobs against their own hash, or the hash recorded when a blob without one was first read."""

    def __init__(self, log: EventLog) -> None:
        self._store = log.store
        self._recorded: dict[str, str] | None = None
        self._new: dict[str, str] = {}

    def problem(self, key: str, path: Path) -> str | None:
        """Return the fault of a blob, None for a sound one. A new blob without a hash passes if it can be read."""
        try:
            data = path.read_bytes()
        except OSError as error:  # not reported as damage, because it says nothing about the content
            raise unreadable(error, f"The log's file {path}") from error
        reason = self.problem_in(key, data)
        if reason is None and not seal.is_sealed(data) and key not in self._known():
            self._new[key] = seal.sha256(data)
        return reason

    def problem_in(self, key: str, data: bytes) -> str | None:
        """Return why the bytes differ from those written under the key; None if equal, or for other kinds of file."""
        if not key.endswith(SUFFIX):
            return None
        if seal.is_sealed(data):
            return seal.mismatch_reason(data, key)
        recorded = self._known().get(key)
        if recorded is not None:
            return None if recorded == seal.sha256(data) else "its content is not what was recorded of it"
        return _unreadable(data)

    def save(self) -> None:
        if self._new:
            content = json.dumps(self._new, sort_keys=True).encode()
            self._store.publish(f"{_CHECKSUMS}/{seal.sha256(content)[:32]}.json", content)

    def _known(self) -> dict[str, str]:
        if self._recorded is None:
            recorded: dict[str, str] = {}
            for name in sorted(self._store.keys(_CHECKSUMS)):
                content = self._store.local_path(f"{_CHECKSUMS}/{name}").read_bytes()
                if name == f"{seal.sha256(content)[:32]}.json":  # a damaged list is none
                    recorded |= json.loads(content)
            self._recorded = recorded  # whole, because other threads read it
        return self._recorded


def _unreadable(data: bytes) -> str | None:
    """Return why a blob without a hash is not a file of events; None if it is one."""
    if not data:
        return "it is empty"
    try:
        with pq.ParquetFile(pa.BufferReader(data)) as file:
            if seal.has_blob_key(file.metadata.metadata):
                return "its seal is broken"
            if missing := [name for name in codec.SCHEMA.names if name not in file.schema_arrow.names]:
                return f"it is no file of events: it has no column {', '.join(missing)}"
            for group in range(file.num_row_groups):
                file.read_row_group(group)
    except (pa.ArrowInvalid, OSError, ValueError) as error:
        return f"it cannot be read: {one_line(error)[:100]}"
    return None


def _named_by(log: EventLog, payload: type[SegmentQuarantined | SegmentsForgotten]) -> frozenset[str]:
    """Return the segments named by the events of one of this module's types."""
    found = log.read(log.snapshot().beginning(_EVENTS), types={payload.__name__})
    return frozenset(name for event in found if isinstance(event.payload, payload) for name in event.payload.segments)


def _stem(key: str) -> str:
    return key.rpartition("/")[2].removesuffix(SUFFIX)
