"""The append-only event log: append, snapshot, read, compact. Where bytes lie is `segments.py`, their form `codec.py`.

A snapshot is a set of segment names; its id is their hash. Segments never change, so reading at a snapshot is time
travel, and two logs with equal snapshot ids hold equal events. Compaction copies segments into packs, row for row and
with the segment's name beside each, so every snapshot stays readable when the originals have gone.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from accel_platform.errors import InvalidInput, LogUnavailable
from accel_platform.events import codec
from accel_platform.events.segments import SegmentStore, open_store
from accel_platform.events.types import Event
from accel_platform.settings import Settings

_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,180}")
_SUFFIX = ".parquet"


@dataclass(frozen=True)
class Snapshot:
    """The log at one moment: which segments it consists of."""

    segments: frozenset[str]

    @cached_property
    def id(self) -> str:
        """32 hex digits; equal ids mean equal events."""
        return hashlib.sha256("\n".join(sorted(self.segments)).encode()).hexdigest()[:32]

    def beginning(self, prefix: str) -> Snapshot:
        """The part of it whose segments' names begin with `prefix`."""
        return Snapshot(frozenset(name for name in self.segments if name.startswith(prefix)))


@dataclass(frozen=True)
class Appended:
    """What an append did: `new` is False where the segment was there already and nothing was written."""

    segment: str
    new: bool
    events: int


@dataclass(frozen=True)
class Source:
    """A local Parquet file to read; where `segments` is set, only the rows whose `segment` is one of them."""

    path: Path
    segments: frozenset[str] | None = None


class EventLog:
    """One log at one location. Safe for any number of processes to append to and read at once."""

    def __init__(self, store: SegmentStore) -> None:
        self._store = store
        self._packs: dict[str, frozenset[str]] = {}

    @classmethod
    def open(cls, settings: Settings) -> EventLog:
        """The log of this installation; nothing is created before the first append."""
        return cls(open_store(settings.log_location, settings.cache_dir / "log"))

    @property
    def location(self) -> str:
        return self._store.location

    def append(self, events: Sequence[Event], *, key: str | None = None) -> Appended:
        """Store the events as one segment, durably, all or none; returning is the acknowledgement.

        `key` names the segment and makes the append idempotent: a retry or a second writer with the same key is a
        no-op. Without one the key is the hash of the event ids. Raises InvalidInput for no events or an unusable key,
        LogUnavailable if the bytes cannot be stored.
        """
        return self.append_rows(codec.to_rows(events), key=key)

    def append_rows(self, rows: Sequence[codec.Row], *, key: str | None = None) -> Appended:
        """`append` for events that are rows already, made by `codec.to_rows` here or in another process."""
        if not rows:
            raise InvalidInput("An append needs at least one event.")
        if key is None:
            key = "events-" + hashlib.sha256(b"".join(row[0] for row in rows)).hexdigest()[:32]
        if not _KEY.fullmatch(key):
            raise InvalidInput(f"Segment key {key!r} must be 1-181 letters, digits, '.', '_' or '-'.")
        new = self._store.publish(f"segments/{key}{_SUFFIX}", codec.to_parquet(codec.rows_to_arrow(rows)))
        return Appended(segment=key, new=new, events=len(rows))

    def adopt(self, path: Path) -> Appended:
        """Take a segment that another log wrote, under the hash of its content; adopting it again is a no-op.

        Raises InvalidInput for a file that is no segment, or one of a newer version of this platform.
        """
        try:
            data = path.read_bytes()
            table = pq.read_table(pa.BufferReader(data))
            events = sum(1 for _ in codec.from_arrow(table.to_batches()))
        except OSError as error:
            raise InvalidInput(f"Cannot read {path}: {error.strerror or error}.") from error
        except (pa.ArrowInvalid, KeyError, ValueError) as error:
            raise InvalidInput(f"{path} is no file of events: {' '.join(str(error).split())}") from error
        if not events:
            raise InvalidInput(f"{path} holds no events.")
        key = f"adopted-{hashlib.sha256(data).hexdigest()[:32]}"
        return Appended(segment=key, new=self._store.publish(f"segments/{key}{_SUFFIX}", data), events=events)

    def snapshot(self) -> Snapshot:
        """The log as it is now."""
        return Snapshot(frozenset(_names(self._store.keys("segments"))))

    def save_snapshot(self, snapshot: Snapshot) -> str:
        """Keep the snapshot's names under its id, so that `load_snapshot` finds them; returns the id."""
        self._store.publish(f"snapshots/{snapshot.id}.json", json.dumps(sorted(snapshot.segments)).encode())
        return snapshot.id

    def load_snapshot(self, snapshot_id: str) -> Snapshot:
        """A saved snapshot. Raises NotFound."""
        path = self._store.local_path(f"snapshots/{snapshot_id}.json")
        return Snapshot(frozenset(json.loads(path.read_bytes())))

    def saved_snapshots(self) -> set[str]:
        """The ids that `load_snapshot` finds."""
        return {key.removesuffix(".json") for key in self._store.keys("snapshots")}

    def recorded_until(self, moment: datetime) -> Snapshot:
        """The log as it was recorded by a moment: the segments that hold no event of a later one.

        What was taken over from another log counts from when it was recorded there.
        """
        kept: set[str] = set()
        for source in self.sources(self.snapshot().segments):
            kept |= {name for name, newest in _recorded(source) if newest <= moment}
        return Snapshot(frozenset(kept))

    def sources(self, segments: Collection[str]) -> list[Source]:
        """Local files that together hold exactly these segments. Raises NotFound if one is in no file."""
        wanted = set(segments)
        found = []
        for pack, members in self._load_packs().items():
            here = wanted & members
            if here:
                path = self._store.local_path(f"packs/{pack}{_SUFFIX}")
                found.append(Source(path, None if here == members else frozenset(here)))
                wanted -= here
        found += [Source(self._store.local_path(f"segments/{name}{_SUFFIX}")) for name in sorted(wanted)]
        return found

    def read(self, snapshot: Snapshot | None = None, *, types: Collection[str] | None = None) -> Iterator[Event]:
        """Events at a snapshot (default: now), segment by segment, old versions lifted; no order across segments."""
        for source in self.sources((snapshot or self.snapshot()).segments):
            yield from codec.from_arrow(_batches(source, types))

    def count_events(self, segments: Collection[str]) -> int:
        """How many events these segments hold, read from file footers alone where a file is wanted whole."""
        return sum(
            _count_rows(source.path)
            if source.segments is None
            else sum(batch.num_rows for batch in _batches(source, None))
            for source in self.sources(segments)
        )

    def compact(self, *, below_events: int = 100_000) -> Snapshot | None:
        """Copy the segments that are in no pack yet, and hold fewer than `below_events`, into one pack.

        Returns the segments packed, None where there were fewer than two. Safe beside appends and readers; killed
        half-way it leaves the log as it was, and a second run packs the same segments under the same name.
        """
        packed: set[str] = set().union(*self._load_packs().values())
        small, tables = [], []
        for name in sorted(set(_names(self._store.keys("segments"))) - packed):
            path = self._store.local_path(f"segments/{name}{_SUFFIX}")
            if _count_rows(path) < below_events:
                table = _read_table(path)
                small.append(name)
                tables.append(table.append_column("segment", pa.array([name] * table.num_rows, pa.string())))
        if len(small) < 2:
            return None
        members = Snapshot(frozenset(small))
        self._store.publish(f"packs/{members.id}{_SUFFIX}", codec.to_parquet(pa.concat_tables(tables)))
        # The manifest goes last: a pack without one is never read.
        self._store.publish(f"packs/{members.id}.json", json.dumps(small).encode())
        return members

    def prune(self) -> int:
        """Empty the originals of segments that a pack holds; returns how many. Their snapshots stay readable.

        A reader that asked for `sources` before the pack was there may find a file empty and must ask again, so run
        this when none is under way.
        """
        done = self._store.keys("packs")
        emptied = 0
        for pack, members in self._load_packs().items():
            if f"{pack}.pruned" in done:
                continue
            for name in members:
                self._store.empty(f"segments/{name}{_SUFFIX}")
            self._store.publish(f"packs/{pack}.pruned", b"")
            emptied += len(members)
        return emptied

    def _load_packs(self) -> dict[str, frozenset[str]]:
        for key in self._store.keys("packs"):
            pack, _, kind = key.rpartition(".")
            if kind == "json" and pack not in self._packs:
                members = json.loads(self._store.local_path(f"packs/{key}").read_bytes())
                self._packs[pack] = frozenset(members)
        return self._packs


