"""Write, audit, publish: a projection is built beside the one in service, checked, and only then pointed to.

`warehouse/projection-<snapshot>-<schema>.duckdb` never changes once `CURRENT` has named it, so readers need no lock.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import duckdb

from accel_platform.errors import AccelError, WarehouseEmpty
from accel_platform.events import EventLog, Snapshot
from accel_platform.settings import Settings
from accel_platform.warehouse import project
from accel_platform.warehouse.rules import CheckResult, audit, audited_columns

_KEPT = 3
"""Projections that stay on disk after a publish; a reader keeps the one it has open in any case."""

Progress = Callable[[str], None]


class ChecksFailed(AccelError):
    """The audit found broken rules; what was in service stays in service."""

    def __init__(self, checks: list[CheckResult]) -> None:
        self.checks = checks
        broken = ", ".join(f"{check.rule} ({check.broken} rows)" for check in checks if not check.passed)
        super().__init__(f"The new tables break data rules and were not published: {broken}.")


@dataclass(frozen=True)
class Staged:
    """A built projection that is not in service yet (or already is: then nothing is left to do)."""

    path: Path
    snapshot_id: str
    mode: str
    """`current` (nothing new), `incremental` or `full`."""
    seconds: float


@dataclass(frozen=True)
class Refreshed:
    """What a refresh published."""

    snapshot_id: str
    path: Path
    mode: str
    rows: dict[str, int]
    checks: list[CheckResult]
    seconds: float


def refresh(settings: Settings, *, full: bool = False, progress: Progress | None = None) -> Refreshed:
    """Bring the warehouse up to the log: stage, audit, add the matrix, publish.

    Raises ChecksFailed if a data rule is broken, LogUnavailable if the log cannot be read.
    """
    started = time.perf_counter()
    say = progress or (lambda _: None)
    staged = stage(settings, full=full)
    say(f"projected snapshot {staged.snapshot_id[:12]} ({staged.mode}, {staged.seconds:.2f} s)")
    checks = check(staged)
    say(f"checked {len(checks)} data rules")
    publish(settings, staged)
    return Refreshed(
        snapshot_id=staged.snapshot_id,
        path=staged.path,
        mode=staged.mode,
        rows=count_rows(staged.path),
        checks=checks,
        seconds=time.perf_counter() - started,
    )


def stage(settings: Settings, *, full: bool = False, snapshot: Snapshot | None = None) -> Staged:
    """Build the tables for a snapshot (default: the log now), from the projection in service where that is possible."""
    started = time.perf_counter()
    log = EventLog.open(settings)
    directory = settings.warehouse_dir
    with _lock(directory):
        snapshot = snapshot or log.snapshot()
        path = directory / f"projection-{snapshot.id}-{project.schema_id()}.duckdb"
        serving = current(settings)
        if path.exists() and not (full and path != serving):
            if not full:
                return Staged(path, snapshot.id, "current", time.perf_counter() - started)
            path = path.with_suffix(f".{time.time_ns()}.duckdb")
        building = directory / f".building-{os.getpid()}.duckdb"
        _remove(building)
        log.save_snapshot(snapshot)
        try:
            base = None if full or serving is None else _extensible(serving, log, snapshot)
            if serving is None or base is None:
                project.build(building, log, snapshot)
            else:
                shutil.copyfile(serving, building)
                project.extend(building, log, base, snapshot)
            os.replace(building, path)
        finally:
            _remove(building)
    return Staged(path, snapshot.id, "full" if base is None else "incremental", time.perf_counter() - started)


def check(staged: Staged) -> list[CheckResult]:
    """Audit the staged `results`. Raises ChecksFailed, with all verdicts, if one rule is broken."""
    # As text: pandas takes minutes to look for doubles among a million UUID objects, and half a second among strings.
    columns = ", ".join(f"{c}::VARCHAR AS {c}" if c == "result_id" else c for c in audited_columns())
    with duckdb.connect(staged.path, read_only=True) as con:
        frame = con.execute(f"SELECT {columns} FROM results").df()
    checks = audit(frame)
    if not all(result.passed for result in checks):
        raise ChecksFailed(checks)
    return checks


def publish(settings: Settings, staged: Staged) -> None:
    """Add the matrix and move the pointer. A snapshot that the one in service already contains does not replace it."""
    directory = settings.warehouse_dir
    with _lock(directory):
        serving = current(settings)
        if serving == staged.path:
            return
        project.add_matrix(staged.path)
        pointer = directory / ".CURRENT.new"
        pointer.write_text(staged.path.name)
        os.replace(pointer, directory / "CURRENT")
        old = sorted(directory.glob("projection-*.duckdb"), key=lambda path: path.stat().st_mtime_ns)
        for path in old[:-_KEPT]:
            if path != staged.path:
                _remove(path)


def current(settings: Settings) -> Path | None:
    """The projection in service, None before the first."""
    try:
        return settings.warehouse_dir / (settings.warehouse_dir / "CURRENT").read_text()
    except FileNotFoundError:
        return None


def require_current(settings: Settings) -> Path:
    """The projection in service. Raises WarehouseEmpty, with what to do, before the first."""
    path = current(settings)
    if path is None:
        raise WarehouseEmpty(
            f"There is no warehouse at {settings.warehouse_dir} yet: measure (`accel bench run`) or import "
            "(`accel migrate PATH`), then `accel db rebuild`."
        )
    return path


def count_rows(path: Path) -> dict[str, int]:
    """Rows per public table of a projection."""
    with duckdb.connect(path, read_only=True) as con:
        counts = ", ".join(f"(SELECT count(*) FROM {table})" for table in project.TABLES)
        [row] = con.execute(f"SELECT {counts}").fetchall()
    return dict(zip(project.TABLES, row, strict=True))


def _extensible(serving: Path, log: EventLog, snapshot: Snapshot) -> Snapshot | None:
    """The snapshot of the projection in service, if it can be extended: same schema, and nothing in it to forget."""
    _, snapshot_id, schema_id = serving.name.split(".")[0].split("-")
    if schema_id != project.schema_id() or not serving.exists():
        return None
    base = log.load_snapshot(snapshot_id)
    return base if base.segments <= snapshot.segments else None


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.with_name(path.name + ".wal").unlink(missing_ok=True)


@contextmanager
def _lock(directory: Path) -> Iterator[None]:
    """One builder at a time; the kernel releases it when the process dies."""
    directory.mkdir(parents=True, exist_ok=True)
    with open(directory / ".lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
