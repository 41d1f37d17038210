"""Stores of segments: write-once files in a directory, or under an S3 prefix (`object_store.py`).

Publishing is atomic and first-wins: a name either holds complete, durable bytes or does not exist.
"""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from accel_platform.atomic_write import make_directory
from accel_platform.errors import LogUnavailable, NotFound, storage_unavailable

DEFAULT_NAME = "event log"
"""Name of a store in messages, unless it is opened with another."""


@dataclass(frozen=True)
class Blob:
    """Entry of a listing."""

    size_bytes: int
    modified_s: float
    """Seconds since the epoch, by the clock of the store."""


class SegmentStore(Protocol):
    """Named immutable blobs under slash-separated keys, e.g. `segments/run-1.parquet`."""

    location: str

    def publish(self, key: str, data: bytes) -> bool:
        """Store `data` durably under `key`. Return False, with nothing changed, if the key is taken."""
        ...

    def require_writable(self, prefix: str) -> None:
        """Raise LogUnavailable where this process is known not to be able to publish under the prefix."""
        ...

    def keys(self, prefix: str) -> set[str]:
        """Return the names directly under `prefix/`, without the prefix."""
        ...

    def local_path(self, key: str) -> Path:
        """Return a local file with the blob's content. Raises NotFound."""
        ...

    def local_paths(self, keys: Collection[str]) -> list[Path]:
        """Return `local_path` of each key, in order; stores that fetch do so several at a time."""
        ...

    def drop_copy(self, key: str) -> None:
        """Delete the local copy of a blob, in stores that make copies, so that `local_path` fetches it again."""
        ...

    def blobs(self, prefix: str) -> dict[str, Blob]:
        """Return the names of `keys`, with the size and time of change of each blob."""
        ...

    def move(self, key: str, to: str) -> None:
        """Move the blob to another key, and replace a blob of that key; a no-op if it is already gone."""
        ...

    def remove(self, *keys: str) -> None:
        """Delete the blobs; a no-op for those that are already gone."""
        ...


class DirectoryStore:
    """Blobs as files of a directory, local or on a shared file system."""

    def __init__(self, root: Path, *, called: str = DEFAULT_NAME) -> None:
        self.location = str(root)
        self._called = called
        self._root = root
        self._directories: dict[Path, int] = {}

    def publish(self, key: str, data: bytes) -> bool:
        path = self._root / key
        try:
            directory = self._directory(path.parent)
            return _link_new(directory, path, data)
        except OSError as error:
            raise self._unavailable("written", error) from error

    def require_writable(self, prefix: str) -> None:
        place = self._root / prefix
        while not place.exists() and place != place.parent:
            place = place.parent
        try:
            with tempfile.TemporaryFile(dir=place) as file:
                file.write(b"room?")
        except OSError as error:
            raise self._unavailable("written", error) from error

    def _directory(self, directory: Path) -> int:
        """Return an open descriptor of the directory, cached because opening it costs a tenth of an append."""
        held = self._directories.get(directory)
        if held is not None and directory.exists() and os.fstat(held).st_nlink > 0:
            return held
        make_directory(directory)
        self._directories[directory] = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        return self._directories[directory]

    def __del__(self) -> None:
        for held in self._directories.values():
            with contextlib.suppress(OSError):  # the interpreter may have closed it already
                os.close(held)

    def keys(self, prefix: str) -> set[str]:
        try:
            with os.scandir(self._root / prefix) as entries:
                return {entry.name for entry in entries if not entry.name.startswith(".")}
        except FileNotFoundError:
            return set()
        except OSError as error:
            raise self._unavailable("read", error) from error

    def local_path(self, key: str) -> Path:
        path = self._root / key
        if not path.exists():
            raise NotFound(f"No {key} in the {self._called} at {self._root}.")
        return path

    def local_paths(self, keys: Collection[str]) -> list[Path]:
        return [self.local_path(key) for key in keys]

    def drop_copy(self, key: str) -> None:
        """Do nothing, because the file itself is read."""

    def blobs(self, prefix: str) -> dict[str, Blob]:
        found = {}
        for name in self.keys(prefix):
            with contextlib.suppress(FileNotFoundError):  # removed since it was listed
                stat = (self._root / prefix / name).stat()
                found[name] = Blob(stat.st_size, stat.st_mtime)
        return found

    def move(self, key: str, to: str) -> None:
        source, target = self._root / key, self._root / to
        try:
            directory = self._directory(target.parent)
            with contextlib.suppress(FileNotFoundError):  # another process moved it just now
                source.replace(target)
            os.fsync(directory)
            os.fsync(self._directory(source.parent))
        except OSError as error:
            raise self._unavailable("written", error) from error

    def remove(self, *keys: str) -> None:
        try:
            for key in keys:
                (self._root / key).unlink(missing_ok=True)
        except OSError as error:
            raise self._unavailable("written", error) from error

    def _unavailable(self, what: str, error: OSError) -> LogUnavailable:
        unavailable = storage_unavailable(error, f"The {self._called} at {self._root}")
        return LogUnavailable(
            str(unavailable)
            if unavailable
            else f"The {self._called} at {self._root} cannot be {what}: {error.strerror}."
        )


def _link_new(directory: int, path: Path, data: bytes) -> bool:
    """Write, fsync, link to the final name, and fsync the directory. Return False if the name is taken.

    An unnamed file (O_TMPFILE) leaves nothing behind when the process dies. Systems without it get a file whose name
    begins with a dot, which readers skip.
    """
    temporary: str | None = None
    try:
        descriptor = os.open(path.parent, os.O_WRONLY | os.O_TMPFILE, 0o644)
        source = f"/proc/self/fd/{descriptor}"
    except (AttributeError, OSError) as error:
        if isinstance(error, OSError) and error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT):
            raise
        descriptor, temporary = tempfile.mkstemp(prefix=".", suffix=".tmp", dir=path.parent)
        os.fchmod(descriptor, 0o644)
        source = temporary
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        os.fsync(descriptor)
        try:
            os.link(source, path.name, src_dir_fd=directory, dst_dir_fd=directory, follow_symlinks=True)
        except FileExistsError:
            return False
        os.fsync(directory)
        return True
    finally:
        os.close(descriptor)
        if temporary is not None:
            os.unlink(temporary)


def open_store(location: str, cache: Path, *, called: str = DEFAULT_NAME) -> SegmentStore:
    """Open the store at a directory path or an URL of an object storage; `called` names it in messages.

    Raises LogUnavailable for other schemes.
    """
    scheme, separator, _ = location.partition("://")
    if not separator:
        return DirectoryStore(Path(location), called=called)
    # Only here, because hosts that only measure need no client of object stores.
    from accel_platform.events.object_store import PROVIDERS, ObjectStoreBlobs

    if scheme in PROVIDERS:
        return ObjectStoreBlobs(location, cache, called=called)
    raise LogUnavailable(
        f"The {called} cannot lie at {location!r}: name a directory or s3://bucket/prefix, or one of gs://, az:// and "
        "abfss://."
    )
