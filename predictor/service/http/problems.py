"""Errors as RFC 9457 problem documents: which error means which status, and the handlers that say so."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
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
from accel_platform.warehouse.layers import WarehouseDamaged
from predictor.service.schemas.queries import Problem

CONTENT_TYPE = "application/problem+json"
MAX_BODY_BYTES = 256 * 1024
MAX_POSTED_BYTES = 16 * 1024 * 1024
"""Of what is posted to the log: results with their samples, many at a time."""
INGEST_PATHS = ("/events", "/results")
_STATUS: tuple[tuple[type[AccelError], int, str, str], ...] = (
    (InvalidInput, 422, "invalid-input", "The input cannot be used"),
    (Conflict, 409, "conflict", "Not as things are"),
    (NotFound, 404, "not-found", "Not found"),
    (WarehouseEmpty, 503, "warehouse-empty", "Nothing has been measured or imported yet"),
    (Busy, 503, "busy", "Too many questions of this kind at once"),
    (KeyFileDamaged, 503, "keys-damaged", "The keys cannot be read"),
    (LogUnavailable, 503, "log-unavailable", "The event log cannot be read"),
    (StorageUnavailable, 503, "storage-unavailable", "A place on disk cannot be used"),
    (WarehouseDamaged, 503, "warehouse-damaged", "The tables cannot be read"),
    (AccelError, 400, "refused", "The request cannot be fulfilled"),
)
_METHODS = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT")
_log = logging.getLogger("accel.service")


def problem_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """OpenAPI entries for the problems a route may answer."""
    content = {CONTENT_TYPE: {"schema": Problem.model_json_schema()}}
    return {status: {"description": HTTPStatus(status).phrase, "content": content} for status in statuses}


PageRenderer = Callable[[Request, Problem], Response | None]
"""Renders a problem as a page, or returns None where the request is not for a page."""


def install(app: FastAPI, page_for: PageRenderer) -> None:
    """Answer every foreseeable error of the app with a problem document or a page, and refuse huge bodies."""
    app.state.page_for = page_for
    app.add_exception_handler(AccelError, accel_error_response)
    app.add_exception_handler(OSError, _system_error)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_middleware(_BodyLimit)


def _answer(request: Request, status: int, kind: str, title: str, detail: str, **more: Any) -> Response:
    problem = Problem(
        type=f"urn:accel:problem:{kind}",
        title=title,
        status=status,
        detail=detail,
        instance=request.url.path,
        request_id=request.scope.get("state", {}).get("request_id"),
        **more,
    )
    page: Response | None = request.app.state.page_for(request, problem)
    if page is not None:
        return page
    return JSONResponse(problem.model_dump(exclude_none=True), status_code=status, media_type=CONTENT_TYPE)


async def accel_error_response(request: Request, error: Exception) -> Response:
    status, kind, title = next((s, k, t) for cls, s, k, t in _STATUS if isinstance(error, cls))
    return _answer(request, status, kind, title, str(error), errors=getattr(error, "errors", None))


async def _system_error(request: Request, error: Exception) -> Response:
    """Tell what the system says of its files; any other OSError is a bug."""
    told = storage_unavailable(error)
    if told is None:
        raise error
    return await accel_error_response(request, told)


def problem_response(request: Request, status: int, kind: str, detail: str, headers: Mapping[str, str]) -> Response:
    """The problem document of a request that no route gets to see."""
    answer = _answer(request, status, kind, HTTPStatus(status).phrase, detail)
    answer.headers.update(headers)
    return answer


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    errors = [{"field": _field(e), "message": e["msg"]} for e in error.errors()]
    detail = "; ".join(f"{e['field']}: {e['message']}" for e in errors)
    return _answer(
        request, 422, "invalid-input", "The input cannot be used", f"{detail}. See /docs for the schema.", errors=errors
    )


def _field(error: dict[str, Any]) -> str:
    """`hardware.0` or `batch_size`; `body` where the body as a whole is wrong.

    Which kind of model, hardware or event was meant (`<config>`, `RunStarted`) is no part of the path.
    """
    if error["type"] == "json_invalid":
        return "body"
    path = (str(part) for part in error["loc"] if part not in ("body", "query") and part not in PAYLOADS)
    return ".".join(part for part in path if not part.startswith("<")) or "body"


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    title = HTTPStatus(error.status_code).phrase
    detail = f"{error.detail}: {request.method} {request.url.path}. GET / lists what there is."
    response = _answer(request, error.status_code, title.lower().replace(" ", "-"), title, detail)
    response.headers.update(error.headers or {})
    if error.status_code == 405:
        # Of what is mounted, which are files, no route is found by the path that is left of it.
        response.headers["Allow"] = ", ".join(_methods(request) or ("GET", "HEAD"))
    return response


def _methods(request: Request) -> list[str]:
    """What the path takes: the framework names the methods of the first route that fits only. HEAD goes with GET."""
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
    """What is said of an error that nobody foresaw; what it was goes into the log."""
    _log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    detail = f"A bug ({type(error).__name__}); the service's log has the details under the request's id."
    return _answer(request, 500, "internal-error", "Internal error", detail)


class _BodyLimit:
    """Stops reading a body at its limit, whether or not its length was announced."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        read = 0
        most = MAX_POSTED_BYTES if scope["type"] == "http" and scope["path"] in INGEST_PATHS else MAX_BODY_BYTES

        async def limited() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > most:
                raise HTTPException(413, f"The body is larger than {most} bytes")
            return message

        await self._app(scope, limited if scope["type"] == "http" else receive, send)
