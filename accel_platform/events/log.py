"""Append-only event log: append, snapshot, read.

A snapshot is a set of segment names; its id is their hash. Segments never change, so reading at a snapshot is time
travel, and logs with equal snapshot ids hold equal events. Compaction (`compaction.py`) copies segments into packs, row
for row with the segment's name beside each, so every snapshot stays readable when the originals are removed. It also
writes a catalog of the packs' contents. So a log is opened by listing the packs and the segments appended since,
however long its history is.
"""

from __future__ import annotations

import hashlib
import math
import re
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID, uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from accel_platform.errors import InvalidInput, LogUnavailable, one_line, storage_unavailable
from accel_platform.events import codec, seal
from accel_platform.events.catalog import Pack
from accel_platform.events.segment_set import Snapshot
from accel_platform.events.segments import SegmentStore, open_store
from accel_platform.events.snapshot_files import SnapshotFiles
from accel_platform.events.types import Event
from accel_platform.settings import Settings

_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,180}")
SUFFIX = ".parquet"
SEGMENTS = "segments"
PACKS = "packs"
PACK_GRACE_S = 3_600.0
"""Time that originals stay beside a new pack, because a reader may be about to open one."""
_PACKS_LISTED_FOR_S = PACK_GRACE_S / 2
"""Time after which packs are listed again. A name must be known as packed before its original is removed."""


@dataclass(frozen=True)
class AppendResult:
    """Result of an append; `new` is False if the segment already existed and nothing was written."""

    segment: str
    new: bool
    events: int


@dataclass(frozen=True)
class SegmentSource:
    """A local Parquet file to read; if `segments` is set, only the rows whose `segment` is one of them."""

    path: Path
    key: str
    """The blob's key in the store."""
    segments: frozenset[str] | None = None


