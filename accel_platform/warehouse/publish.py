"""Publication of tables: a projection is built beside the one in service, audited, and only then pointed to.

The file `CURRENT` names the projection in service. A published projection never changes, so readers need no lock.
"""

from __future__ import annotations

import fcntl
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import duckdb

from accel_platform.atomic_write import make_directory, write_durably
from accel_platform.errors import AccelError, NotFound, StorageUnavailable
from accel_platform.events import EventLog, Snapshot, integrity
from accel_platform.events.snapshot_files import SnapshotDamaged
from accel_platform.settings import Settings, SnapshotSettings
from accel_platform.table_io.values import count_of
from accel_platform.warehouse import build_layer, compat_matrix, spark_engine
from accel_platform.warehouse.interrupts import interruptible
from accel_platform.warehouse.layers import (
    Layer,
    Projection,
    WarehouseDamaged,
    current,
    load_current,
    name_prefix,
    translate_write_errors,
)
from accel_platform.warehouse.rules import CheckResult, audit, audit_by_expectations, audit_of_no_rows, audited_columns
from accel_platform.warehouse.spark_engine import SparkEngine

_MAX_PROJECTIONS = 3
"""Number of projections that stay on disk after a publish; a reader keeps the one it has open in any case."""

_MAX_STAGED_S = 3_600
"""Longest time from staging a projection to publishing it."""

Progress = Callable[[str], None]


class ChecksFailed(AccelError):
    """Rules broken in the audit; the projection in service stays."""

    def __init__(self, checks: list[CheckResult]) -> None:
        self.checks = checks
        broken = ", ".join(f"{check.rule} ({count_of(check.broken, 'row')})" for check in checks if not check.passed)
        super().__init__(f"The new tables break data rules and were not published: {broken}.")


@dataclass(frozen=True)
class StagedProjection:
    """A built projection that is not in service yet, or already is: then nothing is left to do."""

    projection: Projection
    mode: str
    """`current` (nothing new), `incremental` or `full`."""
    seconds: float
    damaged: tuple[integrity.Damage, ...] = ()
    """Files of the log that were moved to quarantine; the tables are built without them."""
    checks: tuple[CheckResult, ...] | None = None
    """Verdicts of the audit, where the projection was audited and given its matrix as it was built; else None."""

    @property
    def snapshot_id(self) -> str:
        return self.projection.snapshot_id


@dataclass(frozen=True)
class RefreshResult:
    """Result of a refresh."""

    projection: Projection
    mode: str
    checks: list[CheckResult]
    seconds: float

    @property
    def snapshot_id(self) -> str:
        return self.projection.snapshot_id

    @cached_property
    def rows(self) -> dict[str, int]:
        """Rows of each public table, counted when first asked for: that takes a tenth of a small refresh."""
        return self.projection.count_rows()


def refresh(settings: Settings, *, full: bool = False, progress: Progress | None = None) -> RefreshResult:
    """Bring the warehouse up to the log: stage, audit, add the matrix, publish.

    Raises ChecksFailed if a data rule is broken, LogUnavailable if the log cannot be read.
    """
    started = time.perf_counter()
    report = progress or (lambda _: None)
    # Completed in one go, because opening the tables twice more takes a third of a small refresh.
    staged = _stage(settings, full=full, snapshot=None, complete=True)
    for damage in staged.damaged:
        report(f"set aside {damage}, which is damaged: the tables are made without it")
    report(f"projected snapshot {staged.snapshot_id[:12]} ({staged.mode}, {staged.seconds:.2f} s)")
    checks = check(staged) if staged.checks is None else list(staged.checks)
    report(f"checked {len(checks)} data rules")
    publish(settings, staged)
    return RefreshResult(
        projection=staged.projection,
        mode=staged.mode,
        checks=checks,
        seconds=time.perf_counter() - started,
    )


def bring_up_to_date(settings: Settings, *, progress: Progress | None = None) -> None:
    """Refresh the tables unless they match the log, or are those of a past snapshot."""
    if isinstance(settings, SnapshotSettings):
        return
    serving = _projection_in_service(settings)
    now = EventLog.open(settings).snapshot().id
    if serving is None or (serving.snapshot_id, serving.schema_id) != (now, build_layer.schema_id()):
        refresh(settings, progress=progress)


def holds(projection: Projection, log: EventLog, snapshot: Snapshot) -> bool:
    """Return whether the tables hold all of a snapshot that they are made of.

    Events that only the table `events` shows, such as those of a training, may be missing.
    """
    if projection.snapshot_id == snapshot.id:
        return True
    known = segments_of(projection, log)
    if known is None or known - snapshot.segments:
        return False
    missing = log.read(Snapshot(snapshot.segments - known), types=build_layer.source_types())
    return next(missing, None) is None


