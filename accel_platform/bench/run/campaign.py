"""Export of measured events as one file that travels from log to log.

The file is a segment like those of the log, so `EventLog.adopt` keeps event ids, hosts and raw samples.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from accel_platform.atomic_write import write_durably
from accel_platform.bench.plan.plan import SEGMENT_PREFIX
from accel_platform.errors import InvalidInput, NotFound
from accel_platform.events import EventLog, codec
from accel_platform.events.integrity import require_sound


@dataclass(frozen=True)
class Campaign:
    """The contents of an exported file."""

    path: Path
    runs: int
    events: int
    results: int
    size_bytes: int


def export_campaign(log: EventLog, path: Path, *, runs: Collection[str] = ()) -> Campaign:
    """Write every event of these benchmark runs (default: all of this log) to one compressed file.

    Raises NotFound where there are no events or a run is not in the log. Raises InvalidInput where the file cannot be
    written or is named for another format.
    """
    if path.suffix not in ("", ".parquet"):
        raise InvalidInput(
            f"{path} is not what it would hold: events, in Parquet. Name it {path.with_suffix('.parquet')}; tables in"
            " other formats come from `accel db export results --output results.csv`."
        )
    own = log.snapshot().beginning(SEGMENT_PREFIX)
    require_sound(log, own.segments)
    events = [event for event in log.read(own) if not runs or event.run_id in runs]
    found = {event.run_id for event in events}
    if unknown := set(runs) - found:
        raise NotFound(f"No benchmark run {', '.join(sorted(unknown))} in the log at {log.location}.")
    if not events:
        raise NotFound(f"Nothing was measured into the log at {log.location} yet: `accel bench run` does.")
    events.sort(key=lambda event: event.event_id)
    data = codec.to_parquet(codec.to_arrow(events), path.name)
    try:
        write_durably(path, data)
    except OSError as error:
        raise InvalidInput(f"Cannot write {path}: {error.strerror}.") from error
    results = sum(event.type == "ResultRecorded" for event in events)
    return Campaign(path, len(found), len(events), results, len(data))