class EventLog:
    """One log at one location, which any number of processes may append to and read at once."""

    def __init__(self, store: SegmentStore) -> None:
        self.store = store
        self.saved = SnapshotFiles(store)
        self._packs: dict[str, Pack] = {}
        self._packs_listed_s = -math.inf
        self._latest: Snapshot | None = None

    @classmethod
    def open(cls, settings: Settings) -> EventLog:
        """Open the log of this installation; nothing is created before the first append."""
        return cls(open_store(settings.log_location, settings.cache_dir / "log"))

    @property
    def location(self) -> str:
        return self.store.location

    def require_writable(self) -> None:
        """Raise LogUnavailable where an append must fail, for use before the work that is to be recorded."""
        self.store.require_writable(SEGMENTS)

    def append(self, events: Sequence[Event], *, key: str | None = None) -> AppendResult:
        """Append the events as one segment, durably, all or none; returning is the acknowledgement.

        Parameters
        ----------
        events
            At least one event.
        key
            Name of the segment, which makes the append idempotent: a retry or a second writer with the same key is a
            no-op. Default: the hash of the event ids.

        Raises
        ------
        InvalidInput
            For no events or an unusable key.
        LogUnavailable
            If the bytes cannot be stored.
        """
        return self.append_rows(codec.to_rows(events), key=key)

    def append_rows(self, rows: Sequence[codec.Row], *, key: str | None = None) -> AppendResult:
        """Append events given as rows, made by `codec.to_rows` in this or another process; raise as `append`."""
        if not rows:
            raise InvalidInput("An append needs at least one event.")
        if key is None:
            key = "events-" + hashlib.sha256(b"".join(row[0] for row in rows)).hexdigest()[:32]
        if not _KEY.fullmatch(key):
            raise InvalidInput(f"Segment key {key!r} must be 1-181 letters, digits, '.', '_' or '-'.")
        return self.append_table(codec.rows_to_arrow(rows), key=key)

    def append_table(self, table: pa.Table, *, key: str) -> AppendResult:
        """Append events given as a table of `codec.SCHEMA`."""
        blob = segment_key(key)
        new = not self._is_packed(key) and self.store.publish(blob, codec.to_parquet(table, blob))
        return AppendResult(segment=key, new=new, events=table.num_rows)

    def _is_packed(self, key: str) -> bool:
        """Return whether a pack holds the segment, whose name is then taken although the original may be removed.

        Packs are listed again well before the originals beside a new one are removed.
        """
        if time.monotonic() - self._packs_listed_s > _PACKS_LISTED_FOR_S:
            self.packs()
        return any(key in pack.segments for pack in self._packs.values())

    def installation_id(self) -> str:
        """Return the random id of this installation, stored with the log; the first call creates it.

        Raises LogUnavailable if it cannot be read.
        """
        key = "installation/id"
        # All callers publish under one key, so that the first wins where two create an id at once.
        if not self.store.keys("installation"):
            self.store.publish(key, str(uuid4()).encode())
        path = self.store.local_path(key)
        try:
            return str(UUID(path.read_text()))
        except (OSError, ValueError) as error:
            raise LogUnavailable(f"The installation's id in {path} cannot be read: restore it from a copy.") from error

    def adopt(self, path: Path) -> AppendResult:
        """Append a segment file that another log wrote, under the hash of its content; repeating that is a no-op.

        Raises InvalidInput for a file that is not a segment, or was written by a newer version of this platform.
        """
        try:
            data = path.read_bytes()
            table = pq.read_table(pa.BufferReader(data))
            if seal.is_sealed(data) and (reason := seal.mismatch_reason(data)) is not None:
                raise InvalidInput(f"{path} is damaged: {reason}. Fetch it again.")
            events = sum(1 for _ in codec.from_arrow(table.to_batches()))
        except OSError as error:
            raise InvalidInput(f"Cannot read {path}: {error.strerror or error}.") from error
        except (pa.ArrowInvalid, KeyError, ValueError) as error:
            raise InvalidInput(
                f"{path} is no file of events ({one_line(error)}): for other results use `accel migrate`."
            ) from error
        if not events:
            raise InvalidInput(f"{path} holds no events.")
        key = f"adopted-{hashlib.sha256(data).hexdigest()[:32]}"
        return self.append_table(table.select(codec.SCHEMA.names), key=key)

    def snapshot(self) -> Snapshot:
        """Return the log's current snapshot."""
        # Packs are listed last, so that a segment packed in between is seen in either listing.
        loose = parquet_names(self.store.keys(SEGMENTS))
        names = frozenset(loose.union(*self.packs().values()))
        near = self._latest if self._latest is not None and self._latest.is_hashed else self.saved.packed()
        self._latest = Snapshot(names, near)
        return self._latest

    def save_snapshot(self, snapshot: Snapshot, *, base: str | None = None) -> str:
        """Save the snapshot's segment names under its id for `load_snapshot`, and return the id.

        `base` is the id of a saved snapshot that shares many segments with it, if one is known.
        """
        self.saved.save(snapshot, base)
        return snapshot.id

    def load_snapshot(self, snapshot_id: str) -> Snapshot:
        """Return a saved snapshot. Raises NotFound, and LogUnavailable for a damaged one."""
        return self.saved.load(snapshot_id)

    def saved_snapshots(self) -> set[str]:
        """Return the ids that `load_snapshot` finds."""
        return self.saved.ids()

    def recorded_until(self, moment: datetime) -> Snapshot:
        """Return the log as recorded by a moment: the segments without any event recorded later.

        Events adopted from another log count from when they were recorded there.
        """
        names: set[str] = set()
        for source in self.sources(self.snapshot().segments):
            names |= {name for name, newest in _recorded(source) if newest <= moment}
        return Snapshot(frozenset(names))

    def sources(self, segments: Collection[str]) -> list[SegmentSource]:
        """Return local files that together hold exactly these segments. Raises NotFound if one is in no file."""
        parts = self._parts(segments)
        paths = self.store.local_paths(parts)
        return [SegmentSource(path, key, part) for path, (key, part) in zip(paths, parts.items(), strict=True)]

    def _parts(self, segments: Collection[str]) -> dict[str, frozenset[str] | None]:
        """Return keys of blobs that together hold these segments, each with the segments to take, None for all."""
        wanted = set(segments)
        parts: dict[str, frozenset[str] | None] = {}
        for pack, members in sorted(self.packs().items(), key=lambda entry: -len(entry[1])):
            here = wanted & members
            if here:
                parts[pack_key(pack)] = None if here == members else frozenset(here)
                wanted -= here
        return parts | dict.fromkeys(map(segment_key, sorted(wanted)))

    def read(self, snapshot: Snapshot | None = None, *, types: Collection[str] | None = None) -> Iterator[Event]:
        """Yield the events at a snapshot (default: now), old versions lifted to the current ones.

        They come segment by segment, in no defined order of segments. `types` are the event types wanted, None for all.
        Raises LogUnavailable for a segment that cannot be read.
        """
        for source in self.sources((snapshot or self.snapshot()).segments):
            try:
                yield from codec.from_arrow(_batches(source, types))
            except ValueError as error:
                data = source.path.read_bytes()
                reason = seal.mismatch_reason(data) if seal.is_sealed(data) else None
                if reason is None:
                    raise
                raise unreadable(ValueError(reason), f"The log segment {source.path}") from error

    def run_ids(self, snapshot: Snapshot) -> set[str]:
        """Return the ids of the runs that have an event in a snapshot; no other column is read."""
        found: set[str] = set()
        for source in self.sources(snapshot.segments):
            names, ids = _column(source, "run_id")
            if source.segments is not None:
                ids = ids.filter(pc.is_in(names, value_set=codec.strings(sorted(source.segments))))
            found.update(ids.drop_null().unique().to_pylist())
        return found

    def count_events(self, segments: Collection[str]) -> int:
        """Return the number of events in these segments. A pack whose segments all count is not read."""
        unread = self._parts(segments)
        events = 0
        for name, pack in self._packs.items():
            key = pack_key(name)
            if key in unread and unread[key] is None:
                del unread[key]
                events += pack.events
        for path, (key, part) in zip(self.store.local_paths(unread), unread.items(), strict=True):
            if part is None:
                events += count_rows(path)
            else:
                events += sum(batch.num_rows for batch in _batches(SegmentSource(path, key, part), None))
        return events

    def packs(self) -> dict[str, frozenset[str]]:
        """Return the segments of each pack, by pack id; packs whose content does not match their id are left out.

        A pack that no catalog tells of is read, which happens only where a compaction was killed.
        """
        return {name: pack.segments for name, pack in self.known_packs().items()}

    def known_packs(self) -> Mapping[str, Pack]:
        """Return the segments of each pack, as `packs` does."""
        present = parquet_names(self.store.keys(PACKS))
        if present - self._packs.keys():
            self._packs |= self.saved.packs()
        for name in present - self._packs.keys():
            path = self.store.local_path(pack_key(name))
            members = members_of(path)
            if Snapshot(members).has_id(name):
                self._packs[name] = Pack(members, count_rows(path))
        self._packs = {name: pack for name, pack in self._packs.items() if name in present}
        self._packs_listed_s = time.monotonic()
        return self._packs


