"""Making a back-up: what is new is copied, every file of the log is checked first, and nothing in the place changes.

The names of the log's segments tell whether the source has lost something. Its files may come and go at any time, since
compaction moves segments into packs.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from accel_platform.atomic_write import make_directory, sync_directory
from accel_platform.backup.generations import LOG_FOLDERS, Generation, Place, StoredFile, name_of, open_target
from accel_platform.errors import AccelError, Conflict, InvalidInput, LogUnavailable, NotFound, storage_unavailable
from accel_platform.events import EventLog, Snapshot, integrity, seal
from accel_platform.events.log import members_of
from accel_platform.settings import Settings
from accel_platform.table_io.values import count_of

_ROUNDS = 5
"""A compaction may move files while they are copied; two in a row are far apart."""

Progress = Callable[[str], None]


class BackupRefused(AccelError):
    """The source has lost or damaged something; no generation was made of it."""


@dataclass(frozen=True)
class BackedUp:
    """A generation that was made or restored, and how much of it was new."""

    path: str
    generation: str
    snapshot_id: str
    segments: int
    events: int
    files: int
    copied: int
    bytes: int


def back_up(
    settings: Settings, target: Path | str, *, keep: int | None = None, progress: Progress | None = None
) -> BackedUp:
    """Copy the installation into a directory or S3 prefix, or into one file where the name ends in `.tar` or `.tar.gz`.

    Parameters
    ----------
    keep
        Generations that stay; older ones go, with the files that only they name. None: all stay.

    Raises
    ------
    InvalidInput
        For an empty log, or a target that is in the way or of another installation.
    BackupRefused
        For a log that has lost segments of the newest generation, or holds damaged files.
    LogUnavailable, StorageUnavailable, BackupDamaged
        Where the source or the target cannot be used.
    """
    say = progress or (lambda _: None)
    if keep is not None and keep < 1:
        raise InvalidInput(f"--keep {keep} would leave no back-up: keep 1 or more.")
    log = EventLog.open(settings)
    if not log.snapshot().segments:
        raise InvalidInput("The event log is empty: there is nothing to back up yet.")
    location = str(target)
    _require_elsewhere(settings, location)
    if "://" in location or not location.endswith((".tar", ".tar.gz", ".tgz")):
        with open_target(location) as place:
            place.require_no_other(log.snapshot().segments)
            with _locked(location):
                return _add_generation(settings, log, place, keep, say)
    if keep is not None:
        raise InvalidInput(f"{location} will hold this one back-up: --keep is for a directory or object storage.")
    return _into_archive(settings, log, Path(location), say)


def _into_archive(settings: Settings, log: EventLog, target: Path, say: Progress) -> BackedUp:
    if target.exists():
        raise InvalidInput(
            f"{target} is there already: a file is written once. Name another, or a directory to add to."
        )
    # It is named after the target, so that the next back-up replaces what a killed one left.
    work = target.with_name(f".{target.name}.partial")
    try:
        with _locked(str(work)):
            try:
                done = _write_archive(settings, log, work, target, say)
            finally:
                shutil.rmtree(work)
    except OSError as error:
        unavailable = storage_unavailable(error, f"The back-up {target}")
        raise unavailable or AccelError(f"The back-up {target} cannot be written: {error.strerror}.") from error
    return replace(done, path=str(target))


def _write_archive(settings: Settings, log: EventLog, work: Path, target: Path, say: Progress) -> BackedUp:
    copy, packed = work / "copy", work / "packed"
    if copy.exists():
        shutil.rmtree(copy)
    with open_target(str(copy)) as place:
        done = _add_generation(settings, log, place, None, say)
    with tarfile.open(packed, "w:gz" if target.name.endswith("gz") else "w") as archive:
        archive.add(copy, arcname=".")
    with packed.open("rb") as file:
        os.fsync(file.fileno())
    os.link(packed, target)
    sync_directory(target.parent)
    return done


def _add_generation(settings: Settings, log: EventLog, place: Place, keep: int | None, say: Progress) -> BackedUp:
    generations = place.generations()
    newest = generations[-1] if generations else None
    for problem in place.unreadable().values():
        say(f"{problem} It is passed over.")
    _require_not_shrunk(log, place, newest)
    try:
        installation_id = log.installation_id()
    except LogUnavailable as error:  # a full or failing disk is when a back-up is needed most
        say(f"{error} This back-up is told from others' by its segments alone.")
    else:
        place.claim(installation_id)
    for _ in range(_ROUNDS):
        try:
            segments, files, copied = _copy(settings, log, place, newest, say)
            break
        except (NotFound, FileNotFoundError):
            say("files were moved by a compaction; once more")
    else:
        raise LogUnavailable(f"Files of the event log at {log.location} kept moving: back up again.")
    snapshot = Snapshot(frozenset(segments))
    made_at = datetime.now(UTC)
    if newest is not None:  # clocks may be put back
        made_at = max(made_at, newest.made_at + timedelta(microseconds=1))
    generation = Generation(
        name=name_of(made_at, snapshot.id),
        made_at=made_at,
        snapshot_id=snapshot.id,
        segments=tuple(sorted(segments)),
        events=log.count_events(segments),
        files=files,
    )
    place.add(generation)
    say(f"copied {copied} of {count_of(len(files), 'file')}")
    if keep is not None and (gone := place.expire(keep)):
        say(f"removed {count_of(len(gone), 'older generation')}: {integrity.summarize(gone)}")
    return BackedUp(
        path=place.location,
        generation=generation.name,
        snapshot_id=snapshot.id,
        segments=len(segments),
        events=generation.events,
        files=len(files),
        copied=copied,
        bytes=sum(file.bytes for file in files.values()),
    )


def _copy(
    settings: Settings, log: EventLog, place: Place, newest: Generation | None, say: Progress
) -> tuple[set[str], dict[str, StoredFile], int]:
    """Copy what the place lacks; returns the segments, every file of the generation, and how many were copied."""
    there = place.sizes()
    files: dict[str, StoredFile] = {}
    segments: set[str] = set()
    copied = 0
    damaged = []
    checks = integrity.Checks(log)
    # A snapshot that is saved later may name segments that come later, so they are listed before the segments.
    known = [f"{folder}/{name}" for folder in LOG_FOLDERS[2:] for name in sorted(log.store.keys(folder))]
    unusable = set(log.saved.damaged())
    for key in sorted(unusable):
        before = newest.files.get(key) if newest else None
        if before is not None and there.get(before.sha256) == before.bytes:
            files[key] = before
            say(f"kept as it was backed up before: {key} is damaged in the log")
        else:
            say(f"left out: {key} is damaged, and that moment cannot be gone back to")
    held = [source.key for source in log.sources(log.snapshot().segments)]
    for key in [*(key for key in known if key not in unusable), *held]:
        content, reason = _checked(checks, log, key, None if newest is None else newest.files.get(key))
        if reason is not None:
            damaged.append(f"{key} ({reason})")
            continue
        files[key], new = _add_file(place, there, content)
        copied += new
        if key in held:
            folder, _, name = key.rpartition("/")
            pack = folder == "packs"
            segments |= members_of(log.store.local_path(key)) if pack else {name.removesuffix(".parquet")}
    if damaged:
        raise BackupRefused(
            f"The event log at {log.location} is damaged: {integrity.summarize(damaged)}. The back-up stays as it is. "
            f"`accel db validate --fix --from {place.location}` brings back what it holds whole."
        )
    for name, path in _predictors(settings.models_dir):
        files[name], new = _add_file(place, there, path.read_bytes())
        copied += new
    return segments, files, copied


def _checked(checks: integrity.Checks, log: EventLog, key: str, before: StoredFile | None) -> tuple[bytes, str | None]:
    """Return the content of a file of the log, and why it is not what was written, None if it is.

    `before` has the hash of an earlier back-up, for files that carry none themselves.
    """
    content = log.store.local_path(key).read_bytes()
    for attempt in range(2):
        if before is not None and hashlib.sha256(content).hexdigest() == before.sha256:
            return content, None
        reason = checks.problem_in(key, content)
        if reason is None and before is not None and key.endswith(".parquet") and not seal.is_sealed(content):
            reason = "it is not what was backed up of it before"
        if reason is None or attempt:
            break
        # The local copy of a remote file may be what is damaged.
        log.store.drop_copy(key)
        content = log.store.local_path(key).read_bytes()
    return content, reason


def _add_file(place: Place, there: dict[str, int], content: bytes) -> tuple[StoredFile, bool]:
    file = StoredFile(hashlib.sha256(content).hexdigest(), len(content))
    if there.get(file.sha256) == file.bytes:
        return file, False
    there[file.sha256] = file.bytes
    return file, place.add_file(content, file.sha256)


def _predictors(models: Path) -> Iterator[tuple[str, Path]]:
    # Which one serves is read before what there is: an artifact is there before the pointer names it.
    for path in sorted(path for path in models.glob("*") if path.is_file() and not path.name.startswith(".")):
        yield f"models/{path.name}", path
    for path in sorted(path for path in models.glob("[!.]*/**/*") if path.is_file()):
        yield f"models/{path.relative_to(models).as_posix()}", path


def _require_not_shrunk(log: EventLog, place: Place, newest: Generation | None) -> None:
    gone = set(newest.segments) - log.snapshot().segments if newest else set()
    if gone:
        gone -= integrity.forgotten_segments(log)
    if gone and newest:
        raise BackupRefused(
            f"The event log at {log.location} lacks {len(gone)} of the {len(newest.segments)} segments that the "
            f"back-up at {place.location} holds: {integrity.summarize(sorted(gone))}. The back-up stays as it is. "
            f"`accel db validate --fix --from {place.location}` brings them back; for another "
            "installation, name a new place."
        )


def _require_elsewhere(settings: Settings, location: str) -> None:
    """Raise InvalidInput for a target that equals, contains or is inside what is copied."""
    for own in (settings.log_location, str(settings.models_dir)):
        if "://" in own or "://" in location:
            overlap = f"{location.rstrip('/')}/".startswith(f"{own.rstrip('/')}/")
        else:
            to, source = Path(location).resolve(), Path(own).resolve()
            overlap = to == source or to in source.parents or source in to.parents
        if overlap:
            raise InvalidInput(f"{location} and {own}, which is copied, overlap: name a place elsewhere.")


@contextmanager
def _locked(location: str) -> Iterator[None]:
    """Keep other back-ups out of a directory. Raises Conflict, StorageUnavailable."""
    if "://" in location:
        yield
        return
    try:
        make_directory(Path(location))
        lock = (Path(location) / ".lock").open("w")
    except OSError as error:
        unavailable = storage_unavailable(error, f"The back-up at {location}")
        raise unavailable or AccelError(f"The back-up at {location} cannot be written: {error.strerror}.") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Conflict(f"Another back-up into {location} is under way: wait for its end.") from error
        yield
