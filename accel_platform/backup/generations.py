"""Generations of a back-up, and the files that they share.

A file lies under the hash of its content (`files/<sha256>`). So it is stored once, is never changed, and tells by its
name whether it is whole. `generations/<time>-<snapshot>.json` lists the files of one back-up and is written last. The
files of a killed back-up are no generation, and the next back-up uses them. `owner/` names the installation.
"""

from __future__ import annotations

import hashlib
import json
import tarfile
import tempfile
import time
from collections.abc import Collection, Iterator, Set
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any

from accel_platform.errors import AccelError, InvalidInput, NotFound, one_line
from accel_platform.events.segments import SegmentStore, open_store

LOG_FOLDERS = ("segments", "packs", "snapshots", "checksums", "installation")
"""Folders of the event log that are copied. Damaged files in its quarantine are not."""
_FORMAT = 2
_FILES, _GENERATIONS, _OWNER = "files", "generations", "owner"
_FIRST_FORMAT = "manifest.json"
"""The name that earlier versions of the platform gave to the list of the one back-up in a directory."""
_KNOWN = frozenset({_FILES, _GENERATIONS, _OWNER, _FIRST_FORMAT, "models", *LOG_FOLDERS})
_ORPHANED_S = 86_400.0
"""A file of no generation that is older than this was left by a killed back-up: a living one is done by then."""


class BackupDamaged(AccelError):
    """A back-up is not what was written."""


@dataclass(frozen=True)
class StoredFile:
    """The content of one file."""

    sha256: str
    bytes: int


@dataclass(frozen=True)
class Generation:
    """One back-up: an installation at one moment."""

    name: str
    made_at: datetime
    snapshot_id: str
    segments: tuple[str, ...]
    events: int
    files: dict[str, StoredFile]
    """By name: `segments/…`, `packs/…`, …, `models/…`."""
    format: int = _FORMAT

    def path_of(self, name: str) -> str:
        """Return where a file lies in the place."""
        return name if self.format == 1 else f"{_FILES}/{self.files[name].sha256}"


class Place:
    """Directory or S3 prefix with the generations of one installation."""

    def __init__(self, location: str, store: SegmentStore) -> None:
        self.location = location
        self._store = store

    def generations(self) -> list[Generation]:
        """Return the generations whose lists can be read, oldest first."""
        return [found for found in self._lists().values() if isinstance(found, Generation)]

    def unreadable(self) -> dict[str, str]:
        """Return what is wrong with lists of generations that cannot be read, by the generation's name."""
        return {name: found for name, found in self._lists().items() if isinstance(found, str)}

    def _lists(self) -> dict[str, Generation | str]:
        """Return each generation, or what is wrong with its list, by a name that sorts by age; the oldest first."""
        found = {f"0-{_FIRST_FORMAT}": self._read_list(_FIRST_FORMAT)} if self._holds_first_format() else {}
        names = sorted(name for name in self._store.keys(_GENERATIONS) if name.endswith(".json"))
        return found | {name.removesuffix(".json"): self._read_list(f"{_GENERATIONS}/{name}") for name in names}

    def require_no_other(self, segments: Collection[str]) -> None:
        """Raise InvalidInput for a place that is no back-up, nor what a killed one of these segments left."""
        root = Path(self.location)
        if "://" not in self.location and root.is_dir():
            entries = sorted(path.name for path in root.iterdir() if not path.name.startswith("."))
            if strangers := [name for name in entries if name not in _KNOWN]:
                raise InvalidInput(
                    f"{root} holds something that is no back-up ({strangers[0]}): name an empty or a new place."
                )
        if self._store.keys(_OWNER) or self._store.keys(_GENERATIONS) or self._holds_first_format():
            return
        # Back-ups of earlier versions kept files under their own names, as a log does.
        unnamed = {name.removesuffix(".parquet") for name in self._store.keys("segments")}
        if self._store.keys("installation") or self._store.keys("checksums") or not unnamed <= set(segments):
            raise InvalidInput(f"{self.location} holds an event log and no back-up: name an empty or a new place.")

    def claim(self, installation_id: str) -> None:
        """Make the place this installation's. Raises InvalidInput for one of another."""
        owners = self._store.keys(_OWNER)
        if owners - {installation_id}:
            raise InvalidInput(
                f"{self.location} holds the back-up of another installation ({min(owners)[:8]}…, this one is "
                f"{installation_id[:8]}…): name an empty or a new place for this one."
            )
        self._store.publish(f"{_OWNER}/{installation_id}", b"")

    def sizes(self) -> dict[str, int]:
        """Return the files that are there, by hash, and how many bytes each has."""
        return {sha256: blob.size_bytes for sha256, blob in self._store.blobs(_FILES).items()}

    def add_file(self, content: bytes, sha256: str) -> bool:
        """Store a file; False where it is there whole. One that was damaged since is replaced."""
        path = f"{_FILES}/{sha256}"
        if self._store.publish(path, content):
            return True
        if self._content(path) == content:
            return False
        self._store.remove(path)
        return self._store.publish(path, content)

    def add(self, generation: Generation) -> None:
        """Make a back-up count. Its files must be there already."""
        content = asdict(generation) | {"made_at": generation.made_at.isoformat()}
        self._store.publish(f"{_GENERATIONS}/{generation.name}.json", json.dumps(content).encode())

    def expire(self, keep: int) -> list[str]:
        """Remove all generations but the newest few, and files that no other one names; returns their names.

        Killed half-way, the next call removes what is left. Raises BackupDamaged where a list cannot be read, because
        it may name any file.
        """
        generations = self.generations()
        for problem in self.unreadable().values():
            raise BackupDamaged(f"{problem} Nothing is removed while a list cannot be read: delete that list first.")
        gone = generations[:-keep]
        candidates = {generation.path_of(name) for generation in gone for name in generation.files}
        now = time.time()
        for sha256, blob in self._store.blobs(_FILES).items():
            if now - blob.modified_s > _ORPHANED_S:
                candidates.add(f"{_FILES}/{sha256}")
        for generation in gone:
            first = generation.format == 1
            self._store.remove(_FIRST_FORMAT if first else f"{_GENERATIONS}/{generation.name}.json")
        needed = {generation.path_of(name) for generation in generations[-keep:] for name in generation.files}
        for path in sorted(candidates - needed):
            self._store.remove(path)
        return [generation.name for generation in gone]

    def read(self, generation: Generation, name: str) -> bytes | None:
        """Return the content of a file, None where it is missing or not what was copied."""
        content = self._content(generation.path_of(name))
        whole = content is not None and hashlib.sha256(content).hexdigest() == generation.files[name].sha256
        return content if whole else None

    def _content(self, path: str) -> bytes | None:
        try:
            return self._store.local_path(path).read_bytes()
        except (NotFound, FileNotFoundError):
            return None
        finally:
            self._store.drop_copy(path)

    def _holds_first_format(self) -> bool:
        return "://" not in self.location and self._content(_FIRST_FORMAT) is not None

    def _read_list(self, path: str) -> Generation | str:
        """Return a generation, or what is wrong with its list."""
        try:
            return _decode(json.loads(self._content(path) or b""), PurePosixPath(path).stem)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            return f"{self.location}/{path} is no back-up's list of files: {error}."


