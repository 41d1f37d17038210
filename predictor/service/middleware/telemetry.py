"""Telemetry of each request: its id, its line in the log, its metrics, and the report of a bug."""

from __future__ import annotations

import logging
import re
import time
from random import getrandbits

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from predictor.service.http import problems
from predictor.service.middleware import metrics
from predictor.service.middleware.log_setup import REQUEST_ID

_SAFE_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_log = logging.getLogger("accel.requests")


class TelemetryMiddleware:
    """Middleware that gives every request an id for its response, log lines and audit events, and counts it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        request_id = _id_of(scope)
        scope.setdefault("state", {})["request_id"] = request_id
        REQUEST_ID.set(request_id)
        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"].append((b"x-request-id", request_id.encode()))
            await send(message)

        metrics.IN_FLIGHT.inc()
        try:
            await self._app(scope, receive, send_with_id)
        except Exception as error:  # because every foreseen error was answered further inside
            response = problems.internal_error(Request(scope), error)
            if status:
                raise  # because a broken connection shows the client that the response is incomplete
            await response(scope, receive, send_with_id)
        finally:
            seconds = time.perf_counter() - started
            metrics.IN_FLIGHT.dec()
            route = getattr(scope.get("route"), "path", "none")
            metrics.count_request(scope["method"], route, status, seconds)
            if _log.isEnabledFor(logging.INFO):
                _log.info("%s %s %d", scope["method"], scope["path"], status, extra=_log_fields(scope, route, seconds))


def _id_of(scope: Scope) -> str:
    """Return the id that the client sent, if it is safe to log; else a new one."""
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _SAFE_ID.fullmatch(value):
            return str(value, "ascii")
    return f"{getrandbits(128):032x}"


def _log_fields(scope: Scope, route: str, seconds: float) -> dict[str, object]:
    caller = scope["state"].get("caller")
    client = scope.get("client")
    return {
        "route": route,
        "duration_ms": round(seconds * 1e3, 3),
        "client": client[0] if client else None,
        "key": caller.name if caller else None,
    }