def members_of(pack: Path | pa.BufferReader) -> frozenset[str]:
    """Return the segments that a pack holds, an empty set if it cannot be read."""
    try:
        with pq.ParquetFile(pack, read_dictionary=["segment"]) as file:
            column = file.read(columns=["segment"])["segment"]
            return frozenset(name for chunk in column.chunks for name in chunk.dictionary.to_pylist())
    except (pa.ArrowInvalid, OSError, KeyError, AttributeError):
        return frozenset()


def segment_key(name: str) -> str:
    """Return the key of a segment's blob."""
    return f"{SEGMENTS}/{name}{SUFFIX}"


def pack_key(pack: str) -> str:
    """Return the key of a pack's blob."""
    return f"{PACKS}/{pack}{SUFFIX}"


def parquet_names(keys: Collection[str]) -> set[str]:
    """Return the names of the blobs that are Parquet files."""
    return {key.removesuffix(SUFFIX) for key in keys if key.endswith(SUFFIX)}


def read_table(path: Path) -> pa.Table:
    """Return all rows of a segment or pack. Raises LogUnavailable if it cannot be read."""
    with _readable(path), pq.ParquetFile(path) as file:  # pq.read_table imports pandas
        return file.read()


def count_rows(path: Path) -> int:
    """Return the number of events in a segment or pack, by its footer. Raises LogUnavailable."""
    with _readable(path):
        return int(pq.read_metadata(path).num_rows)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowInvalid, OSError) as error:
        raise unreadable(error, f"The log segment {path}") from error


