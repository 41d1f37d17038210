"""The sources of old results, one partition of `legacy_history` each, and whether one has changed. When they are read
is said in `sensors.py` and `schedules.py`.

A source is the sample files of this repository, or one file or directory that lies in the inbox.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import dagster as dg
from dagster._core.definitions.partitions.utils.base import INVALID_PARTITION_SUBSTRINGS

from accel_platform.settings import Settings
from assets.resources import REPOSITORY

legacy_sources = dg.DynamicPartitionsDefinition(name="legacy_sources")

SAMPLES = "samples/legacy"
_INBOX = "inbox/"


@dataclass(frozen=True)
class State:
    """What a source looks like from outside: another `digest` means that something was written, moved or deleted."""

    digest: str
    files: int
    changed_at_s: float
    """When the newest of its files or directories changed, by the file system's own clock, which no copy sets back."""


def place_of(source: str, settings: Settings) -> Path:
    """Where the files of a source lie."""
    if source.startswith(_INBOX):
        return settings.inbox_dir.resolve() / source.removeprefix(_INBOX)
    return REPOSITORY / source


def in_inbox(settings: Settings) -> dict[str, Path]:
    """The sources in the inbox; empty where there is no inbox. What begins with a dot is somebody's temporary."""
    inbox = settings.inbox_dir.resolve()
    names = sorted(os.listdir(inbox)) if inbox.is_dir() else []
    return {f"{_INBOX}{name}": inbox / name for name in names if not name.startswith(".") and _is_usable(name)}


def state_of(place: Path) -> State | None:
    """The state of a source, None where it holds no file. Raises OSError for one that goes while it is looked at."""
    digest, files, changed_at_s = hashlib.sha256(), 0, 0.0
    for path in _walk(place):
        found = path.lstat()
        changed_at_s = max(changed_at_s, found.st_ctime)
        if not path.is_dir():
            files += 1
            digest.update(
                f"{os.fspath(path.relative_to(place.parent))!a} {found.st_size} {found.st_mtime_ns}\n".encode()
            )
    return State(digest.hexdigest()[:16], files, changed_at_s) if files else None


def _walk(place: Path) -> Iterator[Path]:
    yield place
    for folder, folders, names in os.walk(place):
        folders.sort()
        yield from (Path(folder, name) for name in (*folders, *sorted(names)))


def _is_usable(name: str) -> bool:
    """Whether Dagster takes the name for a partition. Others are imported by `accel migrate`."""
    return not any(part in name for part in INVALID_PARTITION_SUBSTRINGS) and name.isprintable()
