"""The event log: typed immutable events, their versions, and the append-only Parquet segments that hold them."""

from accel_platform.events.log import Appended, EventLog, Snapshot
from accel_platform.events.types import Event

__all__ = ["Appended", "Event", "EventLog", "Snapshot"]
