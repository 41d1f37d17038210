"""The full pipeline in this process, for `accel run`, in a persistent Dagster instance.

Dagster's events become lines of text, which go to the function that the caller passes.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import dagster as dg
import psutil
import sqlalchemy
from dagster._core.events import RunFailureReason

from accel_platform import pipeline_progress
from accel_platform.atomic_write import make_directory, write_durably
from accel_platform.errors import AccelError, InvalidInput, StorageUnavailable
from accel_platform.pipeline_progress import is_alive, process_identity, process_number
from accel_platform.settings import Settings
from assets.definitions import build_defs
from assets.failures import reason_of
from assets.partitions import SAMPLES, legacy_sources
from assets.resources import DATA_DIR, Installation
from assets.triggers.jobs import full_pipeline

Say = Callable[[str], None]

STAGES = {
    "hardware_inventory": "Detecting this host's hardware",
    "measurements": "Measuring what the log lacks",
    "legacy_history": "Migrating old results",
    "raw_events": "Building and checking the tables, the matrix and the predictor",
}
"""Line printed when the step of that name begins; any other step belongs to the stage before it."""

_POSTGRES = """
storage:
  postgres:
    postgres_url:
      env: ACCEL_POSTGRES_URL
"""
"""Part of `dagster.yaml` that moves Dagster's storage to PostgreSQL."""

TABLES_LOCK = 0x616363656C
"""Key of the lock in PostgreSQL while Dagster's tables are created: `accel`."""

_PROCESS = "accel/process"
"""Tag of a run: the process that works on it."""


@dataclass(frozen=True)
class Outcome:
    """Outcome of a run of the full pipeline."""

    run_id: str
    seconds: float
    materialized: dict[str, dict[str, Any]]
    """Each asset that was made, to the numbers and texts of its metadata."""
    failures: dict[str, str]
    """Each step that failed, to the reason."""


def dagster_home(settings: Settings) -> Path:
    """Prepare DAGSTER_HOME of an installation: a folder whose `dagster.yaml` links to the platform's.

    A link to another place, such as a removed installation, is replaced; a file of the user stays. ACCEL_POSTGRES_URL
    selects another folder, for an instance shared by machines; the variable is set for this process and its children.
    Raises AccelError if PostgreSQL does not answer.
    """
    home = settings.home.resolve() / ("dagster" if settings.postgres_url is None else "dagster-postgres")
    source, link = DATA_DIR / "dagster.yaml", home / "dagster.yaml"
    make_directory(home)
    if settings.postgres_url is not None:
        if find_spec("dagster_postgres") is None:
            raise AccelError("ACCEL_POSTGRES_URL needs dagster-postgres: install accel-platform[postgres].")
        # SQLAlchemy takes another driver than dagster-postgres brings, unless the URL names it.
        scheme, separator, rest = settings.postgres_url.partition("://")
        driver = "postgresql+psycopg2" if scheme in ("postgres", "postgresql") else scheme
        os.environ["ACCEL_POSTGRES_URL"] = f"{driver}{separator}{rest}"
        write_durably(link, source.read_text() + _POSTGRES)
        _create_tables(home)
        return home
    if not link.exists() or (link.is_symlink() and link.resolve() != source):
        # Renamed into place, because another process may read the link or make it, too.
        temporary = home / f".dagster.yaml-{os.getpid()}"
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(source)
        temporary.replace(link)
    return home


def _create_tables(home: Path) -> None:
    """Let Dagster create its tables in PostgreSQL, one process at a time: of several that begin at once some fail.

    Raises AccelError if PostgreSQL does not answer, InvalidInput if the address is none.
    """
    try:
        engine = sqlalchemy.create_engine(os.environ["ACCEL_POSTGRES_URL"], poolclass=sqlalchemy.NullPool)
    except (sqlalchemy.exc.ArgumentError, ValueError, ImportError) as error:
        raise InvalidInput(
            "ACCEL_POSTGRES_URL is no address of PostgreSQL: write it as postgresql://USER:PASSWORD@HOST/DATABASE."
        ) from error
    try:
        with engine.connect() as con:
            con.execute(sqlalchemy.text(f"SELECT pg_advisory_xact_lock({TABLES_LOCK})"))
            dg.DagsterInstance.from_config(str(home)).dispose()
    except sqlalchemy.exc.DBAPIError as error:
        [reason, *_] = str(error.orig).splitlines()
        raise AccelError(
            f"Dagster's PostgreSQL ({engine.url.host}, ACCEL_POSTGRES_URL) cannot be used: {reason}"
        ) from error


