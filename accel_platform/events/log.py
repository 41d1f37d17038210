"""The append-only event log: append, snapshot, read. Where bytes lie is `segments.py`, their form `codec.py`.

A snapshot is a set of segment names; its id is their hash. Segments never change, so reading at a snapshot is time
travel, and two logs with equal snapshot ids hold equal events. Compaction (`compaction.py`) moves segments into packs,
row for row and with the segment's name beside each, so every snapshot stays readable when the originals have gone.
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

from accel_platform.errors import InvalidInput, LogUnavailable
from accel_platform.events import codec, seal
from accel_platform.events.segments import SegmentStore, open_store
from accel_platform.events.snapshot_files import Snapshot, SnapshotFiles
from accel_platform.events.types import Event
from accel_platform.settings import Settings

_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,180}")
SUFFIX = ".parquet"
SEGMENTS = "segments"
PACKS = "packs"
_PACKS_LISTED_FOR_S = 1_800.0


@dataclass(frozen=True)
class AppendResult:
    """What an append did: `new` is False where the segment was there already and nothing was written."""

    segment: str
    new: bool
    events: int


@dataclass(frozen=True)
class SegmentSource:
    """A local Parquet file to read; where `segments` is set, only the rows whose `segment` is one of them."""

    path: Path
    key: str
    """The blob's key in the store."""
    segments: frozenset[str] | None = None