def stage(settings: Settings, *, full: bool = False, snapshot: Snapshot | None = None) -> StagedProjection:
    """Build the tables for a snapshot (default: the log now), on top of those in service where possible.

    Every file of the log that is read is checked. A damaged one is moved to quarantine, and the tables are built
    without it.

    Raises
    ------
    SegmentsGone
        If segments of the tables in service, or of the given snapshot, are lost.
    SegmentsDamaged
        If a snapshot is given and a file of it is damaged.
    """
    return _stage(settings, full=full, snapshot=snapshot, complete=False)


def _stage(settings: Settings, *, full: bool, snapshot: Snapshot | None, complete: bool) -> StagedProjection:
    """Stage as `stage` does; `complete` audits a new projection and adds its matrix. Raises ChecksFailed then."""
    started = time.perf_counter()
    engine = SparkEngine.of(settings)
    log = EventLog.open(settings)
    directory = settings.warehouse_dir
    with _lock(directory):
        serving = _projection_in_service(settings)
        published = None if serving is None else segments_of(serving, log)
        source = _choose_source(settings, log, serving, published, full=full, wanted=snapshot)
        if isinstance(source, Projection):
            return StagedProjection(source, "current", time.perf_counter() - started)
        base = serving.snapshot_id if serving and published is not None else None
        log.save_snapshot(source.snapshot, base=base)
        before = _extensible(serving, published, source.snapshot) if source.below else None
        built, checks = _build(directory, log, source, engine, before, complete=complete)
    mode = "full" if source.below is None else "incremental"
    return StagedProjection(built, mode, time.perf_counter() - started, source.damaged, checks)


@dataclass(frozen=True)
class _Source:
    """Snapshot, lower layers and segments that a new projection is built from."""

    snapshot: Snapshot
    below: Projection | None
    """Lower layers that stay; None if the projection is built from nothing."""
    segments: frozenset[str]
    """Segments of the new layer, all of them intact."""
    damaged: tuple[integrity.Damage, ...]
    """Files of the log that were moved to quarantine on the way."""


def _choose_source(
    settings: Settings,
    log: EventLog,
    serving: Projection | None,
    published: frozenset[str] | None,
    *,
    full: bool,
    wanted: Snapshot | None,
) -> _Source | Projection:
    """Return what to build from, or the projection that was built for the snapshot before.

    The snapshot is `wanted`, else the log's. Damaged segments are moved to quarantine, and the choice is made again for
    the log without them. `published` are the segments of the projection in service. Raises as `stage` does.
    """
    directory, set_aside = settings.warehouse_dir, list[integrity.Damage]()
    while True:
        snapshot = wanted or log.snapshot()
        built_before = sorted(directory.glob(name_prefix(snapshot.id, build_layer.schema_id()) + "-*.json"))
        if built_before and not full:
            return Projection.load(built_before[-1])
        expected = frozenset() if wanted is None else wanted.segments
        if not isinstance(settings, SnapshotSettings):
            expected |= _published_once(log, published, full=full)
        integrity.require_complete(log, expected)
        below = None if full else _extensible(serving, published, snapshot)
        new = snapshot.segments - (published or frozenset()) if below else snapshot.segments
        damaged = integrity.find_damage(log, log.sources(new))
        if not damaged:
            below, segments = _layers_below(log, below, snapshot, new)
            damaged = integrity.find_damage(log, log.sources(segments - new))
        if not damaged:
            return _Source(snapshot, below, segments, tuple(set_aside))
        integrity.set_aside(log, damaged)
        set_aside += damaged
        if wanted is not None:
            raise integrity.SegmentsDamaged(log, damaged)


