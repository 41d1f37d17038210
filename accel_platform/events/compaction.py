"""Compaction of the log: many small segments become few packs, and duplicates are removed.

Nothing is lost: a pack is checked before its originals are removed, and every snapshot stays readable. A superseded
file is removed an hour after its successor appeared, because a reader may be about to open it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from accel_platform.events import codec
from accel_platform.events.integrity import find_damage, set_aside
from accel_platform.events.log import (
    PACK_GRACE_S,
    PACKS,
    SEGMENTS,
    SUFFIX,
    EventLog,
    SegmentSource,
    Snapshot,
    count_rows,
    pack_key,
    parquet_names,
    read_table,
    segment_key,
)

_MAX_PACK_EVENTS = 1_000_000
"""Packs with at least this many events are not merged again, and a pack is closed once it has so many."""


@dataclass(frozen=True)
class CompactionResult:
    """Result of a compaction."""

    packed: int
    """Segments in the new pack, those of merged packs included."""
    removed: int
    """Files removed: segments held by packs, packs held by larger packs, snapshots held by the catalog."""
    damaged: tuple[str, ...]
    """Keys of blobs that failed their check and were moved to quarantine."""


def compact(log: EventLog, *, grace_s: float = PACK_GRACE_S) -> CompactionResult:
    """Pack small segments, merge packs and saved snapshots, and remove files that older packs hold.

    Safe beside appends and readers. If it is killed, every snapshot stays readable and it can be repeated.
    """
    packed, broken = _pack(log)
    removed, found = _remove_packed(log, grace_s)
    removed += log.saved.merge(grace_s=grace_s, packs=log.known_packs())
    return CompactionResult(packed, removed, (*broken, *found))


def _pack(log: EventLog) -> tuple[int, list[str]]:
    """Write packs of the unpacked segments and of the packs that are small beside them.

    Returns the number of segments in these packs, and the keys of damaged blobs that were moved to quarantine.
    """
    in_packs: set[str] = set().union(*log.packs().values())
    loose = _sources(log, [segment_key(name) for name in sorted(_segments(log) - in_packs)])
    damaged = find_damage(log, loose)
    set_aside(log, damaged)
    broken = {damage.key for damage in damaged}
    sized = [(count_rows(source.path), source) for source in loose if source.key not in broken]
    absorbed = _packs_to_absorb(log, sum(events for events, _ in sized))
    bad = find_damage(log, [source for _, source in absorbed])
    set_aside(log, bad)
    if bad:  # the next compaction packs their originals, where those are still there
        return 0, [damage.key for damage in (*damaged, *bad)]
    sized += absorbed
    packed = frozenset[str]()
    if len(sized) > 1 or any(events >= _MAX_PACK_EVENTS for events, _ in sized):
        packed = packed.union(*(_write_pack(log, group) for group in _groups(sized)))
    return len(packed), [*broken]


def _sources(log: EventLog, keys: Sequence[str]) -> list[SegmentSource]:
    """Return whole blobs as local files."""
    return [SegmentSource(path, key) for path, key in zip(log.store.local_paths(keys), keys, strict=True)]


def _groups(sized: Iterable[tuple[int, SegmentSource]]) -> Iterator[list[SegmentSource]]:
    """Yield the sources, each with its number of events, in groups of one pack each: this bounds the memory needed."""
    group: list[SegmentSource] = []
    total = 0
    for events, source in sized:
        group.append(source)
        total += events
        if total >= _MAX_PACK_EVENTS:
            yield group
            group, total = [], 0
    if group:
        yield group


def _write_pack(log: EventLog, sources: Sequence[SegmentSource]) -> frozenset[str]:
    """Write one pack of these segments and packs, and return the names of its segments."""
    tables, names = [], set[str]()
    for source in sources:
        table = read_table(source.path)
        if source.key.startswith(f"{SEGMENTS}/"):
            name = source.key.removeprefix(f"{SEGMENTS}/").removesuffix(SUFFIX)
            # Columns of a newer version stay, because the segment itself is removed later.
            table = table.append_column("segment", pa.array([name] * table.num_rows, pa.string()))
        elif names:
            # Rows of segments already taken are left out, because two hosts may have packed the same segment.
            taken = pa.array(sorted(names), pa.string())
            table = table.filter(pc.invert(pc.is_in(table["segment"], value_set=taken)))
        tables.append(table)
        names |= set(pc.unique(table["segment"]).to_pylist())
    members = Snapshot(frozenset(names), log.saved.packed())
    # Sorted by segment, because readers often want segments whose names begin alike.
    rows = pa.concat_tables(tables, promote_options="default").sort_by("segment")
    log.store.publish(pack_key(members.id), codec.to_parquet(rows, pack_key(members.id)))
    return members.segments


def _packs_to_absorb(log: EventLog, arriving: int) -> list[tuple[int, SegmentSource]]:
    """Return the packs that new ones absorb, with their events: each is smaller than four times everything below it.

    `arriving` is the number of events in new segments. There are about log4(n) packs below the largest size, and each
    event is written about log4(n) times, as in a size-tiered LSM tree.
    """
    known = log.known_packs()
    absorbed: dict[str, int] = {}
    for name in sorted(log.packs(), key=lambda name: (known[name].events, name)):
        events = known[name].events
        if not arriving or events >= _MAX_PACK_EVENTS or events >= 4 * arriving:
            break
        absorbed[pack_key(name)] = events
        arriving += events
    return list(zip(absorbed.values(), _sources(log, [*absorbed]), strict=True))


def _remove_packed(log: EventLog, grace_s: float) -> tuple[int, list[str]]:
    """Remove segments and smaller packs that are held by packs older than `grace_s`.

    Each pack is checked first; a damaged one is moved to quarantine, and nothing that it holds is removed. Returns the
    number of blobs removed, and the keys of the damaged ones.
    """
    packs = dict(log.packs())
    listed = log.store.blobs(PACKS)
    present = _segments(log)
    removed, damaged = 0, []
    for pack in sorted(packs, key=lambda pack: -len(packs[pack])):
        blob = listed.get(f"{pack}{SUFFIX}")
        if pack not in packs or blob is None or time.time() - blob.modified_s < grace_s:
            continue
        packed = packs[pack] & present
        within = [other for other, members in packs.items() if other != pack and members <= packs[pack]]
        if not packed and not within:
            continue
        found = find_damage(log, [SegmentSource(log.store.local_path(pack_key(pack)), pack_key(pack))])
        if found:
            set_aside(log, found)
            damaged += [damage.key for damage in found]
            continue
        superseded = [segment_key(name) for name in sorted(packed)]
        superseded += [pack_key(other) for other in within]
        log.store.remove(*superseded)
        removed += len(superseded)
        present -= packed
        for other in within:
            del packs[other]
    # Lists and markers written by earlier versions of the platform:
    log.store.remove(*(f"{PACKS}/{name}" for name in listed if not name.endswith(SUFFIX)))
    return removed, damaged


def _segments(log: EventLog) -> set[str]:
    return parquet_names(log.store.keys(SEGMENTS))
