"""Copies of an installation to keep elsewhere, and bringing one back. What the events say is not known here.

Only the event log is copied, and the predictors, which cost time to train: everything else is made again from the log,
and API keys belong to a machine. Segments never change once they are there, so the copy of one moment's set of names is
consistent whatever is written meanwhile, and a second back-up into the same directory copies only what is new.
"""

from __future__ import annotations

import hashlib
import json
import os
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path, PurePosixPath

from accel_platform.durable import write_durably
from accel_platform.errors import AccelError, InvalidInput
from accel_platform.events import EventLog, Snapshot
from accel_platform.events.segments import SegmentStore, open_store
from accel_platform.settings import Settings

_MANIFEST = "manifest.json"
_FORMAT = 1
_LOG = ("segments", "packs", "snapshots")
Progress = Callable[[str], None]


class BackupDamaged(AccelError):
    """A back-up is not what was written; nothing was restored."""


@dataclass(frozen=True)
class BackedUp:
    """What a back-up holds, and how much of it was new."""

    path: str
    snapshot_id: str
    segments: int
    events: int
    files: int
    copied: int
    bytes: int


@dataclass(frozen=True)
class _File:
    sha256: str
    bytes: int


@dataclass(frozen=True)
class _Manifest:
    """What a back-up consists of."""

    snapshot_id: str
    segments: list[str]
    files: dict[str, _File]
    """By name: `segments/…`, `packs/…`, `snapshots/…`, `models/…`."""
    events: int


def back_up(settings: Settings, target: Path, *, progress: Progress | None = None) -> BackedUp:
    """Copy the installation into a directory, or into one file where the name ends in `.tar` or `.tar.gz`.

    Raises InvalidInput for an empty log or a target that is in the way, LogUnavailable.
    """
    say = progress or (lambda _: None)
    if not _is_archive(target):
        return _into_directory(settings, target, say)
    if target.exists():
        raise InvalidInput(
            f"{target} is there already: a file is written once. Name another, or a directory to add to."
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".backup-", dir=target.parent) as work:
        done = _into_directory(settings, Path(work) / "copy", say)
        packed = Path(work) / "packed"
        with tarfile.open(packed, "w:gz" if target.name.endswith("gz") else "w") as archive:
            archive.add(Path(work) / "copy", arcname=".")
        with packed.open("rb") as file:
            os.fsync(file.fileno())
        os.link(packed, target)
    return BackedUp(**{**vars(done), "path": str(target)})


def restore(settings: Settings, source: Path, *, progress: Progress | None = None) -> BackedUp:
    """Bring a back-up into an installation that has no events yet, every file checked against its hash first.

    Raises InvalidInput where something is there, BackupDamaged where the back-up is not whole.
    """
    say = progress or (lambda _: None)
    with _opened(source) as directory:
        manifest = _read_manifest(directory)
        _require_room(settings, manifest)
        for name, file in manifest.files.items():
            if _sha256(directory / name) != file.sha256:
                raise BackupDamaged(f"The back-up at {source} is damaged: {name} is not what was copied.")
        say(f"checked {len(manifest.files)} files")
        store = open_store(settings.log_location, settings.cache_dir / "log")
        for name in manifest.files:
            content = (directory / name).read_bytes()
            if name.partition("/")[0] in _LOG:
                store.publish(name, content)
            else:
                aim = settings.models_dir.parent / name
                aim.parent.mkdir(parents=True, exist_ok=True)
                write_durably(aim, content)
    log = EventLog.open(settings)
    if log.snapshot().id != manifest.snapshot_id or log.count_events(manifest.segments) != manifest.events:
        raise BackupDamaged(
            f"The log at {log.location} is not what the back-up holds: something wrote to it meanwhile."
        )
    return _told(source, manifest, len(manifest.files))


def _require_room(settings: Settings, manifest: _Manifest) -> None:
    """Nothing is overwritten; only a restore of the same back-up that was interrupted goes on."""
    log = EventLog.open(settings)
    if not log.snapshot().segments <= set(manifest.segments):
        raise InvalidInput(
            f"There are other events at {log.location} already, and restoring never overwrites: name a new --home (or "
            "another ACCEL_LOG_URI)."
        )
    strangers = [
        path for path in settings.models_dir.glob("*/**/*")
        if path.is_file() and f"models/{path.relative_to(settings.models_dir).as_posix()}" not in manifest.files
    ]  # fmt: skip
    if strangers:
        raise InvalidInput(f"There are other predictors at {settings.models_dir} already: name a new --home.")


