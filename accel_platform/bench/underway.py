"""Whether a run's process still lives: it holds a lock that the kernel lets go with it, however it ends."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from accel_platform.settings import Settings


@contextmanager
def under_way(settings: Settings, run_id: str) -> Iterator[None]:
    """Hold the run's lock, a file in the state directory, until the block is left."""
    path = _lock_of(settings, run_id)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def is_under_way(settings: Settings, run_id: str) -> bool:
    """Whether a process on this host holds the run's lock; the file of a killed one is there and free."""
    try:
        with _lock_of(settings, run_id).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def any_under_way(settings: Settings) -> bool:
    """Whether a process on this host holds the lock of any run."""
    place = settings.home / "under-way"
    return place.is_dir() and any(is_under_way(settings, path.name) for path in sorted(place.iterdir()))


def _lock_of(settings: Settings, run_id: str) -> Path:
    return settings.home / "under-way" / run_id
