"""Who sends a request, as the door found out, and the log in which what they write names them."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import Request

from accel_platform.events.audited import AuditedLog, Writer
from accel_platform.keys import Scope
from accel_platform.settings import Settings


@dataclass(frozen=True)
class Caller:
    """One who was let in."""

    name: str
    key_id: str | None
    scope: Scope


LOOPBACK = Caller("loopback", None, Scope.admin)
"""Anybody on this machine, where no keys are asked for."""


def caller_of(request: Request) -> Caller:
    caller: Caller = request.scope["state"]["caller"]
    return caller


def log_of(request: Request, settings: Settings) -> AuditedLog:
    """The event log for a route that writes: each append also holds who asked for it, and by which request."""
    caller = caller_of(request)
    writer = Writer(
        by=caller.name,
        key_id=caller.key_id,
        client=request.client.host if request.client else None,
        method=request.method,
        path=request.url.path,
        request_id=request.scope["state"]["request_id"],
    )
    return AuditedLog.for_writer(settings, writer)