def _sha256(path: Path) -> str | None:
    """None for what is not there."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return None


def _into_directory(settings: Settings, target: Path, say: Progress) -> BackedUp:
    log = EventLog.open(settings)
    snapshot = log.snapshot()
    if not snapshot.segments:
        raise InvalidInput("The event log is empty: there is nothing to back up yet.")
    if target.exists() and not (target / _MANIFEST).exists() and any(target.iterdir()):
        raise InvalidInput(f"{target} holds something that is no back-up: name an empty or a new directory.")
    before = _read_manifest(target).files if (target / _MANIFEST).exists() else {}
    files: dict[str, _File] = {}
    copied = 0
    for name, read in _parts(settings, snapshot):
        aim = target / name
        never_changes = name.partition("/")[0] in _LOG
        if never_changes and name in before and aim.exists():
            files[name] = before[name]
            continue
        content = read()
        files[name] = _File(hashlib.sha256(content).hexdigest(), len(content))
        if before.get(name) != files[name] or not aim.exists():
            aim.parent.mkdir(parents=True, exist_ok=True)
            write_durably(aim, content)
            copied += 1
    # It goes last: until then the back-up is the one before, whose files are all there.
    manifest = _Manifest(snapshot.id, sorted(snapshot.segments), files, log.count_events(snapshot.segments))
    write_durably(target / _MANIFEST, json.dumps(_written(manifest)))
    for path in [path for path in target.rglob("*") if path.is_file()]:
        if (name := path.relative_to(target).as_posix()) not in files and name != _MANIFEST:
            path.unlink()
    say(f"copied {copied} of {len(files)} files")
    return _told(target, manifest, copied)


def _parts(settings: Settings, snapshot: Snapshot) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """Each file's name in the back-up, and what reads it.

    Packs come after segments: what a pruning empties in between is in a pack by then.
    """
    store = open_store(settings.log_location, settings.cache_dir / "log")
    for name in sorted(snapshot.segments):
        yield _part(store, f"segments/{name}.parquet")
    for kind in ("packs", "snapshots"):
        for key in sorted(store.keys(kind)):
            yield _part(store, f"{kind}/{key}")
    models = settings.models_dir
    # Which one serves is read before what there is: an artefact is there before the pointer names it.
    for path in sorted(path for path in models.glob("*") if path.is_file() and not path.name.startswith(".")):
        yield f"models/{path.name}", partial(bytes, path.read_bytes())
    for path in sorted(path for path in models.glob("[!.]*/**/*") if path.is_file()):
        yield f"models/{path.relative_to(models).as_posix()}", path.read_bytes


def _part(store: SegmentStore, key: str) -> tuple[str, Callable[[], bytes]]:
    return key, lambda: store.local_path(key).read_bytes()


@contextmanager
def _opened(source: Path) -> Iterator[Path]:
    """A back-up's directory; an archive's is a temporary one."""
    if source.is_dir():
        yield source
        return
    with tempfile.TemporaryDirectory(prefix="accel-restore-") as work:
        try:
            with tarfile.open(source) as archive:
                archive.extractall(work, filter="data")
        except (OSError, tarfile.TarError, EOFError) as error:
            raise BackupDamaged(f"{source} is no back-up that can be read: {error}") from error
        yield Path(work)


def _read_manifest(directory: Path) -> _Manifest:
    path = directory / _MANIFEST
    try:
        content = json.loads(path.read_bytes())
        files = {name: _File(**entry) for name, entry in content["files"].items()}
        if content["format"] != _FORMAT or not all(map(_is_harmless, files)):
            raise BackupDamaged(f"{path} was not written by this version of the platform, or not by it at all.")
        return _Manifest(content["snapshot_id"], content["segments"], files, content["events"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BackupDamaged(f"{path} is no back-up's list of files: {error}") from error


def _written(manifest: _Manifest) -> dict[str, object]:
    return {"format": _FORMAT, "made_at": datetime.now(UTC).isoformat(), **asdict(manifest)}


def _is_harmless(name: str) -> bool:
    """Whether a file of the back-up stays where back-ups bring files."""
    parts = PurePosixPath(name).parts
    return len(parts) > 1 and parts[0] in (*_LOG, "models") and ".." not in parts and "\0" not in name


def _is_archive(path: Path) -> bool:
    return path.name.endswith((".tar", ".tar.gz", ".tgz"))


def _told(path: Path, manifest: _Manifest, copied: int) -> BackedUp:
    return BackedUp(
        path=str(path),
        snapshot_id=manifest.snapshot_id,
        segments=len(manifest.segments),
        events=manifest.events,
        files=len(manifest.files),
        copied=copied,
        bytes=sum(file.bytes for file in manifest.files.values()),
    )
