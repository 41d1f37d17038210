"""The tables follow what was written through the service: a child projects, audits and publishes beside the requests.

One child at a time, however much is written meanwhile. Others who project (Dagster, a command) do no harm: whoever
comes first publishes, and the rest find nothing left to do. What the child does is `warehouse_worker.py`.
"""

from __future__ import annotations

import logging
import threading

from accel_platform.settings import Settings
from accel_platform.subprocesses.json_child import Child, ChildCrashed, ChildTimeout, child_environment

WORKER = "predictor.service.background.warehouse_worker"
_LONGEST_S = 3_600.0
_PAUSE_S = 5.0
"""After a child that broke."""
_log = logging.getLogger("accel.projecting")


class WarehouseUpdater:
    """Runs a child from the first write on until the log has been quiet for a while."""

    def __init__(self, settings: Settings) -> None:
        self._job = {"home": str(settings.home), "log_uri": settings.log_uri}
        self._written = threading.Event()
        self._stopping = threading.Event()

    def written(self) -> None:
        """Something is in the log that the tables lack."""
        self._written.set()

    def run(self) -> None:
        """Until `stop`."""
        while not self._stopping.is_set():
            self._written.wait()
            self._written.clear()
            if not self._stopping.is_set():
                self._follow()

    def stop(self) -> None:
        self._stopping.set()
        self._written.set()

    def _follow(self) -> None:
        try:
            with Child(WORKER, self._job, env=child_environment(1)) as child:
                watch = threading.Thread(target=self._end, args=(child,), daemon=True)
                watch.start()
                for message in child.messages(_LONGEST_S):
                    if "failed" in message:
                        _log.error("the tables do not follow what was written: %s", message["failed"])
        except (ChildCrashed, ChildTimeout) as error:
            if not self._stopping.is_set():
                _log.error("the tables do not follow what was written: %s", error)
                self._stopping.wait(_PAUSE_S)
                self._written.set()

    def _end(self, child: Child) -> None:
        self._stopping.wait()
        child.kill()
