"""Heartbeats of measuring runs, by which lost runs are detected, and the stop of all runs when `accel ui` ends."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from dagster import AssetMaterialization, DagsterEventType, DagsterInstance, DagsterRun, DagsterRunStatus, RunsFilter
from dagster._core.errors import DagsterUserCodeUnreachableError
from dagster._core.launcher import CheckRunHealthResult, DefaultRunLauncher, WorkerStatus
from dagster._core.storage.tags import GRPC_INFO_TAG

ALIVE_TAG = "accel/alive"
"""Tag of a run that holds the number of its heartbeats so far."""
NOT_YET = "0"
"""Value of the tag at the start, by which a run that is lost before its first heartbeat is detected."""
BEAT_S = 5
"""Seconds between two heartbeats."""
SILENT_CHECKS = 4
"""Number of checks in a row without a new heartbeat after which a run counts as lost.

Checks are counted instead of seconds, because without Dagster's storage there are neither checks nor heartbeats.
"""
_MOST_RUNS = 1_000
"""Largest number of runs whose heartbeats are remembered; fewer measure at once on all hosts of an installation."""
_CANCELING_BEATS = 3
"""Heartbeats after which a canceled run interrupts itself, because Dagster's signal may have been lost."""
_END_S = 20
"""Seconds that an interrupted run has to end its children."""
STOPPED = "`accel ui` was stopped"
"""Message of a run that is canceled because its `accel ui` ended."""
_UNFINISHED = [DagsterRunStatus.STARTING, DagsterRunStatus.STARTED, DagsterRunStatus.CANCELING]


class HostRunLauncher(DefaultRunLauncher):
    """Dagster's default run launcher, which also detects lost measuring runs."""

    def __init__(self, inst_data: object = None) -> None:
        super().__init__(inst_data)  # type: ignore[arg-type]
        self._last_beats: dict[str, tuple[str, int]] = {}
        """Last value of the tag of each run, and the number of checks since it changed; oldest check first."""

    @property
    def supports_check_run_worker_health(self) -> bool:
        return True

    def check_run_worker_health(self, run: DagsterRun) -> CheckRunHealthResult:
        """Answer Dagster's run monitoring, which ends a run that is neither running nor has succeeded."""
        alive = run.tags.get(ALIVE_TAG)
        if alive is None:
            return CheckRunHealthResult(WorkerStatus.RUNNING)
        before, silent = self._last_beats.pop(run.run_id, (alive, -1))
        silent = silent + 1 if before == alive else 0
        if silent >= SILENT_CHECKS:
            return CheckRunHealthResult(WorkerStatus.NOT_FOUND, "it no longer says that it lives: its host may be lost")
        # Appended at the end, so that runs that are no longer checked come to stand first and are dropped.
        self._last_beats[run.run_id] = alive, silent
        if len(self._last_beats) > _MOST_RUNS:
            del self._last_beats[next(iter(self._last_beats))]
        return CheckRunHealthResult(WorkerStatus.RUNNING)


@contextmanager
def heartbeat(instance: DagsterInstance, run_id: str) -> Iterator[None]:
    """Send heartbeats of this run within the block, and end this process if Dagster ends the run or cancels it."""
    over = threading.Event()
    threading.Thread(target=_send_heartbeats, args=(instance, run_id, over), daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _send_heartbeats(instance: DagsterInstance, run_id: str, over: threading.Event) -> None:
    """Send a heartbeat every BEAT_S seconds until `over` is set, or interrupt this process when its run was ended."""
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
                os._exit(1)  # its child processes die with it
            return


def stop_runs(instance: DagsterInstance, *, wait_s: float) -> None:
    """Cancel the unfinished runs of this machine's `accel ui`, with the message `STOPPED`.

    A run has `wait_s` seconds to record its results. After that it is marked canceled. A run whose process is gone, or
    that has not begun, is marked at once. Otherwise Dagster calls it failed when its process ends. Queued runs stay
    queued, and runs of other hosts, whose code servers have a port, go on. If assets were being made, `event_log` is
    reported as updated, so that they are made after the next start.
    """
    deadline, reached, assets = time.monotonic() + wait_s, dict[str, bool](), False
    while runs := [run for run in instance.get_runs(RunsFilter(statuses=_UNFINISHED)) if _is_local(run)]:
        late = time.monotonic() >= deadline
        for run in runs:
            if run.run_id not in reached:
                reached[run.run_id] = _cancel(instance, run)
                assets = assets or bool(run.asset_selection)
            if late or run.status is DagsterRunStatus.STARTING or not reached[run.run_id]:
                instance.report_run_canceled(run, STOPPED)
        time.sleep(0.1)
    if assets:
        instance.report_runless_asset_event(AssetMaterialization("event_log", description=STOPPED))


def was_stopped(instance: DagsterInstance, run: DagsterRun) -> bool:
    """Return whether a run was canceled by `stop_runs`."""
    entries = instance.all_logs(run.run_id, of_type=DagsterEventType.RUN_CANCELING)
    return any(entry.dagster_event is not None and entry.dagster_event.message == STOPPED for entry in entries)


def _is_local(run: DagsterRun) -> bool:
    """Return whether a run is of a code server on this machine, which is reached by a socket instead of a port."""
    return "socket" in json.loads(run.tags.get(GRPC_INFO_TAG, "{}"))


def _cancel(instance: DagsterInstance, run: DagsterRun) -> bool:
    """Ask a run's code server to interrupt it. Return False where that or the run's process is gone."""
    instance.report_run_canceling(run, STOPPED)
    try:
        return instance.run_launcher.terminate(run.run_id)
    except DagsterUserCodeUnreachableError:
        return False
