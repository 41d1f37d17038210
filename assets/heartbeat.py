"""Signs of life of measuring runs, and the run launcher that misses them."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from dagster import DagsterInstance, DagsterRun, DagsterRunStatus
from dagster._core.launcher import CheckRunHealthResult, DefaultRunLauncher, WorkerStatus

ALIVE_TAG = "accel/alive"
"""Tag of a run: how often it has said that it lives."""
NOT_YET = "0"
"""Of a run from its beginning: one that is lost before it says anything is missed too."""
BEAT_S = 5
SILENT_CHECKS = 4
"""A run that says nothing from one check of Dagster's run monitoring to the next, so many times in turn, is lost.

Checks are counted and not seconds: while Dagster's own storage is away there are no checks, nor signs of life.
"""
_CANCELING_BEATS = 3
"""Dagster tells a run to stop; one that has not heard it after so many beats tells itself."""
_END_S = 20
"""How long a run that has told itself to stop may take to end its children."""


class HostRunLauncher(DefaultRunLauncher):
    """Dagster's usual run launcher, which also knows when a measuring run is lost."""

    def __init__(self, inst_data: object = None) -> None:
        super().__init__(inst_data)  # type: ignore[arg-type]
        self._heard: dict[str, tuple[str, int]] = {}

    @property
    def supports_check_run_worker_health(self) -> bool:
        return True

    def check_run_worker_health(self, run: DagsterRun) -> CheckRunHealthResult:
        """Answer Dagster's run monitoring, which ends a run that is neither running nor has succeeded."""
        alive = run.tags.get(ALIVE_TAG)
        if alive is None:
            return CheckRunHealthResult(WorkerStatus.RUNNING)
        before, silent = self._heard.get(run.run_id, (alive, -1))
        silent = silent + 1 if before == alive else 0
        self._heard[run.run_id] = alive, silent
        if silent < SILENT_CHECKS:
            return CheckRunHealthResult(WorkerStatus.RUNNING)
        del self._heard[run.run_id]
        return CheckRunHealthResult(WorkerStatus.NOT_FOUND, "it no longer says that it lives: its host may be lost")


@contextmanager
def heartbeat(instance: DagsterInstance, run_id: str) -> Iterator[None]:
    """Say, as long as the block lasts, that this run lives; end this process when Dagster has given the run up."""
    over = threading.Event()
    threading.Thread(target=_beat, args=(instance, run_id, over), daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _beat(instance: DagsterInstance, run_id: str, over: threading.Event) -> None:
    beats = canceling = 0
    while not over.wait(BEAT_S):
        beats += 1
        try:
            run = instance.get_run_by_id(run_id)
            instance.add_run_tags(run_id, {ALIVE_TAG: str(beats)})
        except Exception:  # noqa: BLE001, S112 - whatever its storage raises while that is away: the next beat may reach it
            continue
        canceling = canceling + 1 if run is not None and run.status is DagsterRunStatus.CANCELING else 0
        if run is None or run.is_finished or canceling >= _CANCELING_BEATS:
            os.kill(os.getpid(), signal.SIGINT)
            if not over.wait(_END_S):
                os._exit(1)  # what it has started dies with it
            return
