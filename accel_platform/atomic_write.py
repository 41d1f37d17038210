"""Crash-safe writes of small files and new directories: the old content or the new one, never half of it."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

from accel_platform.errors import InvalidInput


def write_durably(path: Path, content: str | bytes, *, mode: int = 0o666) -> None:
    """Replace the file's content; the content and the file's name are on disk when this returns.

    `mode` less the umask gives the permissions. Raises OSError, and then the file is unchanged.
    """
    # Threads of one process must not write into each other's file.
    temporary = path.with_name(f".{path.name}-{os.getpid()}-{threading.get_ident()}.new")
    temporary.unlink(missing_ok=True)
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
    except OSError:
        # Remove the partial file, because it takes space on a full disk.
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def require_writable(path: Path) -> None:
    """Raise InvalidInput where no file can be written at the path, for use before the work that the file is to hold."""
    if path.is_dir():
        raise InvalidInput(f"{path} is a directory: name the file to write.")
    if not path.parent.is_dir():
        raise InvalidInput(f"The directory {path.parent} does not exist.")
    if not os.access(path.parent, os.W_OK):
        raise InvalidInput(f"{path} cannot be written, because this user may not write to {path.parent}.")


def make_directory(path: Path) -> None:
    """Make a directory and its missing parents, durably: a power cut would otherwise lose files put into them.

    Raises OSError.
    """
    if path.is_dir():
        return
    if path.parent != path:
        make_directory(path.parent)
    path.mkdir(exist_ok=True)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Write a directory's entries to disk: new names and renamed ones. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems cannot sync a directory, because they write its entries at once.
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(descriptor)
