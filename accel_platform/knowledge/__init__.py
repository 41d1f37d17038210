"""Results that come with the package, so that a new installation answers before anything was measured.

`reference` holds measurements of other hosts by this platform, `packs` public figures of others.
"""

from __future__ import annotations

from pathlib import Path

from accel_platform.events import EventLog

CAMPAIGNS = tuple(sorted(Path(__file__).with_name("reference").glob("*.parquet")))
"""Segment files of the reference campaign: measurements of other hosts by this platform."""


def adopt_campaigns(log: EventLog) -> None:
    """Append the shipped results to a log; repeating that changes nothing."""
    for path in CAMPAIGNS:
        log.adopt(path)
