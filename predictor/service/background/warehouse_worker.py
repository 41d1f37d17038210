"""The child that brings the tables up to the log, again and again, and ends when the log has been quiet for a while."""

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
"""Longer than this nothing came: whoever writes next starts another child, which takes seconds for its imports."""
LOOK_EVERY_S = 0.3
_NICE = 5
"""Whoever waits for an answer goes before: where there is more to do than time, this gets a third of its share."""


def follow(job: Message, send: Callable[[Message], None]) -> None:
    """Project until the log is quiet. A refusal is told once, and tried again when the log has moved on."""
    os.nice(_NICE)
    settings = Settings(home=Path(job["home"]), log_uri=job["log_uri"])
    log, seen, moved_at = EventLog.open(settings), "", time.monotonic()
    while time.monotonic() - moved_at < QUIET_S:
        now = log.snapshot().id
        if now != seen:
            seen, moved_at = now, time.monotonic()
            try:
                bring_up_to_date(settings)
            except AccelError as error:
                send({"failed": str(error)})
        time.sleep(LOOK_EVERY_S)


if __name__ == "__main__":
    serve(follow)
