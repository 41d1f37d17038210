"""Reading back-ups: verifying generations, restoring one, and opening one to take single files of the log from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from accel_platform.atomic_write import make_directory, write_durably
from accel_platform.backup.copying import BackedUp, Progress
from accel_platform.backup.generations import BackupCopy, BackupDamaged, Generation, Place, is_of_log, open_source
from accel_platform.errors import AccelError, InvalidInput, NotFound, one_line, storage_unavailable
from accel_platform.events import EventLog, Snapshot, integrity
from accel_platform.settings import Settings
from accel_platform.table_io.values import count_of


@dataclass(frozen=True)
class GenerationCheck:
    """Result of checking one generation."""

    generation: str
    made_at: str
    """Empty, and the numbers 0, where its list of files cannot be read."""
    segments: int
    events: int
    files: int
    bytes: int
    damaged: tuple[str, ...]
    """Files that are not as they were written; none where the generation is whole."""


@contextmanager
def open_copy(source: Path | str) -> Iterator[BackupCopy]:
    """Open a back-up to take single files of the log from. Raises BackupDamaged."""
    with open_source(str(source)) as place:
        yield BackupCopy(place)


def verify(
    source: Path | str, *, generation: str | None = None, progress: Progress | None = None
) -> list[GenerationCheck]:
    """Check every file of each generation, newest first, or of the one whose name begins so.

    Raises BackupDamaged for what is no back-up, NotFound for a generation that is not there.
    """
    say = progress or (lambda _: None)
    checked = []
    with open_source(str(source)) as place:
        if generation is None:
            unreadable = place.unreadable().items()
            checked += [GenerationCheck(name, "", 0, 0, 0, 0, (problem,)) for name, problem in unreadable]
        wanted = place.generations()[::-1] if generation is None else [_find(place, generation)]
        for one in wanted:
            damaged = tuple(_problems(place, one))
            size = sum(file.bytes for file in one.files.values())
            at = one.made_at.isoformat()
            checked.append(GenerationCheck(one.name, at, len(one.segments), one.events, len(one.files), size, damaged))
            say(f"checked {count_of(len(one.files), 'file')} of {one.name}")
    return checked


def restore(
    settings: Settings, source: Path | str, *, generation: str | None = None, progress: Progress | None = None
) -> BackedUp:
    """Bring a generation (default: the newest) into an installation without events, every file checked first.

    Raises InvalidInput where something is there, BackupDamaged where the generation is not whole.
    """
    say = progress or (lambda _: None)
    with open_source(str(source)) as place:
        chosen = place.generations()[-1] if generation is None else _find(place, generation)
        newer = [problem for name, problem in place.unreadable().items() if name > chosen.name]
        if generation is None and newer:
            raise BackupDamaged(f"{newer[-1]} `--generation {chosen.name}` takes the newest whose list can be read.")
        log = EventLog.open(settings)
        _require_room(settings, log, chosen)
        if problems := _problems(place, chosen):
            raise BackupDamaged(
                f"The back-up at {source} is damaged: {integrity.summarize(problems)}. {_advice(place, chosen)}"
            )
        say(f"checked {count_of(len(chosen.files), 'file')} of {chosen.name}")
        for name in chosen.files:
            content = place.read(chosen, name)
            if content is None:
                raise BackupDamaged(f"The back-up at {source} changed while it was read: {name}.")
            if is_of_log(name):
                log.store.publish(name, content)
            else:
                _write_model(settings.models_dir.parent / name, content)
    if not log.snapshot().has_id(chosen.snapshot_id) or log.count_events(chosen.segments) != chosen.events:
        raise BackupDamaged(
            f"The log at {log.location} is not what the back-up holds: something wrote to it meanwhile."
        )
    return BackedUp(
        path=str(source),
        generation=chosen.name,
        snapshot_id=chosen.snapshot_id,
        segments=len(chosen.segments),
        events=chosen.events,
        files=len(chosen.files),
        copied=len(chosen.files),
        bytes=sum(file.bytes for file in chosen.files.values()),
    )


def _advice(place: Place, damaged: Generation) -> str:
    """Return which generation to restore in place of a damaged one: the newest before it that is whole."""
    earlier = (one for one in place.generations()[::-1] if one.name < damaged.name)
    whole = next((one.name for one in earlier if not _problems(place, one)), None)
    return f"`--generation {whole}` is whole." if whole else "No earlier generation is whole."


def _write_model(path: Path, content: bytes) -> None:
    try:
        make_directory(path.parent)
        write_durably(path, content)
    except OSError as error:
        unavailable = storage_unavailable(error, path)
        raise unavailable or AccelError(f"{path} cannot be written: {error.strerror}.") from error


def _find(place: Place, beginning: str) -> Generation:
    generations = place.generations()
    found = [one for one in generations if one.name.startswith(beginning)]
    if len(found) != 1:
        names = ", ".join(one.name for one in generations[::-1])
        raise NotFound(f"{len(found)} generations begin with {beginning!r}. The newest first: {names}.")
    return found[0]


def _problems(place: Place, generation: Generation) -> list[str]:
    """Return what is wrong with a generation."""
    problems = []
    events: Counter[str] = Counter()
    for name in sorted(generation.files):
        content = place.read(generation, name)
        if content is None:
            problems.append(f"{name} ({generation.path_of(name)}) is missing or not what was copied")
        elif content and name.startswith(("packs/", "segments/")) and name.endswith(".parquet"):
            try:
                events |= _count_events(name, content)  # what is both loose and in a pack counts once
            except (pa.ArrowInvalid, OSError, KeyError) as error:
                problems.append(f"{name} cannot be read: {one_line(error)[:100]}")
    if problems:
        return problems
    if events.keys() != set(generation.segments) or not Snapshot(frozenset(events)).has_id(generation.snapshot_id):
        problems.append("its files hold other segments than its list names")
    elif events.total() != generation.events:
        problems.append(f"its files hold {count_of(events.total(), 'event')}, its list tells of {generation.events}")
    return problems


def _count_events(name: str, content: bytes) -> Counter[str]:
    """Return how many events a segment or pack holds, by segment."""
    with pq.ParquetFile(pa.BufferReader(content)) as file:
        if name.startswith("segments/"):
            return Counter({name.removeprefix("segments/").removesuffix(".parquet"): file.metadata.num_rows})
        counted = file.read(columns=["segment"])["segment"].value_counts().to_pylist()
        return Counter({row["values"]: row["counts"] for row in counted})


def _require_room(settings: Settings, log: EventLog, generation: Generation) -> None:
    """Raise InvalidInput where anything would be overwritten; only the same restore, interrupted, goes on."""
    if not log.snapshot().segments <= set(generation.segments):
        raise InvalidInput(
            f"There are other events at {log.location} already, and restoring never overwrites: name a new --home (or "
            "another ACCEL_LOG_URI)."
        )
    models = settings.models_dir
    # Dot-named files were left by a restore that was killed while it wrote one.
    strangers = [path for path in models.glob("[!.]*/**/*") if path.is_file() and not path.name.startswith(".")]
    if any(f"models/{path.relative_to(models).as_posix()}" not in generation.files for path in strangers):
        raise InvalidInput(f"There are other predictors at {models} already: name a new --home.")
