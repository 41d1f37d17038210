"""Saved snapshots of the log, stored as differences, so that their cost grows with new segments and not with history.

`snapshots/<id>.json` names the segments that a snapshot adds to an earlier one. Earlier ones are chosen as in a Fenwick
tree, so the n-th is read from at most log2(n) files. `merge` moves all of them into one catalog (`catalog.py`).
A file carries a hash of its content, so an altered one is detected.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Iterator, Mapping
from typing import Any

from accel_platform.errors import LogUnavailable, NotFound
from accel_platform.events import catalog
from accel_platform.events.catalog import Catalog, Entry, Pack
from accel_platform.events.segment_set import Snapshot
from accel_platform.events.segments import SegmentStore

_FOLDER = "snapshots"
_FILE = re.compile(r"([0-9a-f]{32})\.json")
_CATALOG = re.compile(r"catalog-[0-9a-f]{32}\.json\.zst")


class SnapshotDamaged(LogUnavailable):
    """A damaged saved snapshot: its content differs from the content that was saved."""


class SnapshotFiles:
    """The saved snapshots of one log."""

    def __init__(self, store: SegmentStore) -> None:
        self._store = store
        self._catalogs: dict[str, Catalog] = {}

    def ids(self) -> set[str]:
        """Return the ids that `load` finds."""
        return self._single().union(*(read.ids for read in self._read_catalogs()))

    def packs(self) -> dict[str, Pack]:
        """Return the segments of each pack that a catalog names, by pack id. Packs may have come or gone since."""
        return {name: pack for read in self._read_catalogs() for name, pack in read.packs.items()}

    def packed(self) -> Snapshot | None:
        """Return the segments of a catalog's packs: the largest snapshot whose id is known without hashing names."""
        return max((read.packed for read in self._catalogs.values()), key=lambda one: len(one.segments), default=None)

    def save(self, snapshot: Snapshot, base: str | None = None) -> None:
        """Store the snapshot; `base` is a saved one with many of the same segments (default: the newest)."""
        key = f"{_FOLDER}/{snapshot.id}.json"
        if f"{snapshot.id}.json" in self._store.keys(_FOLDER):
            if self._is_sound(snapshot.id):
                return
            self._store.remove(key)
        elif any(snapshot.id in read.ids for read in self._read_catalogs()):
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
        self._store.publish(key, _encode({**content, "sha256": _hash(snapshot.id, content)}))

    def load(self, snapshot_id: str) -> Snapshot:
        """Return a saved snapshot. Raises NotFound, and SnapshotDamaged if its content is not what was saved."""
        names, proven = self._names(snapshot_id)
        snapshot = Snapshot(names, self.packed())
        if not proven and not snapshot.has_id(snapshot_id):
            raise self._alteration(snapshot_id)
        return snapshot

    def _alteration(self, snapshot_id: str) -> SnapshotDamaged:
        return SnapshotDamaged(
            f"The saved snapshot {snapshot_id} in {self._store.location} is damaged: its names are not those that "
            "were saved. A back-up may hold it whole."
        )

    def union(self) -> frozenset[str]:
        """Return the segment names of all saved snapshots; damaged files are skipped."""
        names: set[str] = set()
        for snapshot_id in self._single():
            try:
                content = self._read_file(snapshot_id)
            except SnapshotDamaged:
                continue
            if isinstance(content, list):
                names.update(content)
            elif content:
                names.update(content.get("added", []))
        for read in self._read_catalogs():
            for entry in read.entries:
                names.update(entry.added)
        return frozenset(names)

    def merge(self, *, grace_s: float, packs: Mapping[str, Pack] | None = None) -> int:
        """Write one catalog of all snapshots and of these packs, and remove files that an older catalog holds.

        Returns the number of files removed. A superseded file is removed `grace_s` after its successor appeared,
        because readers may be about to open it.
        """
        removed = self._remove_superseded(grace_s)
        packs = packs or {}
        catalogs = self._read_catalogs()
        merged = frozenset[str]().union(*(read.ids for read in catalogs))
        new = sorted(self._single() - merged)
        if not new and ((len(catalogs) == 1 and catalogs[0].packs == packs) or (not catalogs and not packs)):
            return removed
        entries = max((list(read.entries) for read in catalogs), key=len, default=[])
        held = {entry.id for entry in entries}
        snapshots = []
        for snapshot_id in [*new, *sorted(merged - held)]:
            try:
                snapshots.append((snapshot_id, self.load(snapshot_id).segments))
            except (NotFound, SnapshotDamaged):  # it stays in place, so that `validate` reports it
                continue
        names: set[str] = set()
        for entry in entries:
            names = (names | set(entry.added)) - set(entry.removed)
        for snapshot_id, segments in sorted(snapshots, key=lambda one: (len(one[1]), one[0])):
            entries.append(Entry(snapshot_id, sorted(segments - names), sorted(names - segments)))
            names = set(segments)
        content = Catalog.of(entries, packs, self.packed()).encode()
        self._store.publish(f"{_FOLDER}/{catalog.file_name(content)}", content)
        return removed + self._remove_superseded(grace_s)

    def damaged(self) -> list[str]:
        """Return the keys of files whose content differs from the content that was saved."""
        bad = []
        for name in sorted(self._store.keys(_FOLDER)):
            if found := _FILE.fullmatch(name):
                if not self._is_sound(found[1]):
                    bad.append(f"{_FOLDER}/{name}")
            elif _CATALOG.fullmatch(name) and self._read_catalog(name) is None:
                bad.append(f"{_FOLDER}/{name}")
        return bad

    def _is_sound(self, snapshot_id: str) -> bool:
        try:
            self.load(snapshot_id)
        except (NotFound, SnapshotDamaged):
            return False
        return True

    def _remove_superseded(self, grace_s: float) -> int:
        """Remove snapshots that an old enough catalog holds, and catalogs whose snapshots a newer one holds."""
        blobs = self._store.blobs(_FOLDER)
        ids = {name: read.ids for name in blobs if _CATALOG.fullmatch(name) and (read := self._read_catalog(name))}
        old = [name for name in ids if time.time() - blobs[name].modified_s >= grace_s]
        newer = {name: (blobs[name].modified_s, name) for name in ids}
        superseded = []
        for name in blobs:
            if snapshot := _FILE.fullmatch(name):
                held = any(snapshot[1] in ids[other] for other in old)
            elif name in ids:
                held = any(ids[name] <= ids[other] and newer[name] < newer[other] for other in old)
            else:
                held = False
            if held:
                superseded.append(name)
        self._store.remove(*(f"{_FOLDER}/{name}" for name in superseded))
        for name in superseded:
            self._catalogs.pop(name, None)
        return len(superseded)

    def _names(self, snapshot_id: str) -> tuple[frozenset[str], bool]:
        """Return a snapshot's segments, and whether hashes of content prove them."""
        chain: dict[str, dict[str, Any]] = {}
        wanted: str | None = snapshot_id
        names, proven = frozenset[str](), True
        while wanted is not None:
            content = self._read_file(wanted)
            if content is None:
                names = self._from_catalogs(wanted)
                break
            if isinstance(content, list):  # earlier versions of the platform saved whole lists
                names, proven = frozenset(content), False
                break
            if wanted in chain:
                raise SnapshotDamaged(f"The saved snapshots {' and '.join(chain)} are told by each other.")
            if (written := content.pop("sha256", None)) is None:  # saved before December 2026
                proven = False
            elif written != _hash(wanted, content):
                raise self._alteration(wanted)
            chain[wanted] = content
            wanted = content["base"]
        for content in reversed(chain.values()):
            names = (names | set(content["added"])) - set(content["removed"])
        return names, proven

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
        for read in self._read_catalogs():
            if snapshot_id in read.ids:
                names: set[str] = set()
                for entry in read.entries:
                    names.difference_update(entry.removed)
                    names.update(entry.added)
                    if entry.id == snapshot_id:
                        return frozenset(names)
        raise NotFound(f"No snapshot {snapshot_id} in the event log at {self._store.location}.")

    def _read_catalogs(self) -> list[Catalog]:
        """Return the catalogs that are whole."""
        names = sorted(name for name in self._store.keys(_FOLDER) if _CATALOG.fullmatch(name))
        return [read for name in names if (read := self._read_catalog(name)) is not None]

    def _read_catalog(self, name: str) -> Catalog | None:
        """Return a catalog, None if its file is damaged or was superseded since it was listed."""
        if name not in self._catalogs:
            try:
                data = self._store.local_path(f"{_FOLDER}/{name}").read_bytes()
            except (OSError, NotFound):
                return None
            if catalog.file_name(data) != name:
                return None
            self._catalogs[name] = Catalog.decode(data)
        return self._catalogs[name]

    def _single(self) -> set[str]:
        return {found[1] for name in self._store.keys(_FOLDER) if (found := _FILE.fullmatch(name))}

    def _newest(self) -> str | None:
        blobs = self._store.blobs(_FOLDER)
        saved = {found[1]: blob.modified_s for name, blob in blobs.items() if (found := _FILE.fullmatch(name))}
        if saved:
            return max(saved, key=lambda one: saved[one])
        entries = [read.entries[-1] for read in self._read_catalogs() if read.entries]
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


def _encode(content: object) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode()


def _hash(snapshot_id: str, content: object) -> str:
    """Return the hash that proves that this content was saved as this snapshot."""
    return hashlib.sha256(snapshot_id.encode() + _encode(content)).hexdigest()[:32]