class EventLog:
    """One log at one location. Safe for any number of processes to append to and read at once."""

    def __init__(self, store: SegmentStore) -> None:
        self.store = store
        self.saved = SnapshotFiles(store)
        self._packs: dict[str, frozenset[str]] = {}
        self._packs_listed_s = -math.inf

    @classmethod
    def open(cls, settings: Settings) -> EventLog:
        """The log of this installation; nothing is created before the first append."""
        return cls(open_store(settings.log_location, settings.cache_dir / "log"))

    @property
    def location(self) -> str:
        return self.store.location

    def append(self, events: Sequence[Event], *, key: str | None = None) -> AppendResult:
        """Store the events as one segment, durably, all or none; returning is the acknowledgement.

        `key` names the segment and makes the append idempotent: a retry or a second writer with the same key is a
        no-op. Without one the key is the hash of the event ids. Raises InvalidInput for no events or an unusable key,
        LogUnavailable if the bytes cannot be stored.
        """
        return self.append_rows(codec.to_rows(events), key=key)

    def append_rows(self, rows: Sequence[codec.Row], *, key: str | None = None) -> AppendResult:
        """`append` for events that are rows already, made by `codec.to_rows` here or in another process."""
        if not rows:
            raise InvalidInput("An append needs at least one event.")
        if key is None:
            key = "events-" + hashlib.sha256(b"".join(row[0] for row in rows)).hexdigest()[:32]
        if not _KEY.fullmatch(key):
            raise InvalidInput(f"Segment key {key!r} must be 1-181 letters, digits, '.', '_' or '-'.")
        return self.append_table(codec.rows_to_arrow(rows), key=key)

    def append_table(self, table: pa.Table, *, key: str) -> AppendResult:
        """`append` for events that are a table of `codec.SCHEMA` already."""
        blob = segment_key(key)
        new = not self._is_packed(key) and self.store.publish(blob, codec.to_parquet(table, blob))
        return AppendResult(segment=key, new=new, events=table.num_rows)

    def _is_packed(self, key: str) -> bool:
        """Return whether a pack holds the segment: its original may be gone, which must not make the name free.

        Packs are listed again after half the time that originals stay beside a new one (`compaction.GRACE_S`).
        """
        if time.monotonic() - self._packs_listed_s > _PACKS_LISTED_FOR_S:
            self.packs()
        return any(key in members for members in self._packs.values())

    def installation_id(self) -> str:
        """The random id of this installation, kept with the log; the first caller makes it. Raises LogUnavailable."""
        key = "installation/id"
        # One key for all callers: of two that make an id at once, the first wins.
        if not self.store.keys("installation"):
            self.store.publish(key, str(uuid4()).encode())
        path = self.store.local_path(key)
        try:
            return str(UUID(path.read_text()))
        except (OSError, ValueError) as error:
            raise LogUnavailable(f"The installation's id in {path} cannot be read: restore it from a copy.") from error

    def adopt(self, path: Path) -> AppendResult:
        """Take a segment that another log wrote, under the hash of its content; adopting it again is a no-op.

        Raises InvalidInput for a file that is no segment, or one of a newer version of this platform.
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
            raise InvalidInput(f"{path} is no file of events: {' '.join(str(error).split())}") from error
        if not events:
            raise InvalidInput(f"{path} holds no events.")
        key = f"adopted-{hashlib.sha256(data).hexdigest()[:32]}"
        return self.append_table(table.select(codec.SCHEMA.names), key=key)

    def snapshot(self) -> Snapshot:
        """The log as it is now."""
        # Packs are listed last: a segment that moves into one in between is seen in either.
        loose = parquet_names(self.store.keys(SEGMENTS))
        return Snapshot(frozenset(loose.union(*self.packs().values())))

    def save_snapshot(self, snapshot: Snapshot, *, base: str | None = None) -> str:
        """Keep the snapshot's names under its id, so that `load_snapshot` finds them; returns the id.

        `base` is the id of a saved snapshot that it shares much with, if the caller knows one.
        """
        self.saved.save(snapshot, base)
        return snapshot.id

    def load_snapshot(self, snapshot_id: str) -> Snapshot:
        """A saved snapshot. Raises NotFound, LogUnavailable for a damaged one."""
        return self.saved.load(snapshot_id)

    def saved_snapshots(self) -> set[str]:
        """The ids that `load_snapshot` finds."""
        return self.saved.ids()

    def recorded_until(self, moment: datetime) -> Snapshot:
        """The log as it was recorded by a moment: the segments that hold no event of a later one.

        What was taken over from another log counts from when it was recorded there.
        """
        kept: set[str] = set()
        for source in self.sources(self.snapshot().segments):
            kept |= {name for name, newest in _recorded(source) if newest <= moment}
        return Snapshot(frozenset(kept))

    def sources(self, segments: Collection[str]) -> list[SegmentSource]:
        """Local files that together hold exactly these segments. Raises NotFound if one is in no file."""
        wanted = set(segments)
        found = []
        for pack, members in sorted(self.packs().items(), key=lambda entry: -len(entry[1])):
            here = wanted & members
            if here:
                key = pack_key(pack)
                found.append(
                    SegmentSource(self.store.local_path(key), key, None if here == members else frozenset(here))
                )
                wanted -= here
        for name in sorted(wanted):
            key = segment_key(name)
            found.append(SegmentSource(self.store.local_path(key), key))
        return found

    def read(self, snapshot: Snapshot | None = None, *, types: Collection[str] | None = None) -> Iterator[Event]:
        """Events at a snapshot (default: now), segment by segment, old versions lifted; no order across segments."""
        for source in self.sources((snapshot or self.snapshot()).segments):
            yield from codec.from_arrow(_batches(source, types))

    def count_events(self, segments: Collection[str]) -> int:
        """How many events these segments hold, read from file footers alone where a file is wanted whole."""
        return sum(
            count_rows(source.path)
            if source.segments is None
            else sum(batch.num_rows for batch in _batches(source, None))
            for source in self.sources(segments)
        )

    def packs(self) -> dict[str, frozenset[str]]:
        """The packs and the segments that each holds. One that does not hold what its id tells is none of them."""
        present = parquet_names(self.store.keys(PACKS))
        for pack in present - self._packs.keys():
            members = members_of(self.store.local_path(pack_key(pack)))
            if Snapshot(members).id == pack:
                self._packs[pack] = members
        self._packs = {pack: members for pack, members in self._packs.items() if pack in present}
        self._packs_listed_s = time.monotonic()
        return self._packs


def members_of(pack: Path | pa.BufferReader) -> frozenset[str]:
    """Return the segments that a pack holds; none where it cannot be read."""
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
    """Return all rows of a segment or pack. Raises LogUnavailable."""
    with _readable(path):
        return pq.read_table(path, partitioning=None)


def count_rows(path: Path) -> int:
    """Return how many events a segment or pack holds, by its footer. Raises LogUnavailable."""
    with _readable(path):
        return int(pq.read_metadata(path).num_rows)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowInvalid, OSError) as error:
        raise LogUnavailable(f"The log segment {path} cannot be read: {error}. Restore it from a copy.") from error


def _recorded(source: SegmentSource) -> Iterator[tuple[str, datetime]]:
    """Each segment of a file, and when its last event was recorded."""
    with _readable(source.path):
        packed = "segment" in pq.read_schema(source.path).names
        stored = pq.read_table(
            source.path, columns=["recorded_at", *(["segment"] if packed else [])], partitioning=None
        )
    names = stored["segment"] if packed else pa.array([source.path.stem] * stored.num_rows, pa.string())
    times = stored["recorded_at"].cast(pa.int64())
    newest = pa.table({"segment": names, "recorded_us": times}).group_by("segment").aggregate([("recorded_us", "max")])
    for row in newest.to_pylist():
        if source.segments is None or row["segment"] in source.segments:
            yield row["segment"], datetime.fromtimestamp(0, UTC) + timedelta(microseconds=row["recorded_us_max"])


def _batches(source: SegmentSource, types: Collection[str] | None) -> Iterator[pa.RecordBatch]:
    wanted = {"type": types, "segment": source.segments}
    filters = {column: values for column, values in wanted.items() if values is not None}
    for table in _matching(source.path, filters) if filters else [read_table(source.path)]:
        yield from table.to_batches()


def _matching(path: Path, filters: Mapping[str, Collection[str]]) -> Iterator[pa.Table]:
    """Yield the rows whose columns hold one of the wanted values; row groups without any are not read.

    Not by a filter of pyarrow's: for one it imports pandas, which takes longer than reading a ledger.
    """
    with _readable(path), pq.ParquetFile(path) as file:
        columns = {column: file.schema_arrow.get_field_index(column) for column in filters}
        for group in range(file.num_row_groups):
            held = file.metadata.row_group(group)
            if all(_may_hold(held.column(columns[c]).statistics, values) for c, values in filters.items()):
                table = file.read_row_group(group)
                keep = pa.array([True] * table.num_rows)
                for column, values in filters.items():
                    keep = pc.and_(keep, pc.is_in(table[column], value_set=pa.array(sorted(values), pa.string())))
                if (rows := table.filter(keep)).num_rows:
                    yield rows


def _may_hold(statistics: pq.Statistics | None, values: Collection[str]) -> bool:
    if statistics is None or not statistics.has_min_max:
        return True
    return any(statistics.min <= value <= statistics.max for value in values)


__all__ = ["AppendResult", "EventLog", "SegmentSource", "Snapshot"]