def _build(
    directory: Path,
    log: EventLog,
    source: _Source,
    engine: SparkEngine | None,
    before: Projection | None,
    *,
    complete: bool,
) -> tuple[Projection, tuple[CheckResult, ...] | None]:
    """Write the new layer, and save and return the projection with it on top.

    `complete` audits what is new and adds the matrix, continued from the published projection `before`; the verdicts
    are returned, too. Raises ChecksFailed if one rule is broken.
    """
    # Leftovers are of a killed builder, because the lock excludes others.
    for leftover in directory.glob(".layer-*"):
        leftover.unlink()
    shutil.rmtree(directory / build_layer.SPILL, ignore_errors=True)
    file = f"layer-{time.time_ns()}.duckdb"
    below = source.below.layers if source.below else ()
    checks: list[CheckResult] = []

    def audit_and_add_matrix(con: duckdb.DuckDBPyConnection, lower: Sequence[str], events: int) -> None:
        # Nothing is planned where nothing is to be looked at: that takes a tenth of a small increment.
        unaudited = not below or con.execute(f"FROM ({_judged_ids(['layer'])}) LIMIT 1").fetchall()
        rows = _audited_rows(["layer"]) if below else "SELECT * FROM results"
        checks.extend(audit(con, rows) if unaudited else audit_of_no_rows())
        _require_passed(checks)
        newest = Layer(file, source.snapshot.id, events)
        compat_matrix.write_matrix(con, dict(zip((*below, newest), (*lower, "layer"), strict=True)), before, engine)

    then = audit_and_add_matrix if complete else None
    events = build_layer.fill_layer(directory / f".{file}", log, source.segments, source.below, engine, then)
    (directory / f".{file}").rename(directory / file)
    layers = (*below, Layer(file, source.snapshot.id, events))
    built = Projection(directory, source.snapshot.id, build_layer.schema_id(), layers)
    built.save()
    return built, tuple(checks) if complete else None


def require_complete(settings: Settings) -> None:
    """Raise SegmentsGone if the log has lost segments of the tables in service."""
    log, serving = EventLog.open(settings), _projection_in_service(settings)
    published = None if serving is None else segments_of(serving, log)
    integrity.require_complete(log, _published_once(log, published, full=False))


def _published_once(log: EventLog, published: frozenset[str] | None, *, full: bool) -> frozenset[str]:
    """Return the segments of the tables in service; for a full build, those of every saved snapshot too."""
    ever = integrity.published_segments(log) if full or published is None else frozenset()
    return (published or frozenset()) | ever


def _layers_below(
    log: EventLog, below: Projection | None, snapshot: Snapshot, new: frozenset[str]
) -> tuple[Projection | None, frozenset[str]]:
    """Return the lower layers that stay, None for none, and the segments that the new layer is built from.

    The number of new events decides how many layers stay; the new layer holds everything above them.
    """
    lower = _lowest_layers(below, build_layer.count_kept_layers(below.layers, log.count_events(new))) if below else None
    if lower is None:
        return None, snapshot.segments
    return lower, new if lower == below else snapshot.segments - log.load_snapshot(lower.snapshot_id).segments


def check(staged: StagedProjection, *, by_expectations: bool = False) -> list[CheckResult]:
    """Audit what is new in the staged `results`; the rest was audited before, in files that never change.

    Raises ChecksFailed, with all verdicts, if one rule is broken.

    `by_expectations` checks with Great Expectations instead of SQL.
    """
    known = _layers_in_service(staged.projection)
    checks = audit_projection(staged.projection, known=known, by_expectations=by_expectations)
    _require_passed(checks)
    return checks


def _require_passed(checks: list[CheckResult]) -> None:
    if not all(result.passed for result in checks):
        raise ChecksFailed(checks)


def audit_projection(
    projection: Projection, *, known: Collection[Layer] = (), by_expectations: bool = False
) -> list[CheckResult]:
    """Return the verdict of every rule over the `results` of a projection.

    Rows of `known` layers are left out unless the other layers (where there are none, the newest) repeat them or judge
    them anew. `by_expectations` checks with Great Expectations instead of SQL.
    """
    new = [f"layer_{number}" for number, layer in enumerate(projection.layers) if layer not in known]
    rows = _audited_rows(new or [f"layer_{len(projection.layers) - 1}"]) if known else "SELECT * FROM results"
    with projection.open() as con, interruptible(con):
        if not by_expectations:
            return audit(con, rows)
        # As text: pandas takes minutes to find doubles among a million UUID objects, and half a second among strings.
        columns = audited_columns() | {"result_id": "result_id::VARCHAR"}
        selected = ", ".join(f"{expression} AS {column}" for column, expression in columns.items())
        return audit_by_expectations(con.execute(f"SELECT {selected} FROM ({rows})").df())


def _audited_rows(catalogs: Iterable[str]) -> str:
    """Return SQL of the results that these attached layers add or judge anew."""
    return f"SELECT * FROM results WHERE event_id IN ({_judged_ids(catalogs)})"


