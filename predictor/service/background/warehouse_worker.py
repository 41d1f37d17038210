"""Child process that updates the tables whenever the log grows, and ends when the log has been quiet for a while."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from accel_platform.errors import AccelError
from accel_platform.events import EventLog
from accel_platform.settings import Settings
from accel_platform.subprocesses.json_child import Message, serve
from accel_platform.warehouse.publish import bring_up_to_date

QUIET_S = 60.0
"""Time without writes after which the child ends; the next write starts another, which imports for seconds."""
POLL_INTERVAL_S = 0.3
_NICE = 5
"""Niceness of the child, because requests go first: under load it gets a third of its share of the processor."""


def follow(job: Message, send: Callable[[Message], None]) -> None:
    """Publish each new snapshot until the log is quiet; send a failure once, and try again when the log has grown."""
    os.nice(_NICE)
    settings = Settings(home=Path(job["home"]), log_uri=job["log_uri"])
    log, published, changed_at = EventLog.open(settings), "", time.monotonic()
    while time.monotonic() - changed_at < QUIET_S:
        snapshot_id = log.snapshot().id
        if snapshot_id != published:
            published, changed_at = snapshot_id, time.monotonic()
            try:
                bring_up_to_date(settings)
            except AccelError as error:
                send({"failed": str(error)})
        time.sleep(POLL_INTERVAL_S)


if __name__ == "__main__":
    serve(follow)
