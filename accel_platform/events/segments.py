"""Where segments lie: write-once files in a directory or an S3 prefix. What is inside them is not known here.

Publishing is atomic and first-wins: a name either holds complete, durable bytes or does not exist.
"""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from pathlib import Path
from typing import Protocol

from obstore.exceptions import AlreadyExistsError, BaseError, NotFoundError
from obstore.store import ObjectStore, from_url

from accel_platform.errors import LogUnavailable, NotFound


class SegmentStore(Protocol):
    """Named immutable blobs under slash-separated keys, e.g. `segments/run-1.parquet`."""

    location: str

    def publish(self, key: str, data: bytes) -> bool:
        """Make `data` readable under `key`, durably. False, and nothing changed, if the key is taken."""
        ...

    def keys(self, prefix: str) -> set[str]:
        """Names directly under `prefix/`, without the prefix."""
        ...

    def local_path(self, key: str) -> Path:
        """A local file with the blob's content. Raises NotFound."""
        ...

    def empty(self, key: str) -> None:
        """Give back the blob's space but keep its name taken, so that a late retry of its writer stays a no-op."""
        ...


class DirectoryStore:
    """Blobs as files of a directory, local or on a shared file system."""

    def __init__(self, root: Path) -> None:
        self.location = str(root)
        self._root = root
        self._directories: dict[Path, int] = {}

    def publish(self, key: str, data: bytes) -> bool:
        path = self._root / key
        try:
            directory = self._directory(path.parent)
            return _link_new(directory, path, data)
        except OSError as error:
            raise LogUnavailable(f"Cannot write to the event log at {self._root}: {error.strerror}.") from error

    def _directory(self, directory: Path) -> int:
        """An open descriptor of the directory, kept: opening it anew costs a tenth of an append."""
        held = self._directories.get(directory)
        if held is not None and directory.exists() and os.fstat(held).st_nlink > 0:
            return held
        directory.mkdir(parents=True, exist_ok=True)
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
            raise LogUnavailable(f"Cannot read the event log at {self._root}: {error.strerror}.") from error

    def local_path(self, key: str) -> Path:
        path = self._root / key
        if not path.exists():
            raise NotFound(f"No {key} in the event log at {self._root}.")
        return path

    def empty(self, key: str) -> None:
        path = self._root / key
        # A new empty file in its place: who has the old one open reads on.
        temporary = path.with_name(f".{path.name}.{os.getpid()}.empty")
        temporary.touch()
        temporary.replace(path)


def _link_new(directory: int, path: Path, data: bytes) -> bool:
    """Write, fsync, link to the final name, fsync the directory. False if the name is taken.

    An unnamed file (O_TMPFILE) leaves nothing behind when the process dies; where the system has none, a dot-named
    one stands in, which readers skip.
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


class ObjectStoreBlobs:
    """Blobs as S3 objects, written with `If-None-Match: *`. Blobs never change, so what was read is cached locally."""

    def __init__(self, url: str, cache: Path) -> None:
        self.location = url
        self._cache = cache
        # http:// endpoints are what local S3 servers have; a wrong endpoint should fail in seconds, not minutes.
        insecure = os.environ.get("AWS_ENDPOINT_URL", "").startswith("http://")
        try:
            self._store: ObjectStore = from_url(
                url,
                client_options={"allow_http": insecure, "timeout": "30s", "connect_timeout": "5s"},
                retry_config={"max_retries": 3},
            )
        except (BaseError, ValueError) as error:
            raise LogUnavailable(f"Cannot open the event log at {url}: {error}") from error

    def publish(self, key: str, data: bytes) -> bool:
        try:
            self._store.put(key, data, mode="create")
        except AlreadyExistsError:
            return False
        except BaseError as error:
            raise LogUnavailable(f"Cannot write {key} to {self.location}: {error}") from error
        return True

    def keys(self, prefix: str) -> set[str]:
        try:
            listed = self._store.list_with_delimiter(f"{prefix}/")
        except BaseError as error:
            raise LogUnavailable(f"Cannot list {self.location}: {error}") from error
        return {entry["path"].rsplit("/", 1)[-1] for entry in listed["objects"]}

    def local_path(self, key: str) -> Path:
        path = self._cache / key
        if not path.exists():
            try:
                data = bytes(self._store.get(key).bytes())
            except (NotFoundError, FileNotFoundError) as error:
                raise NotFound(f"No {key} in {self.location}.") from error
            except BaseError as error:
                raise LogUnavailable(f"Cannot read {key} from {self.location}: {error}") from error
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor, temporary = tempfile.mkstemp(prefix=".", dir=path.parent)
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
            os.replace(temporary, path)
        return path

    def empty(self, key: str) -> None:
        try:
            self._store.put(key, b"")
        except BaseError as error:
            raise LogUnavailable(f"Cannot empty {key} in {self.location}: {error}") from error


def open_store(location: str, cache: Path) -> SegmentStore:
    """The store behind a directory path or an `s3://bucket/prefix` URL. Raises LogUnavailable for other schemes."""
    scheme, separator, _ = location.partition("://")
    if not separator:
        return DirectoryStore(Path(location))
    if scheme == "s3":
        return ObjectStoreBlobs(location, cache)
    raise LogUnavailable(f"ACCEL_LOG_URI {location!r} is neither a directory nor an s3:// URL.")
