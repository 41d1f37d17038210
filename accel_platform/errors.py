"""Errors meant for people, with the problem and the action. Bugs are not AccelErrors and keep their traceback."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar

INTERRUPTED = 130
"""The exit code of a process that Ctrl-C ended, as shells have it: 128 and the signal's number."""


class AccelError(Exception):
    """A foreseeable failure; its message says what to do. The CLI exits 1, the service answers 4xx or 503.

    `kind` names the kind of problem for programs, `title` for people.
    """

    kind: ClassVar[str] = "refused"
    title: ClassVar[str] = "The request cannot be fulfilled"


class InvalidInput(AccelError):
    """The caller's input cannot be used as it is. The CLI exits 2, the service answers 422."""

    kind = "invalid-input"
    title = "The input cannot be used"


class NotFound(AccelError):
    """The requested thing does not exist. The service answers 404."""

    kind = "not-found"
    title = "Not Found"


class NoFigure(NotFound):
    """Lack of support for any figure; the message says what to measure.

    The service answers 404, as a problem of its own.
    """

    kind = "no-figure"
    title = "Nothing supports a figure"


class Conflict(AccelError):
    """The request does not fit the present state. The service answers 409."""

    kind = "conflict"
    title = "Not as things are"


class Busy(AccelError):
    """The service is at its limit of concurrent requests: try again soon. It answers 503."""

    kind = "busy"
    title = "Too many questions of this kind at once"


class LogUnavailable(AccelError):
    """The event log cannot be read or written (missing, read-only, full, unreachable)."""

    kind = "log-unavailable"
    title = "The event log cannot be read"


class WarehouseEmpty(AccelError):
    """No tables have been published yet."""

    kind = "warehouse-empty"
    title = "Nothing has been measured or imported yet"


class StorageUnavailable(AccelError):
    """A path on disk cannot be used: disk full, read-only, without permission, or of the wrong kind."""

    kind = "storage-unavailable"
    title = "A place on disk cannot be used"


def one_line(error: BaseException) -> str:
    """Return the message of an error on one line, for another message; the name of its type if it has none."""
    return " ".join(str(error).split()) or type(error).__name__


def did_you_mean(names: Iterable[str], otherwise: str = "") -> str:
    """Return the sentence of a message that asks whether one of these names was meant; `otherwise` if there are none.

    A name that is given twice, for two spellings of it, is asked for once.
    """
    listed = ", ".join(dict.fromkeys(names))
    return f"Did you mean {listed}?" if listed else otherwise


_STORAGE = {
    errno.ENOSPC: "the disk is full. Free some space there and try again",
    errno.EDQUOT: "the quota of disk space is used up. Free some space there, or have the quota raised",
    errno.EFBIG: "this system limits how large a file may become. Raise the limit (`ulimit -f`)",
    errno.EROFS: "the file system is read-only. Mount it writable, or use another home directory",
    errno.EACCES: "this user may not do that. Give this user the rights, or use another home directory",
    errno.EPERM: "this user may not do that. Give this user the rights, or use another home directory",
    errno.EISDIR: "a directory is in the place of a file. Move it away and try again",
    errno.ENOTEMPTY: "a directory is in the place of a file. Move it away and try again",
    errno.ENOTDIR: "a file is in the place of a directory. Move it away and try again",
    errno.EEXIST: "a file is in the place of a directory. Move it away and try again",
    errno.EIO: "the disk fails to read or write. Check the disk, and restore from a back-up what it lost",
    errno.EMFILE: "too many files are open. Raise the limit (`ulimit -n`)",
    errno.ENFILE: "too many files are open. Close other programs",
}
"""Meaning of the system's errors that no code of ours can prevent, and what to do."""


_SHORT_WRITE = re.compile(
    r"problem writing element \d+ to file|\d+ requested and \d+ written"
    r"|PytorchStreamWriter failed writing file|unexpected pos \d+ vs \d+"
)

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS})
"""Errors that only writing causes."""


def storage_errno(error: BaseException) -> int | None:
    """Return the errno of a file system error; None for any other error.

    DuckDB and Arrow pass on only the system's text, so their errors are recognized by it. NumPy and PyTorch have words
    of their own for a write that ended early.
    """
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno if error.errno in _STORAGE else None
    text = str(error)
    if _SHORT_WRITE.search(text):
        return errno.ENOSPC
    return next((number for number in _STORAGE if os.strerror(number) in text), None)


def storage_unavailable(error: BaseException, place: object = None) -> StorageUnavailable | None:
    """Return the error to report for a file system error: where, what it means and the action. None for another error.

    `place` is named where the error names no file itself, or a temporary one.
    """
    number = storage_errno(error)
    if number is None:
        return None
    if place is None:
        file = getattr(error, "filename2", None) or getattr(error, "filename", None)
        place = Path(os.fsdecode(file)) if isinstance(file, str | bytes | os.PathLike) else "A file or directory"
    return StorageUnavailable(f"{place} cannot be used: {_STORAGE[number]}.")


_IMPORT_NAMES = {"sklearn": "scikit-learn", "vl_convert": "vl-convert-python", "yaml": "pyyaml"}
"""Packages of the platform that are imported by another name than they are installed by."""


def package_missing(error: BaseException) -> AccelError | None:
    """Return the error to report where a package that the platform depends on is not installed.

    Hosts that only measure lack some. None for another error, or for a package of somebody's own code.
    """
    if not isinstance(error, ModuleNotFoundError) or not error.name:
        return None
    from importlib.metadata import PackageNotFoundError, requires
    from importlib.util import find_spec

    module = error.name.partition(".")[0]
    package = _IMPORT_NAMES.get(module, module.replace("_", "-"))
    try:
        needed = requires("accel-platform") or ()
    except PackageNotFoundError:
        # Run from a folder, which does not state what it needs: whatever is not there.
        needed = [] if find_spec(module) else [package]
    if not any(re.match(rf"{re.escape(package)}(?![\w.-])", line) for line in needed):
        return None
    return AccelError(
        f"This command needs {package}, which is not installed: this host only measures. Use a host with the whole"
        " platform, or `pip install` accel-platform here with all it needs."
    )