def _names(keys: Collection[str]) -> Iterator[str]:
    return (key.removesuffix(_SUFFIX) for key in keys if key.endswith(_SUFFIX))


def _read_table(path: Path, wanted: pc.Expression | None = None) -> pa.Table:
    """The wanted rows; row groups that hold none of them are not read."""
    with _readable(path):
        return pq.read_table(path, partitioning=None, filters=wanted)


def _count_rows(path: Path) -> int:
    with _readable(path):
        return int(pq.read_metadata(path).num_rows)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowInvalid, OSError) as error:
        raise LogUnavailable(f"The log segment {path} cannot be read: {error}. Restore it from a copy.") from error


def _recorded(source: Source) -> Iterator[tuple[str, datetime]]:
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


def _batches(source: Source, types: Collection[str] | None) -> Iterator[pa.RecordBatch]:
    if source.segments is not None:
        wanted = pc.field("segment").isin(sorted(source.segments))
        tables: Iterable[pa.Table] = [
            _read_table(source.path, wanted if types is None else wanted & pc.field("type").isin(sorted(types)))
        ]
    elif types is None:
        tables = [_read_table(source.path)]
    else:
        tables = _of_types(source.path, types)
    for table in tables:
        yield from table.to_batches()


def _of_types(path: Path, types: Collection[str]) -> Iterator[pa.Table]:
    """The rows of these types; row groups without any are not read.

    Not by a filter of pyarrow's: for one it imports pandas, which takes longer than reading a ledger.
    """
    with _readable(path), pq.ParquetFile(path) as file:
        column = file.schema_arrow.get_field_index("type")
        for group in range(file.num_row_groups):
            held = file.metadata.row_group(group).column(column).statistics
            if held is not None and held.has_min_max and not any(held.min <= name <= held.max for name in types):
                continue
            table = file.read_row_group(group)
            start = 0
            for wanted, rows in itertools.groupby(table["type"].to_pylist(), types.__contains__):
                length = sum(1 for _ in rows)
                if wanted:
                    yield table.slice(start, length)
                start += length


__all__ = ["Appended", "EventLog", "Snapshot", "Source"]
