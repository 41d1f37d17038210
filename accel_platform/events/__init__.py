"""The event log: typed immutable events, their versions, and the append-only Parquet segments that hold them."""

from accel_platform.events.log import AppendResult, EventLog, Snapshot
from accel_platform.events.types import Event

__all__ = ["AppendResult", "Event", "EventLog", "Snapshot"]
