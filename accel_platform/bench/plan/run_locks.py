"""File locks that mark live runs, busy devices, and a host that computes.

The kernel releases a lock when its process ends, however it ends. Locks hold within one installation on one host, for
commands, assets and requested benchmarks alike.
"""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from accel_platform.atomic_write import make_directory
from accel_platform.hardware.host import host_id
from accel_platform.settings import Settings

_COMPUTING = "computing"
"""File that benchmarks share, and that work beside which nothing shall be measured has for itself."""


@contextmanager
def hold_run_lock(settings: Settings, run_id: str) -> Iterator[None]:
    """Hold the run's lock, a file in the state directory, until the block is left."""
    path = _lock_path(settings, run_id)
    make_directory(path.parent)
    with path.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


@contextmanager
def lock_devices(settings: Settings, devices: Collection[str], report: Callable[[str], None]) -> Iterator[None]:
    """Hold these devices until the block is left; wait, and report it, while another benchmark has one.

    It excludes the work of `lock_host`, which would disturb the measurement.
    """
    folder = _devices_folder(settings)
    make_directory(folder)
    with ExitStack() as held:
        # Lock in a fixed order, so that no two runs deadlock.
        _hold(held, folder / _COMPUTING, fcntl.LOCK_SH, report, "this host computes, and that would be measured, too")
        for device in sorted(devices):
            _hold(held, folder / device, fcntl.LOCK_EX, report, f"another benchmark has {device}")
        yield


@contextmanager
def lock_host(settings: Settings, report: Callable[[str], None]) -> Iterator[None]:
    """Compute with no benchmark beside it until the block is left; wait, and report it, while one measures."""
    folder = _devices_folder(settings)
    make_directory(folder)
    with ExitStack() as held:
        _hold(held, folder / _COMPUTING, fcntl.LOCK_EX, report, "this host measures, or computes something else")
        yield


def _hold(held: ExitStack, path: Path, lock: int, report: Callable[[str], None], why: str) -> None:
    file = held.enter_context(path.open("wb"))
    try:
        fcntl.flock(file, lock | fcntl.LOCK_NB)
    except BlockingIOError:
        report(f"{why}: waiting until it ends")
        fcntl.flock(file, lock)


def turn_path(settings: Settings, device: str) -> Path:
    """Return the file that workers of one run lock while they measure on the device."""
    return _devices_folder(settings) / f"{device}.turn"


def is_running(settings: Settings, run_id: str) -> bool:
    """Return whether a process on this host holds the run's lock. A killed run leaves its lock file, unlocked."""
    try:
        with _lock_path(settings, run_id).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def any_running(settings: Settings) -> bool:
    """Return whether a process on this host holds the lock of any run."""
    folder = settings.home / "under-way"
    return folder.is_dir() and any(is_running(settings, path.name) for path in sorted(folder.iterdir()))


def _devices_folder(settings: Settings) -> Path:
    return (settings.home / "devices" / host_id()).absolute()


def _lock_path(settings: Settings, run_id: str) -> Path:
    return settings.home / "under-way" / run_id
