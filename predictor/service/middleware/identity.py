"""Who sends a request, as the door found out, and the log in which what they write names them."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import Request

from accel_platform.api_keys import Scope
from accel_platform.errors import InvalidInput
from accel_platform.events.audited import AuditedLog, Writer
from accel_platform.settings import Settings


@dataclass(frozen=True)
class Caller:
    """One who was let in."""

    name: str
    key_id: str | None
    scope: Scope


LOOPBACK = Caller("loopback", None, Scope.admin)
"""Anybody on this machine, where no keys are asked for."""


def get_caller(request: Request) -> Caller:
    caller: Caller = request.scope["state"]["caller"]
    return caller


def get_key_name(request: Request) -> str | None:
    """What the caller's key is called; None where no keys are asked for."""
    caller = get_caller(request)
    return None if caller.key_id is None else caller.name


def decision_author(request: Request, by: str | None) -> str:
    """Who says what is kept for ever: the name of the key that was sent, or where none is asked for whom `by` names.

    Raises InvalidInput where that is nobody, or somebody else than whose key it is.
    """
    name = get_key_name(request)
    if by is not None and name not in (None, by):
        raise InvalidInput(f"The key that was sent is called {name}: leave `by` away, for nobody speaks for another.")
    if not (said := name or by):
        raise InvalidInput("Say who decides: `by` is a name where no API keys are asked for.")
    return said


def audited_log_for(request: Request, settings: Settings) -> AuditedLog:
    """The event log for a route that writes: each append also holds who asked for it, and by which request."""
    caller = get_caller(request)
    writer = Writer(
        by=caller.name,
        key_id=caller.key_id,
        client=request.client.host if request.client else None,
        method=request.method,
        path=request.url.path,
        request_id=request.scope["state"]["request_id"],
    )
    return AuditedLog.for_writer(settings, writer)