def run_full_pipeline(settings: Settings, config: dict[str, dg.Config], *, say: Say) -> Outcome:
    """Materialize every asset, in the instance that `accel ui` shows.

    `config` maps steps to their configuration. A failing step does not stop steps that do not need it. Raises
    KeyboardInterrupt when interrupted: finished work is in the log. Raises AccelError if another process works on this
    installation, or Dagster's own files cannot be written.
    """
    started = time.monotonic()
    defs = build_defs(
        resources={"accel": Installation(home=str(settings.home))},
        loggers={"console": dg.LoggerDefinition(lambda _: _console(settings, say, started))},
    )
    home = dagster_home(settings)
    with explain_database_errors(home), dg.DagsterInstance.from_config(str(home)) as instance:
        _require_alone(instance)
        instance.add_dynamic_partitions(str(legacy_sources.name), [SAMPLES])
        pipeline_progress.begin(settings, stages=len(STAGES), stage=STAGES["hardware_inventory"])
        result = defs.resolve_job_def(full_pipeline.name).execute_in_process(
            instance=instance,
            partition_key=SAMPLES,
            run_config=dg.RunConfig(ops=dict(config), loggers={"console": {}}),
            tags={_PROCESS: process_identity(psutil.Process())},
            raise_on_error=False,
        )
    materialized, failures = {}, {}
    for event in result.all_events:
        if event.is_job_failure and event.job_failure_data.failure_reason is RunFailureReason.UNEXPECTED_TERMINATION:
            raise KeyboardInterrupt
        if event.is_step_failure:
            failures[str(event.step_key)] = reason_of(event)
        elif event.is_step_materialization and event.asset_key:
            materialized[event.asset_key.to_user_string()] = _plain(event.materialization.metadata)
    if failures:
        pipeline_progress.update(settings, state="failed", reason=describe_failures(failures))
    else:
        pipeline_progress.finish(settings)
    return Outcome(result.run_id, time.monotonic() - started, materialized, failures)


_SQLITE_FAULTS = (
    "database or disk is full",
    "disk I/O error",  # the disk fails, or is full while SQLite maps its index
    "attempt to write a readonly database",
    "unable to open database file",
)


@contextmanager
def explain_database_errors(home: Path) -> Iterator[None]:
    """Raise StorageUnavailable where the disk lets Dagster's SQLite files in this folder down."""
    try:
        yield
    except sqlalchemy.exc.OperationalError as error:
        fault = str(error.orig)
        if fault not in _SQLITE_FAULTS:
            raise
        raise StorageUnavailable(
            f"Dagster's database in {home} cannot be used: {fault}. Free some space there, or give this user the"
            " rights, and try again: results so far are kept."
        ) from error


def describe_failures(failures: Mapping[str, str]) -> str:
    """Return one line that names each failed step and its reason."""
    return "; ".join(f"{step}: {reason}" for step, reason in failures.items())


def _plain(metadata: Mapping[str, dg.MetadataValue[Any]]) -> dict[str, Any]:
    simple = dg.IntMetadataValue | dg.FloatMetadataValue | dg.TextMetadataValue | dg.BoolMetadataValue
    return {name.removeprefix("dagster/"): entry.value for name, entry in metadata.items() if isinstance(entry, simple)}


def _require_alone(instance: dg.DagsterInstance) -> None:
    """Allow one `accel run` at a time per installation; a killed one is marked failed here."""
    unfinished = dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.NOT_STARTED])
    for run in instance.get_runs(unfinished):
        process = run.tags.get(_PROCESS)
        if process is None:
            continue
        if is_alive(process):
            raise AccelError(
                f"Another `accel run` (process {process_number(process)}) works on this installation: wait for it, or"
                " stop it."
            )
        instance.report_run_failed(run, f"Its process ({process}) ended without a word.")


def _console(settings: Settings, say: Say, started: float) -> logging.Logger:
    logger = logging.getLogger("accel.run")
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    logger.handlers = [_Lines(settings, say, started)]
    return logger


class _Lines(logging.Handler):
    """Log handler that prints messages of steps with the seconds since the start, and records new stages.

    Errors are left out: each ends its step and is the reason in `Outcome.failures`.
    """

    def __init__(self, settings: Settings, say: Say, started: float) -> None:
        super().__init__()
        self._settings, self._say, self._started = settings, say, started

    def emit(self, record: logging.LogRecord) -> None:
        meta = record.__dict__["dagster_meta"]
        event: dg.DagsterEvent | None = meta["dagster_event"]
        if event is None and logging.INFO <= record.levelno < logging.ERROR:
            self._say(f"{time.monotonic() - self._started:9.1f} s  {meta['orig_message']}")
        elif event is not None and event.event_type is dg.DagsterEventType.STEP_START and event.step_key in STAGES:
            stage, number = STAGES[event.step_key], list(STAGES).index(event.step_key) + 1
            pipeline_progress.update(self._settings, stage=stage, stage_number=number)
            self._say(f"[{number}/{len(STAGES)}] {stage}")
