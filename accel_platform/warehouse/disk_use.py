"""Disk use of an installation by part, and removal of files that killed processes left behind."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from accel_platform.events import EventLog
from accel_platform.settings import Settings
from accel_platform.warehouse.layers import WarehouseDamaged, current
from accel_platform.warehouse.spark_engine import exchange_dir

LEFTOVER_AGE_S = 3_600
"""Age of abandoned temporary files: writing one takes seconds, building tables or a predictor minutes."""
_LOG_FOLDERS = {
    "segments": "events, one file per append",
    "packs": "events of many appends",
    "snapshots": "which events a kept moment had",
    "quarantine": "damaged files that were set aside",
    "checksums": "hashes of files that carry none",
    "models": "predictors for all machines of a shared log",
}


@dataclass(frozen=True)
class DiskUse:
    """One part of an installation."""

    part: str
    what: str
    files: int
    size_bytes: int
    """Allocated blocks in a file system; in an object store, the sum of the object sizes."""


def measure_disk_use(settings: Settings) -> list[DiskUse]:
    """Return the space that each part of the installation takes, the log first; missing parts are left out."""
    store = EventLog.open(settings).store
    used = []
    for folder, what in _LOG_FOLDERS.items():
        if "://" in settings.log_location:
            blobs = store.blobs(folder).values()
            used.append(DiskUse(f"log/{folder}", what, len(blobs), sum(blob.size_bytes for blob in blobs)))
        else:
            used.append(_use(f"log/{folder}", what, Path(settings.log_location) / folder))
    serving = _in_service(settings)
    tables = sorted(settings.warehouse_dir.glob("layer-*.duckdb"))
    if serving is None:
        damaged = "damaged, so nobody knows which serve: `accel db rebuild` makes them again from the log"
        used.append(_sum("tables", damaged, [*tables, settings.warehouse_dir / "CURRENT"]))
    else:
        used.append(_sum("tables in service", "made of the log", [path for path in tables if path.name in serving]))
        older = [path for path in tables if path.name not in serving]
        used.append(_sum("earlier tables", "for who still reads them", older))
    used.append(_use("tables as Parquet", "what Spark read and computed", exchange_dir(settings)))
    used.append(_use("predictors", "trained, the one in service and those to go back to", settings.models_dir))
    used.append(_use("cache", "can be made again: `accel cache clean` deletes it", settings.cache_dir))
    used.append(_use("dagster", "runs and their logs", settings.home / "dagster"))
    leftovers = list(find_leftovers(settings, older_than_s=0))
    used.append(_sum("unfinished", "being written, or left by killed processes", leftovers))
    return [use for use in used if use.files]


def find_leftovers(settings: Settings, *, older_than_s: float = LEFTOVER_AGE_S) -> Iterator[Path]:
    """Yield files and folders that never got their final name, which readers do not see."""
    places = [settings.warehouse_dir, settings.models_dir]
    if "://" not in settings.log_location:
        places += [Path(settings.log_location) / folder for folder in _LOG_FOLDERS]
    before = time.time() - older_than_s
    for place in places:
        for path in sorted([*place.glob(".*"), *place.glob("*/.*")]):
            if path.name != ".lock" and _changed_at(path) <= before:
                yield path


def remove_leftovers(settings: Settings) -> list[Path]:
    """Delete temporary files older than an hour, and return them."""
    gone = list(find_leftovers(settings))
    for path in gone:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    return gone


def clean_cache(settings: Settings) -> DiskUse:
    """Delete the cache and temporary files older than an hour, and return what they took.

    A run at work finds its prepared model gone at worst before it loads it, and prepares it again.
    """
    doomed = settings.cache_dir.with_name(".cache-deleted")
    # First the remains of a killed deletion. Renamed at once, so that nobody finds half of a prepared model.
    shutil.rmtree(doomed, ignore_errors=True)
    if settings.cache_dir.exists():
        settings.cache_dir.rename(doomed)
    freed = _sum("cache", "deleted", [doomed, *find_leftovers(settings)])
    shutil.rmtree(doomed, ignore_errors=True)
    remove_leftovers(settings)
    return freed


def _changed_at(path: Path) -> float:
    """Return the time at which a file, or the newest file of a folder, was written; inf if it is gone."""
    try:
        return max(entry.stat().st_mtime for entry in (path, *path.rglob("*")))
    except FileNotFoundError:
        return float("inf")


def _in_service(settings: Settings) -> set[str] | None:
    """Return the names of the layers in service, none before the first publish; None where that is damaged."""
    try:
        projection = current(settings)
    except WarehouseDamaged:
        return None
    return {layer.file for layer in projection.layers} if projection else set()


def _use(part: str, what: str, folder: Path) -> DiskUse:
    return _sum(part, what, [path for path in folder.rglob("*") if not path.name.startswith(".")])


def _sum(part: str, what: str, paths: list[Path]) -> DiskUse:
    files = [entry for path in paths for entry in ([path, *path.rglob("*")] if path.is_dir() else [path])]
    unique = {entry: entry.stat() for entry in files if entry.exists()}
    count = sum(1 for entry in unique if entry.is_file())
    return DiskUse(part, what, count, sum(stat.st_blocks * 512 for stat in unique.values()))
