"""Warehouse updates after writes through the service, by a child process beside the requests.

One child runs at a time. Dagster or a command may publish as well: the first one builds the tables, and the others find
nothing to do.
"""

from __future__ import annotations

import logging
import threading

from accel_platform.settings import Settings
from accel_platform.subprocesses.json_child import Child, ChildCrashed, ChildTimeout, child_environment

WORKER = "predictor.service.background.warehouse_worker"
_LONGEST_S = 3_600.0
_PAUSE_S = 5.0
"""Pause after a child crashed."""
_log = logging.getLogger("accel.projecting")


class WarehouseUpdater:
    """Runner of the child process, from the first write until the log has been quiet for a while."""

    def __init__(self, settings: Settings) -> None:
        self._job = {"home": str(settings.home), "log_uri": settings.log_uri}
        self._requested = threading.Event()
        self._stopping = threading.Event()

    def request_update(self) -> None:
        """Ask for an update, because the log has events that the tables lack."""
        self._requested.set()

    def run(self) -> None:
        """Run a child after each write, until `stop`."""
        while not self._stopping.is_set():
            self._requested.wait()
            self._requested.clear()
            if not self._stopping.is_set():
                self._update()

    def stop(self) -> None:
        self._stopping.set()
        self._requested.set()

    def _update(self) -> None:
        try:
            with Child(WORKER, self._job, env=child_environment(1)) as child:
                killer = threading.Thread(target=self._kill_on_stop, args=(child,), daemon=True)
                killer.start()
                for message in child.messages(_LONGEST_S):
                    if "failed" in message:
                        _log.error("the tables do not follow what was written: %s", message["failed"])
        except (ChildCrashed, ChildTimeout) as error:
            if not self._stopping.is_set():
                _log.error("the tables do not follow what was written: %s", error)
                self._stopping.wait(_PAUSE_S)
                self._requested.set()

    def _kill_on_stop(self, child: Child) -> None:
        self._stopping.wait()
        child.kill()
