"""Store of promoted predictors beside a shared log, from which all machines of a team serve the same one.

A promoted artifact is stored as one archive next to the log's segments, where `ACCEL_LOG_URI` names a shared log. The
last promotion or rollback in the log decides, whichever machine it was made on.
"""

from __future__ import annotations

import fcntl
import io
import time
import zipfile
import zlib
from collections.abc import Collection
from datetime import timedelta

from accel_platform.atomic_write import make_directory
from accel_platform.errors import NotFound
from accel_platform.events import Event, EventLog
from accel_platform.events.types import PredictorPromoted
from accel_platform.settings import Settings, SnapshotSettings
from predictor.training import artifact
from predictor.training.artifact import ArtifactRejected, Files

PROMOTIONS = "promoted-"
"""Name prefix of segments with promotions and rollbacks, so that they are found without reading the log."""
_FOLDER, _SUFFIX = "models", ".zip"
_MOST_BYTES = 2**30
"""Largest unpacked size of an archive. A predictor of all shipped figures takes 16 MiB."""
_UNSEEN_S = 3_600
"""Seconds for which an archive without a promotion is kept, because its promotion may still follow."""
_WRITTEN_AT = (1980, 1, 1, 0, 0, 0)
"""Time of an archive's files: the earliest that the format has, so that equal artifacts give equal archives."""


def record(log: EventLog, promotion: PredictorPromoted, source: str) -> None:
    """Append a promotion or rollback with a time after all earlier ones, even if the machines' clocks differ."""
    event, newest = Event.of(promotion, source=source), _newest(log)
    if newest is not None and newest.recorded_at >= event.recorded_at:
        event = event.model_copy(update={"recorded_at": newest.recorded_at + timedelta(microseconds=1)})
    log.append([event], key=f"{PROMOTIONS}{promotion.predictor_id}-{event.event_id}")


def share(settings: Settings, log: EventLog, predictor_id: str) -> None:
    """Store an artifact next to the log, if the log is shared.

    Raises LogUnavailable, and ArtifactRejected for an artifact that cannot be read.
    """
    if settings.log_uri is not None and predictor_id not in shared_ids(settings, log):
        log.store.publish(_key(predictor_id), _pack(artifact.read_files(settings, predictor_id)))


def shared_ids(settings: Settings, log: EventLog) -> set[str]:
    """Return the ids of the artifacts next to a shared log."""
    if settings.log_uri is None:
        return set()
    return {name.removesuffix(_SUFFIX) for name in log.store.keys(_FOLDER) if name.endswith(_SUFFIX)}


def fetch(settings: Settings, log: EventLog, predictor_id: str) -> None:
    """Copy an artifact from the shared log's store to this machine, and check every byte.

    Raises NotFound where the store lacks it, ArtifactRejected where it is damaged or of another version.
    """
    key = _key(predictor_id)
    try:
        archive = log.store.local_path(key).read_bytes()
    finally:
        log.store.drop_copy(key)
    artifact.store_checked(settings, predictor_id, _unpack(predictor_id, archive))


def fetch_missing(settings: Settings, log: EventLog, predictor_ids: Collection[str]) -> None:
    """Fetch the artifacts among `predictor_ids` that this machine lacks and the shared log has. Raises as `fetch`."""
    for predictor_id in shared_ids(settings, log).intersection(predictor_ids).difference(artifact.list_ids(settings)):
        fetch(settings, log, predictor_id)


def follow_promotions(settings: Settings) -> str | None:
    """Put the predictor that a shared log promoted last into service on this machine.

    Return its id, or None where nothing changed. An artifact that this machine lacks is fetched. Raises NotFound where
    it is not next to the log, and as `fetch`.
    """
    if settings.log_uri is None or isinstance(settings, SnapshotSettings):
        return None
    log = EventLog.open(settings)
    newest = _newest(log)
    if newest is None or not isinstance(newest.payload, PredictorPromoted):
        return None
    chosen = newest.payload.predictor_id
    make_directory(settings.models_dir)
    with (settings.models_dir / ".following").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several processes of one service follow at once
        if chosen == artifact.current_id(settings):
            return None
        if chosen not in shared_ids(settings, log):
            # This machine's own artifact is not taken instead: before predictors were shared, rollbacks were logged
            # under other names, so it may have been rolled back.
            raise NotFound(
                f"The predictor {chosen} was promoted on another machine, and is not next to the log: `accel train` "
                "there shares it, `accel train` here makes one of this machine's own."
            )
        try:
            artifact.load_checked(settings, chosen)
        except ArtifactRejected:
            fetch(settings, log, chosen)
        artifact.activate(settings, chosen)
    return chosen


def remove_shared(settings: Settings, log: EventLog, kept: Collection[str]) -> None:
    """Delete the artifacts next to a shared log, except those to keep and new ones, which may not be promoted yet."""
    if settings.log_uri is None:
        return
    names = {_key(predictor_id).removeprefix(f"{_FOLDER}/") for predictor_id in kept}
    old = {
        name
        for name, blob in log.store.blobs(_FOLDER).items()
        if name.endswith(_SUFFIX) and name not in names and time.time() - blob.modified_s > _UNSEEN_S
    }
    if old:
        log.store.remove(*(f"{_FOLDER}/{name}" for name in old))


def _newest(log: EventLog) -> Event | None:
    """Return the last promotion or rollback."""
    found = log.read(log.snapshot().beginning(PROMOTIONS), types={PredictorPromoted.__name__})
    return max(found, key=lambda event: (event.recorded_at, event.event_id), default=None)


def _key(predictor_id: str) -> str:
    return f"{_FOLDER}/{predictor_id}{_SUFFIX}"


def _pack(files: Files) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in sorted(files.items()):
            archive.writestr(zipfile.ZipInfo(name, _WRITTEN_AT), content, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def _read_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytes:
    """Read a member, at most one byte beyond the size that it states. Raises BadZipFile."""
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise zipfile.BadZipFile(f"{member.filename} is packed in another way than ours")
    with archive.open(member) as opened:
        return opened.read(member.file_size + 1)


def _unpack(predictor_id: str, archive: bytes) -> Files:
    try:
        with zipfile.ZipFile(io.BytesIO(archive)) as opened:
            size = sum(member.file_size for member in opened.infolist())
            if size > _MOST_BYTES:
                raise ArtifactRejected(
                    f"The archive {_key(predictor_id)} next to the log would unpack to {size / 2**20:,.0f} MiB, which "
                    "no predictor is: delete it, and find out who wrote it."
                )
            return {member.filename: _read_member(opened, member) for member in opened.infolist()}
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError, ValueError, RuntimeError) as error:
        raise ArtifactRejected(
            f"The archive {_key(predictor_id)} next to the log is damaged ({error}): delete it, and run `accel train` "
            "where the predictor serves, which shares it again."
        ) from error
