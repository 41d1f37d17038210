"""Start and end times of a run, without results."""

from __future__ import annotations

from migrations.normalize.row_access import object_of
from migrations.sources.documents import Document

NOT_RESULTS = "when a run began and ended"

_TIMES = {"start_time", "end_time", "duration_s", "duration", "started_at", "finished_at", "command", "run_id", "argv"}


def detect(document: Document) -> float:
    """Return high confidence where a beginning and an end are all there is."""
    keys = set(object_of(document.value))
    return 0.9 if len(keys) >= 2 and keys <= _TIMES and keys & {"start_time", "started_at"} else 0.0
