"""Identity of a request's caller, and the audited log that records it with each write."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import Request

from accel_platform.api_keys import Scope
from accel_platform.errors import InvalidInput
from accel_platform.events.audited import AuditedLog, AuditedWriter
from accel_platform.settings import Settings


@dataclass(frozen=True)
class Caller:
    """An authenticated caller, and the scope of their key."""

    name: str
    key_id: str | None
    scope: Scope


LOOPBACK = Caller("loopback", None, Scope.write)
"""Any program of this machine, where no keys are required."""


def get_caller(request: Request) -> Caller:
    caller: Caller = request.scope["state"]["caller"]
    return caller


def get_key_name(request: Request) -> str | None:
    """Return the name of the caller's key; None where no keys are required."""
    caller = get_caller(request)
    return None if caller.key_id is None else caller.name


def decision_author(request: Request, by: str | None) -> str:
    """Return the author of a decision: the name of the caller's key, or `by` where no keys are required.

    Raises InvalidInput where there is neither, or where `by` names somebody else than the key.
    """
    name = get_key_name(request)
    if by is not None and name not in (None, by):
        raise InvalidInput(f"The key that was sent is called {name}: leave `by` away, for nobody speaks for another.")
    author = name or by
    if not author:
        raise InvalidInput("Say who decides: `by` is a name where no API keys are asked for.")
    return author


def audited_log_for(request: Request, settings: Settings) -> AuditedLog:
    """Return the event log for a route that writes: each append records the caller and the request."""
    caller = get_caller(request)
    writer = AuditedWriter(
        by=caller.name,
        key_id=caller.key_id,
        client=request.client.host if request.client else None,
        method=request.method,
        path=request.url.path,
        request_id=request.scope["state"]["request_id"],
    )
    return AuditedLog.for_writer(settings, writer)
