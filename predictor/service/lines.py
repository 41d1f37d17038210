"""Bodies of one JSON value per line (NDJSON): they are read as the list of those values, by the same schema."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

LINES = "application/x-ndjson"
_KINDS = ("application/json", LINES)


class LinesRoute(APIRoute):
    """A route whose body may be JSON or NDJSON; another media type is 415."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handler(request: Request) -> Response:
            kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind not in _KINDS:
                raise HTTPException(415, f"The body must be {' or '.join(_KINDS)}")
            return await handle(await _as_json(request) if kind == LINES else request)

        return handler


async def _as_json(request: Request) -> Request:
    lines = [line for line in (await request.body()).split(b"\n") if line.strip()]
    headers = [(name, value) for name, value in request.scope["headers"] if name != b"content-type"]
    scope = {**request.scope, "headers": [*headers, (b"content-type", b"application/json")]}
    read = Request(scope, request.receive)
    read._body = b"[" + b",".join(lines) + b"]"
    return read


def or_lines(what: str) -> dict[str, Any]:
    """For OpenAPI: that the body may be lines, too."""
    lines = {"schema": {"type": "string", "description": f"One {what} per line, as a JSON object."}}
    return {"requestBody": {"content": {LINES: lines}}}
