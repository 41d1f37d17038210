"""Sources of old results, one partition of `legacy_history` each, and their states.

A source is the sample files that come with the platform, or one file or folder in the inbox.
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
from assets.resources import DATA_DIR

legacy_sources = dg.DynamicPartitionsDefinition(name="legacy_sources")

SAMPLES = "samples/legacy"
_INBOX = "inbox/"


@dataclass(frozen=True)
class SourceState:
    """State of a source; its `digest` changes when something is written, moved or deleted."""

    digest: str
    files: int
    changed_at_s: float
    """Change time of its newest file or directory, by the file system's clock, which no copy sets back."""


def source_path(source: str, settings: Settings) -> Path:
    """Return the folder of a source's files."""
    if source.startswith(_INBOX):
        return settings.inbox_dir.resolve() / source.removeprefix(_INBOX)
    return DATA_DIR / source


def inbox_sources(settings: Settings) -> dict[str, Path]:
    """Return the sources in the inbox, without names that begin with a dot; empty without an inbox."""
    inbox = settings.inbox_dir.resolve()
    names = sorted(os.listdir(inbox)) if inbox.is_dir() else []
    return {f"{_INBOX}{name}": inbox / name for name in names if not name.startswith(".") and _is_usable(name)}


def source_state(place: Path) -> SourceState | None:
    """Return the state of a source, None without files. Raises OSError if it vanishes meanwhile."""
    digest, files, changed_at_s = hashlib.sha256(), 0, 0.0
    for path in _walk(place):
        found = path.lstat()
        changed_at_s = max(changed_at_s, found.st_ctime)
        if not path.is_dir():
            files += 1
            digest.update(
                f"{os.fspath(path.relative_to(place.parent))!a} {found.st_size} {found.st_mtime_ns}\n".encode()
            )
    return SourceState(digest.hexdigest()[:16], files, changed_at_s) if files else None


def _walk(place: Path) -> Iterator[Path]:
    yield place
    for folder, folders, names in os.walk(place):
        folders.sort()
        yield from (Path(folder, name) for name in (*folders, *sorted(names)))


def _is_usable(name: str) -> bool:
    """Return whether Dagster accepts the name as a partition. Others are imported by `accel migrate`."""
    return not any(part in name for part in INVALID_PARTITION_SUBSTRINGS) and name.isprintable()