class BackupCopy:
    """A back-up as a source of single files of the log, to mend it from: see `events.integrity.Copy`."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._newest_of = {name: g for g in place.generations() for name in g.files if is_of_log(name)}

    @property
    def keys(self) -> Set[str]:
        """The files of the log that any generation holds."""
        return self._newest_of.keys()

    def read(self, keys: Collection[str]) -> dict[str, bytes]:
        """Return the content of these files, without those that are damaged here, too."""
        read = {key: self._place.read(self._newest_of[key], key) for key in keys}
        return {key: content for key, content in read.items() if content is not None}


@contextmanager
def open_target(location: str) -> Iterator[Place]:
    """Open a directory or an S3 prefix to add to. Raises InvalidInput for a file."""
    try:
        is_file = "://" not in location and Path(location).is_file()
    except OSError as error:  # a name that is too long
        raise InvalidInput(f"{location} cannot be a back-up's place: {error.strerror}. Name another.") from error
    if is_file:
        raise InvalidInput(
            f"{location} is a file: name a directory, a prefix of object storage or a new .tar or .tar.gz file."
        )
    with tempfile.TemporaryDirectory(prefix="accel-backup-") as cache:
        yield Place(location, open_store(location, Path(cache), called="back-up"))


@contextmanager
def open_source(location: str) -> Iterator[Place]:
    """Open a back-up to read from; an archive is unpacked for the while. Raises NotFound, BackupDamaged."""
    with tempfile.TemporaryDirectory(prefix="accel-backup-") as work:
        where = location
        if "://" not in location and not Path(location).is_dir():
            if not Path(location).exists():
                raise NotFound(
                    f"There is no back-up at {location}: check the place, or `accel db backup {location}` makes one."
                )
            where = work
            try:
                with tarfile.open(location) as archive:
                    archive.extractall(work, filter="data")
            except (OSError, tarfile.TarError, EOFError) as error:
                raise BackupDamaged(f"{location} is no back-up that can be read: {one_line(error)}.") from error
        place = Place(where, open_store(where, Path(work), called="back-up"))
        if not place.generations():
            reason = next(iter(place.unreadable().values()), f"{location} holds no finished generation.")
            raise BackupDamaged(f"{location} is no back-up that can be read: {reason}")
        yield place


def is_of_log(name: str) -> bool:
    """Return whether a file of a back-up belongs into the event log."""
    return name.partition("/")[0] in LOG_FOLDERS


def name_of(made_at: datetime, snapshot_id: str) -> str:
    """Return a generation's name, which sorts by time."""
    return f"{made_at:%Y%m%dT%H%M%S.%fZ}-{snapshot_id[:12]}"


def _decode(content: Any, stem: str) -> Generation:
    """Return the generation that a list tells. Raises ValueError and the like for anything else."""
    if content["format"] not in (1, _FORMAT):
        raise ValueError(f"format {content['format']} is of another version of the platform")
    files = {name: StoredFile(entry["sha256"], int(entry["bytes"])) for name, entry in content["files"].items()}
    for name, file in files.items():
        parts = PurePosixPath(name).parts
        if len(parts) < 2 or parts[0] not in (*LOG_FOLDERS, "models") or ".." in parts or "\0" in name:
            raise ValueError(f"{name!r} lies where no back-up brings files")
        if len(file.sha256) != 64 or not set(file.sha256) <= set("0123456789abcdef"):
            raise ValueError(f"{name!r} has no hash")
    made_at = datetime.fromisoformat(content["made_at"]).astimezone(UTC)
    return Generation(
        name=name_of(made_at, content["snapshot_id"]) if content["format"] == 1 else stem,
        made_at=made_at,
        snapshot_id=content["snapshot_id"],
        segments=tuple(map(str, content["segments"])),
        events=int(content["events"]),
        files=files,
        format=content["format"],
    )
