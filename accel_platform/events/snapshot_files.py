"""Saved snapshots of the log, stored as differences, so that their cost grows with new segments and not with history.

`snapshots/<id>.json` names the segments that a snapshot adds to an earlier one. Earlier ones are chosen as in a Fenwick
tree, so the n-th is read from at most log2(n) files. `merge` moves all of them into one compressed catalog.
A snapshot's id is the hash of its segment names, so an altered file is detected.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from accel_platform.errors import LogUnavailable, NotFound
from accel_platform.events.segments import SegmentStore

_FOLDER = "snapshots"
_FILE = re.compile(r"([0-9a-f]{32})\.json")
_CATALOG = re.compile(r"catalog-[0-9a-f]{32}\.json\.zst")


@dataclass(frozen=True)
class Snapshot:
    """The log at one moment, as the set of its segments."""

    segments: frozenset[str]

    @cached_property
    def id(self) -> str:
        """Hash of the segment names, 32 hex digits; equal ids mean equal events."""
        return hashlib.sha256("\n".join(sorted(self.segments)).encode()).hexdigest()[:32]

    def beginning(self, prefix: str) -> Snapshot:
        """Return the snapshot of the segments whose names begin with `prefix`."""
        return Snapshot(frozenset(name for name in self.segments if name.startswith(prefix)))


class SnapshotDamaged(LogUnavailable):
    """A saved snapshot whose content is not what was saved."""


class SnapshotFiles:
    """The saved snapshots of one log."""

    def __init__(self, store: SegmentStore) -> None:
        self._store = store
        self._catalogs: dict[str, list[_Entry]] = {}

    def ids(self) -> set[str]:
        """Return the ids that `load` finds."""
        return self._single() | {entry.id for name in self._catalog_names() for entry in self._read_catalog(name)}

    def save(self, snapshot: Snapshot, base: str | None = None) -> None:
        """Store the snapshot; `base` is a saved one with many of the same segments (default: the newest)."""
        key = f"{_FOLDER}/{snapshot.id}.json"
        if f"{snapshot.id}.json" in self._store.keys(_FOLDER):
            if self._is_sound(snapshot.id):
                return
            self._store.remove(key)
        elif any(entry.id == snapshot.id for name in self._catalog_names() for entry in self._read_catalog(name)):
            return
        base = base or self._newest()
        number, before = 0, None
        if base is not None and self._is_sound(base):
            number, before = self._base_of_next(base)
        known = self.load(before).segments if before is not None else frozenset()
        content = {
            "number": number,
            "base": before,
            "added": sorted(snapshot.segments - known),
            "removed": sorted(known - snapshot.segments),
        }
        self._store.publish(key, _encode(content))

    def load(self, snapshot_id: str) -> Snapshot:
        """Return a saved snapshot. Raises NotFound, and SnapshotDamaged if its content is not what was saved."""
        snapshot = Snapshot(self._names(snapshot_id))
        if snapshot.id != snapshot_id:
            raise SnapshotDamaged(
                f"The saved snapshot {snapshot_id} in {self._store.location} is damaged: its names are not those that "
                "were saved. A back-up may hold it whole."
            )
        return snapshot

    def union(self) -> frozenset[str]:
        """Return the segment names of all saved snapshots; damaged files are skipped."""
        names: set[str] = set()
        for snapshot_id in self._single():
            try:
                content = self._read_file(snapshot_id)
            except SnapshotDamaged:
                continue
            names.update(content if isinstance(content, list) else content.get("added", []) if content else [])
        for name in self._catalog_names():
            for entry in self._read_catalog(name):
                names.update(entry.added)
        return frozenset(names)

    def merge(self, *, grace_s: float) -> int:
        """Merge single files into one catalog, and remove files that an older catalog holds; return their number.

        A superseded file is removed `grace_s` after its successor appeared, because readers may be about to open it.
        """
        removed = self._remove_superseded(grace_s)
        catalogs = self._catalog_names()
        merged = {entry.id for name in catalogs for entry in self._read_catalog(name)}
        new = sorted(self._single() - merged)
        if not new and len(catalogs) <= 1:
            return removed
        entries: list[_Entry] = []
        for name in catalogs:
            entries = max(entries, self._read_catalog(name), key=len)
        entries = list(entries)
        held = {entry.id for entry in entries}
        snapshots = []
        for snapshot_id in [*new, *sorted(merged - held)]:
            try:
                snapshots.append(self.load(snapshot_id))
            except (NotFound, SnapshotDamaged):  # it stays in place, so that `validate` reports it
                continue
        names: set[str] = set()
        for entry in entries:
            names = (names | set(entry.added)) - set(entry.removed)
        for snapshot in sorted(snapshots, key=lambda one: (len(one.segments), one.id)):
            added, gone = sorted(snapshot.segments - names), sorted(names - snapshot.segments)
            entries.append(_Entry(snapshot.id, added, gone))
            names = set(snapshot.segments)
        listed = _encode([[entry.id, entry.added, entry.removed] for entry in entries])
        # The length goes first, because pyarrow's zstd needs the decompressed size.
        content = len(listed).to_bytes(8, "little") + pa.compress(listed, codec="zstd", asbytes=True)
        self._store.publish(f"{_FOLDER}/catalog-{hashlib.sha256(content).hexdigest()[:32]}.json.zst", content)
        return removed + self._remove_superseded(grace_s)

    def damaged(self) -> list[str]:
        """Return the keys of files whose content is not what was saved."""
        bad = []
        for name in sorted(self._store.keys(_FOLDER)):
            if found := _FILE.fullmatch(name):
                if not self._is_sound(found[1]):
                    bad.append(f"{_FOLDER}/{name}")
            elif _CATALOG.fullmatch(name) and not self._is_whole(name):
                bad.append(f"{_FOLDER}/{name}")
        return bad

    def _is_sound(self, snapshot_id: str) -> bool:
        try:
            self.load(snapshot_id)
        except (NotFound, SnapshotDamaged):
            return False
        return True

    def _remove_superseded(self, grace_s: float) -> int:
        blobs = self._store.blobs(_FOLDER)
        old = {
            name: {entry.id for entry in self._read_catalog(name)}
            for name, blob in blobs.items()
            if _CATALOG.fullmatch(name) and time.time() - blob.modified_s >= grace_s
        }
        superseded = []
        for name in blobs:
            if found := _FILE.fullmatch(name):
                if any(found[1] in ids for ids in old.values()):
                    superseded.append(name)
            elif name in self._catalogs:
                mine = {entry.id for entry in self._read_catalog(name)}
                if any(mine < ids for other, ids in old.items() if other != name):
                    superseded.append(name)
        for name in superseded:
            self._store.remove(f"{_FOLDER}/{name}")
            self._catalogs.pop(name, None)
        return len(superseded)

    def _names(self, snapshot_id: str) -> frozenset[str]:
        chain: dict[str, dict[str, Any]] = {}
        wanted: str | None = snapshot_id
        names: frozenset[str] = frozenset()
        while wanted is not None:
            content = self._read_file(wanted)
            if content is None:
                names = self._from_catalogs(wanted)
                break
            if isinstance(content, list):  # earlier versions of the platform saved whole lists
                names = frozenset(content)
                break
            if wanted in chain:
                raise SnapshotDamaged(f"The saved snapshots {' and '.join(chain)} are told by each other.")
            chain[wanted] = content
            wanted = content["base"]
        for content in reversed(chain.values()):
            names = (names | set(content["added"])) - set(content["removed"])
        return names

    def _read_file(self, snapshot_id: str) -> Any:
        """Return the content of the snapshot's own file, None if it has none. Raises SnapshotDamaged."""
        try:
            path = self._store.local_path(f"{_FOLDER}/{snapshot_id}.json")
        except NotFound:
            return None
        try:
            content = json.loads(path.read_bytes())
        except FileNotFoundError:  # merged since
            return None
        except (OSError, ValueError) as error:
            raise SnapshotDamaged(f"The saved snapshot {path} cannot be read: {error}.") from error
        if isinstance(content, list) or (isinstance(content, dict) and {"base", "added", "removed"} <= content.keys()):
            return content
        raise SnapshotDamaged(f"The saved snapshot {path} cannot be read: it names no segments.")

    def _from_catalogs(self, snapshot_id: str) -> frozenset[str]:
        for name in self._catalog_names():
            names: set[str] = set()
            for entry in self._read_catalog(name):
                names = (names | set(entry.added)) - set(entry.removed)
                if entry.id == snapshot_id:
                    return frozenset(names)
        raise NotFound(f"No snapshot {snapshot_id} in the event log at {self._store.location}.")

    def _catalog_names(self) -> list[str]:
        return sorted(name for name in self._store.keys(_FOLDER) if _CATALOG.fullmatch(name))

    def _is_whole(self, name: str) -> bool:
        try:
            content = self._store.local_path(f"{_FOLDER}/{name}").read_bytes()
        except (OSError, NotFound):
            return False
        return name == f"catalog-{hashlib.sha256(content).hexdigest()[:32]}.json.zst"

    def _read_catalog(self, name: str) -> list[_Entry]:
        """Return the entries in order, an empty list if the file is damaged or was merged since."""
        if name not in self._catalogs:
            if not self._is_whole(name):
                return []
            content = self._store.local_path(f"{_FOLDER}/{name}").read_bytes()
            size = int.from_bytes(content[:8], "little")
            listed = json.loads(pa.decompress(content[8:], size, codec="zstd", asbytes=True))
            self._catalogs[name] = [_Entry(*entry) for entry in listed]
        return self._catalogs[name]

    def _single(self) -> set[str]:
        return {found[1] for name in self._store.keys(_FOLDER) if (found := _FILE.fullmatch(name))}

    def _newest(self) -> str | None:
        blobs = self._store.blobs(_FOLDER)
        saved = {found[1]: blob.modified_s for name, blob in blobs.items() if (found := _FILE.fullmatch(name))}
        if saved:
            return max(saved, key=lambda one: saved[one])
        entries = [entry for name in self._catalog_names() for entry in self._read_catalog(name)]
        return entries[-1].id if entries else None

    def _base_of_next(self, previous: str) -> tuple[int, str]:
        """Return the number of the snapshot after `previous`, and the id in its chain that it is stored against."""
        steps = list(self._chain(previous))
        number = steps[0][0] + 1
        wanted = number - (number & -number)
        return number, next(one for at, one in reversed(steps) if at >= wanted)

    def _chain(self, snapshot_id: str) -> Iterator[tuple[int, str]]:
        """Yield number and id of a snapshot and of its bases, down to one that is stored whole."""
        wanted: str | None = snapshot_id
        while wanted is not None:
            content = self._read_file(wanted)
            if not isinstance(content, dict):
                self._names(wanted)  # raises NotFound unless it is stored whole or in a catalog
                yield 0, wanted
                return
            yield content["number"], wanted
            wanted = content["base"]


@dataclass(frozen=True)
class _Entry:
    """One snapshot of a catalog, as the difference to the entry before it."""

    id: str
    added: list[str]
    removed: list[str]


def _encode(content: object) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode()
