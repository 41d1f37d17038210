"""Errors as RFC 9457 problem documents: their status codes, handlers, and the limit on request bodies."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from accel_platform.api_keys import KeyFileDamaged
from accel_platform.errors import (
    AccelError,
    Busy,
    Conflict,
    InvalidInput,
    LogUnavailable,
    NotFound,
    StorageUnavailable,
    WarehouseEmpty,
    storage_unavailable,
)
from accel_platform.events.types import PAYLOADS
from accel_platform.strict_json import DuplicateKey
from accel_platform.warehouse.layers import WarehouseDamaged
from predictor.schemas.messages import problem_message
from predictor.schemas.queries import Problem
from predictor.schemas.responses import PROBLEM_TYPE
from predictor.service.http.bodies import describe_json_error

CONTENT_TYPE = "application/problem+json"
MAX_BODY_BYTES = 256 * 1024
MAX_POSTED_BYTES = 16 * 1024 * 1024
"""Limit for bodies that are stored: many results with their samples."""
INGEST_PATHS = ("/events", "/results")
_MOST_FAULTS = 100
"""Most faults that an answer lists. A body of 16 MiB may have a million, and a fault is longer than the faulty text."""
_STATUS: tuple[tuple[type[AccelError], int], ...] = (
    (InvalidInput, 422),
    (Conflict, 409),
    (NotFound, 404),
    (WarehouseEmpty, 503),
    (Busy, 503),
    (KeyFileDamaged, 503),
    (LogUnavailable, 503),
    (StorageUnavailable, 503),
    (WarehouseDamaged, 503),
    (AccelError, 400),
)
_BUSY_S = "2"
"""Seconds that a client waits before it asks a busy service again, because building past tables takes a few."""
_METHODS = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT")
_log = logging.getLogger("accel.service")


def problem_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return OpenAPI entries for the problems a route may answer."""
    content = {CONTENT_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {status: {"description": HTTPStatus(status).phrase, "content": content} for status in statuses}


PageRenderer = Callable[[Request, Problem], Response | None]
"""Return a problem as a page, or None where the request is not for a page."""


def install(app: FastAPI, page_for: PageRenderer) -> None:
    """Answer every foreseeable error of the app with a problem document or a page, and refuse huge bodies."""
    app.state.page_for = page_for
    app.add_exception_handler(AccelError, accel_error_response)
    app.add_exception_handler(OSError, _system_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_middleware(_BodyLimitMiddleware)


def _problem_document(request: Request, status: int, kind: str, title: str, detail: str, **more: Any) -> Response:
    problem = Problem(
        type=f"{PROBLEM_TYPE}{kind}",
        title=title,
        status=status,
        detail=detail,
        instance=request.url.path,
        request_id=request.scope.get("state", {}).get("request_id"),
        **more,
    )
    # A request that the server refuses has no app, because it reaches none.
    app: FastAPI | None = request.scope.get("app")
    page: Response | None = None if app is None else app.state.page_for(request, problem)
    if page is not None:
        return page
    return JSONResponse(problem.model_dump(exclude_none=True), status_code=status, media_type=CONTENT_TYPE)


def status_of(error: AccelError) -> int:
    """Return the status code with which an error is answered."""
    return next(status for cls, status in _STATUS if isinstance(error, cls))


async def accel_error_response(request: Request, error: Exception) -> Response:
    assert isinstance(error, AccelError)
    errors = getattr(error, "errors", None)
    answer = _problem_document(request, status_of(error), error.kind, error.title, str(error), errors=errors)
    if isinstance(error, Busy):
        answer.headers["Retry-After"] = _BUSY_S
    return answer


async def _system_error(request: Request, error: Exception) -> Response:
    """Answer an OSError about the platform's files; any other is a bug."""
    known_error = storage_unavailable(error)
    if known_error is None:
        raise error
    return await accel_error_response(request, known_error)


def problem_response(request: Request, status: int, kind: str, detail: str, headers: Mapping[str, str]) -> Response:
    """Return the problem document of a request that no route sees."""
    answer = _problem_document(request, status, kind, HTTPStatus(status).phrase, detail)
    answer.headers.update(headers)
    return answer


async def _validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    if isinstance(error.body, bytes):
        # FastAPI parses no body whose media type is not JSON, as that of `curl -d`, and of a form of another site.
        stated = request.headers.get("content-type", "missing")
        return await _http_error(
            request, HTTPException(415, f"The body needs the header Content-Type: application/json; it is {stated}")
        )
    faults = error.errors()
    errors = [
        {
            "field": _field_path(e),
            "message": describe_json_error(request, error) if _is_no_json(e) else _message(e, request),
        }
        for e in faults[:_MOST_FAULTS]
    ]
    detail = "; ".join(f"{e['field']}: {e['message']}" for e in errors)
    if len(faults) > len(errors):
        detail += f"; and {len(faults) - len(errors):,} more"
    detail += " See /docs for the schema." if detail.endswith((".", "?")) else ". See /docs for the schema."
    return _problem_document(request, 422, "invalid-input", "The input cannot be used", detail, errors=errors)


def _is_no_json(error: dict[str, Any]) -> bool:
    return bool(error["type"] == "json_invalid")


def _message(error: dict[str, Any], request: Request) -> str:
    """Return a message for an invalid value, by the types of the route's query parameters or of its body."""
    source, *path = error["loc"]
    route = request.scope.get("route")
    kinds = []
    if isinstance(route, APIRoute):
        fields = route.dependant.query_params if source == "query" else route.dependant.body_params
        kinds = [field.field_info.annotation for field in fields]
    return problem_message(error, path, kinds)


def _field_path(error: dict[str, Any]) -> str:
    """Return a field's path, as `hardware.0` or `batch_size`; `body` for the body as a whole.

    Tags of unions (`<config>`, `RunStarted`) are left out.
    """
    if _is_no_json(error):
        return "body"
    source, *parts = error["loc"]
    path = (str(part) for part in (*(() if source in ("body", "query") else (source,)), *parts) if part not in PAYLOADS)
    return ".".join(part for part in path if not part.startswith("<")) or "body"


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if isinstance(error.__cause__, DuplicateKey):
        problem = {"type": "duplicate_key", "loc": ("body",), "msg": str(error.__cause__)}
        return await _validation_error(request, RequestValidationError([problem]))
    if isinstance(error.__cause__, UnicodeDecodeError):  # FastAPI says only that it cannot parse the body
        error = HTTPException(error.status_code, "The body is not UTF-8: send JSON as text, not compressed")
    title = HTTPStatus(error.status_code).phrase
    detail = f"{error.detail}: {request.method} {request.url.path}."
    headers = dict(error.headers or {})
    if error.status_code == 405:
        # Mounted files take GET and HEAD, but no route matches the rest of their path.
        headers["Allow"] = ", ".join(_methods(request) or ("GET", "HEAD"))
        detail += f" It takes {headers['Allow']}."
    elif error.status_code == 404:
        detail += " GET / lists what there is."
    response = _problem_document(request, error.status_code, title.lower().replace(" ", "-"), title, detail)
    response.headers.update(headers)
    return response


def _methods(request: Request) -> list[str]:
    """Return the methods of a path, because FastAPI names those of its first route only; HEAD goes with GET."""
    routes = request.app.router.routes
    return [
        method
        for method in _METHODS
        if any(
            route.matches({**request.scope, "method": "GET" if method == "HEAD" else method})[0] is Match.FULL
            for route in routes
        )
    ]


def internal_error(request: Request, error: Exception) -> Response:
    """Return the response to an unforeseen error, and log its traceback."""
    _log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    detail = f"A bug ({type(error).__name__}); the service's log has the details under the request's id."
    return _problem_document(request, 500, "internal-error", "Internal error", detail)


class _BodyLimitMiddleware:
    """Middleware that stops reading a body at its limit, whether or not its length was announced."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        read = 0
        limit = MAX_POSTED_BYTES if scope["type"] == "http" and scope["path"] in INGEST_PATHS else MAX_BODY_BYTES

        async def limited() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > limit:
                raise HTTPException(413, f"The body is larger than {limit:,} bytes, so send less at once")
            return message

        await self._app(scope, limited if scope["type"] == "http" else receive, send)