def unreadable(error: BaseException, what: str) -> LogUnavailable:
    """Return the error to report where a file of the log cannot be read: out of reach, or damaged."""
    out_of_reach = storage_unavailable(error, what)
    if out_of_reach is not None:
        return LogUnavailable(str(out_of_reach))
    why = " ".join(str(error).split()).rstrip(".")
    return LogUnavailable(
        f"{what} cannot be read: {why}. Restore it from a copy, or from a back-up by `accel db validate --fix --from "
        "BACKUP`."
    )


def _recorded(source: SegmentSource) -> Iterator[tuple[str, datetime]]:
    """Yield each segment of a file, and the time at which its last event was recorded."""
    names, times = _column(source, "recorded_at")
    newest = (
        pa.table({"segment": names, "recorded_us": times.cast(pa.int64())})
        .group_by("segment")
        .aggregate([("recorded_us", "max")])
    )
    for row in newest.to_pylist():
        if source.segments is None or row["segment"] in source.segments:
            yield row["segment"], datetime.fromtimestamp(0, UTC) + timedelta(microseconds=row["recorded_us_max"])


def _column(source: SegmentSource, name: str) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
    """Return the segment of each row of a file, and one of its columns."""
    with _readable(source.path):
        packed = "segment" in pq.read_schema(source.path).names
        stored = pq.read_table(source.path, columns=[name, *(["segment"] if packed else [])], partitioning=None)
    names = stored["segment"] if packed else pa.chunked_array([[source.path.stem] * stored.num_rows], pa.string())
    return names, stored[name]


def _batches(source: SegmentSource, types: Collection[str] | None) -> Iterator[pa.RecordBatch]:
    wanted = {"type": types, "segment": source.segments}
    filters = {column: values for column, values in wanted.items() if values is not None}
    for table in _matching(source.path, filters) if filters else [read_table(source.path)]:
        yield from table.to_batches()


def _matching(path: Path, filters: Mapping[str, Collection[str]]) -> Iterator[pa.Table]:
    """Yield the rows whose columns hold one of the wanted values; row groups without any are not read.

    pyarrow's own filters are not used, because they import pandas, which takes longer than reading a ledger.
    """
    with _readable(path), pq.ParquetFile(path) as file:
        columns = {column: file.schema_arrow.get_field_index(column) for column in filters}
        for group in range(file.num_row_groups):
            held = file.metadata.row_group(group)
            if all(_may_hold(held.column(columns[c]).statistics, values) for c, values in filters.items()):
                table = file.read_row_group(group)
                for column, values in filters.items():
                    table = table.filter(pc.is_in(table[column], value_set=codec.strings(sorted(values))))
                if table.num_rows:
                    yield table


def _may_hold(statistics: pq.Statistics | None, values: Collection[str]) -> bool:
    if statistics is None or not statistics.has_min_max:
        return True
    return any(statistics.min <= value <= statistics.max for value in values)


__all__ = ["AppendResult", "EventLog", "SegmentSource", "Snapshot"]
