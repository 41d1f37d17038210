"""Named snapshots of the log, and resolution of a snapshot's name, id or date."""

from __future__ import annotations

import re
from datetime import UTC, datetime, time

from accel_platform.errors import InvalidInput, NotFound
from accel_platform.events.log import EventLog, Snapshot
from accel_platform.events.types import Event, SnapshotTaken

MIN_PREFIX_LENGTH = 7
"""Fewest hex digits accepted as the beginning of an id."""

_PREFIX = "snapshot-"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_DIGITS = re.compile(rf"[0-9a-f]{{{MIN_PREFIX_LENGTH},32}}")


def take_snapshot(log: EventLog, name: str | None = None) -> SnapshotTaken:
    """Take a snapshot of the log as it is now, under a name if one is given; a name is never given twice.

    Raises InvalidInput for a name that is taken or could be mistaken for a date or an id, and for an empty log.
    """
    if name is not None:
        _require_usable(name)
        if any(name == _payload(event).name for event in read_snapshot_events(log)):
            raise InvalidInput(f"There is a snapshot {name!r} already, and it stays: choose another name.")
    snapshot = log.snapshot()
    if not snapshot.segments:
        raise InvalidInput("The event log is empty: there is nothing to come back to yet.")
    payload = SnapshotTaken(
        snapshot_id=log.save_snapshot(snapshot),
        name=name,
        segments=len(snapshot.segments),
        events=log.count_events(snapshot.segments),
    )
    key = f"{_PREFIX}named-{name}" if name is not None else f"{_PREFIX}{snapshot.id}"
    if not log.append([Event.of(payload, source="snapshot")], key=key).new and name is not None:
        raise InvalidInput(f"Somebody called another snapshot {name!r} this very moment: choose another name.")
    return payload


def read_snapshot_events(log: EventLog) -> list[Event]:
    """Return the SnapshotTaken events, oldest first."""
    found = log.read(log.snapshot().beginning(_PREFIX), types={SnapshotTaken.__name__})
    return sorted(found, key=lambda event: event.recorded_at)


def find_snapshot(log: EventLog, ref: str) -> Snapshot:
    """Return the snapshot that `ref` names.

    Parameters
    ----------
    ref
        The name of a taken snapshot, the beginning of the id of any saved one, or a date or time. A date or time means
        the log as recorded by then: UTC unless it states a zone, and a date includes its whole day.

    Raises
    ------
    NotFound
        If nothing matches, or nothing was recorded by the time.
    InvalidInput
        If several ids begin with `ref`.
    """
    ref = ref.strip()
    events = read_snapshot_events(log)
    named = [_payload(event).snapshot_id for event in events if _payload(event).name == ref]
    if not named and _DIGITS.fullmatch(ref):
        named = sorted(known for known in log.saved_snapshots() if known.startswith(ref))
        if len(named) > 1:
            raise InvalidInput(f"{ref!r} begins several ids: {', '.join(named[:5])}. Write more of it.")
    if named:
        return log.load_snapshot(named[0])
    moment = parse_moment(ref)
    if moment is None:
        names = ", ".join(name for event in events if (name := _payload(event).name))
        raise NotFound(
            f"{ref!r} is no snapshot's name, no id of one and no date (write it as 2026-11-20)."
            + (f" Names: {names}." if names else " `accel db snapshot create --name NAME` names one.")
        )
    then = log.recorded_until(moment)
    if not then.segments:
        raise NotFound(f"Nothing was recorded by {moment:%Y-%m-%d %H:%M} UTC: name a later date, or a snapshot.")
    return then


def parse_moment(text: str) -> datetime | None:
    """Return the end of a date or a time in UTC; None for other text."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    if len(text) in (8, 10) and moment.time() == time.min:
        moment = datetime.combine(moment, time.max)
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def _require_usable(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise InvalidInput(f"{name!r} is no name: use up to 64 letters, digits, '.', '_' or '-'.")
    if _DIGITS.fullmatch(name) or parse_moment(name) is not None:
        raise InvalidInput(f"{name!r} could be taken for an id or a date: choose another name.")


def _payload(event: Event) -> SnapshotTaken:
    assert isinstance(event.payload, SnapshotTaken)
    return event.payload