def _judged_ids(catalogs: Iterable[str]) -> str:
    """Return SQL of the ids of results that these attached layers add or judge anew."""
    return " UNION ALL ".join(
        f"SELECT event_id FROM {name}.result_rows UNION ALL SELECT result_id FROM {name}.suspicions "
        f"UNION ALL SELECT result_id FROM {name}.suspicion_overrides"
        for name in catalogs
    )


def publish(settings: Settings, staged: StagedProjection) -> None:
    """Move the pointer, unless this projection or one with more segments is in service. Add a missing matrix first.

    A full build computes the whole matrix anew.
    """
    directory = settings.warehouse_dir
    with _lock(directory):
        serving = _projection_in_service(settings)
        before = None
        if serving is not None and serving.schema_id == staged.projection.schema_id:
            if serving == staged.projection:
                return
            log = EventLog.open(settings)
            ours, theirs = segments_of(staged.projection, log), segments_of(serving, log)
            assert ours is not None, "it was staged from this log"
            if theirs is not None and ours < theirs:  # another process published a later snapshot since
                return
            before = serving if theirs is not None and theirs <= ours and staged.mode != "full" else None
        if staged.checks is None:
            try:
                compat_matrix.add_matrix(staged.projection, before, SparkEngine.of(settings))
            except StorageUnavailable:
                _discard(staged.projection)
                raise
        write_durably(directory / "CURRENT", staged.projection.name)
        _served_marker(directory / staged.projection.name).touch()
        _retire(settings, keep=staged.projection)


def _layers_in_service(projection: Projection) -> tuple[Layer, ...]:
    """Return the layers in service in the projection's directory; none if they have another schema."""
    try:
        serving = load_current(projection.directory)
    except WarehouseDamaged:
        return ()
    return serving.layers if serving and serving.schema_id == projection.schema_id else ()


def _projection_in_service(settings: Settings) -> Projection | None:
    """Return the projection in service; None also if it is damaged, because it is then rebuilt."""
    try:
        return current(settings)
    except WarehouseDamaged:
        return None


def segments_of(projection: Projection, log: EventLog) -> frozenset[str] | None:
    """Return the segments a projection was built from; None if this log does not have its snapshot."""
    try:
        return log.load_snapshot(projection.snapshot_id).segments
    except (NotFound, SnapshotDamaged):
        return None


def _extensible(serving: Projection | None, published: frozenset[str] | None, snapshot: Snapshot) -> Projection | None:
    """Return the projection in service if it can be extended: same schema and log, and no segment to forget.

    `published` are the segments it was built from; None if this log never had its snapshot.
    """
    if serving is None or serving.schema_id != build_layer.schema_id():
        return None
    return serving if published is not None and published <= snapshot.segments else None


def _lowest_layers(below: Projection, count: int) -> Projection | None:
    if count == 0:
        return None
    layers = below.layers[:count]
    return Projection(below.directory, layers[-1].snapshot_id, below.schema_id, layers)


def _served_marker(path: Path) -> Path:
    """Return the path of the marker beside a projection that CURRENT has named."""
    return path.with_suffix(".served")


def _discard(projection: Projection) -> None:
    """Delete a staged projection that could not be completed: DuckDB may have left its newest layer half written."""
    directory, newest = projection.directory, projection.layers[-1].file
    for name in (projection.name, newest, f"{newest}.wal"):
        (directory / name).unlink(missing_ok=True)


def _retire(settings: Settings, *, keep: Projection) -> None:
    """Delete all projections but the newest few, and layers that no remaining one uses.

    One that was never in service stays for an hour, because the process that staged it may still audit it.
    """
    directory = settings.warehouse_dir
    by_age = sorted(directory.glob("projection-*.json"), key=lambda path: path.stat().st_mtime_ns)
    for path in by_age[:-_MAX_PROJECTIONS]:
        served = _served_marker(path)
        if path.name != keep.name and (served.exists() or time.time() - path.stat().st_mtime > _MAX_STAGED_S):
            path.unlink()
            served.unlink(missing_ok=True)
    used: set[str] = set()
    for path in directory.glob("projection-*.json"):
        try:
            used |= {layer.file for layer in Projection.load(path).layers}
        except WarehouseDamaged:
            path.unlink()
    for path in directory.glob("layer-*.duckdb*"):  # and the `.wal` of a layer that DuckDB could not close
        if path.name.removesuffix(".wal") not in used:
            path.unlink()
    spark_engine.retire(settings, used)


@contextmanager
def _lock(directory: Path) -> Iterator[None]:
    """Lock the warehouse for one builder at a time; the kernel releases the lock when the process dies."""
    with translate_write_errors(directory):
        make_directory(directory)
        with open(directory / ".lock", "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
