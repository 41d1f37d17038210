"""Event log whose every append also records who asked for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from accel_platform.errors import InvalidInput
from accel_platform.events.log import AppendResult, EventLog
from accel_platform.events.types import Event, WriteAudited
from accel_platform.settings import Settings


@dataclass(frozen=True)
class AuditedWriter:
    """The author of an append, and the request it came with."""

    by: str
    key_id: str | None
    client: str | None
    method: str
    path: str
    request_id: str


class AuditedLog(EventLog):
    """Event log that audits its writer, in the segment of the events: both are stored or neither."""

    writer: AuditedWriter

    @classmethod
    def for_writer(cls, settings: Settings, writer: AuditedWriter) -> AuditedLog:
        log = cls.open(settings)
        assert isinstance(log, AuditedLog)
        log.writer = writer
        return log

    def append(self, events: Sequence[Event], *, key: str | None = None) -> AppendResult:
        if not events:
            raise InvalidInput("An append needs at least one event.")
        payload = WriteAudited(**vars(self.writer), events=len(events))
        audit = Event.of(payload, source="api", causation_id=events[0].event_id)
        return replace(super().append([*events, audit], key=key), events=len(events))
