"""Request bodies: JSON without repeated keys, and for bodies that are stored strict validation and NDJSON.

NDJSON is one JSON value per line.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response, params
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json
from starlette.exceptions import HTTPException

from accel_platform.strict_json import reject_duplicates
from predictor.schemas.ingest import NotStorable, require_storable

NDJSON = "application/x-ndjson"
_MEDIA_TYPES = ("application/json", NDJSON)
_BEFORE_LINES = b"["
_MOST_LISTED = 10_000
"""Faults of a body that are listed, because listing a million takes gigabytes."""


class _JsonRequest(Request):
    async def json(self) -> Any:
        return json.loads(await self.body(), object_pairs_hook=reject_duplicates)


class JsonRoute(APIRoute):
    """A route with a JSON body; an object that has a key twice gets 422."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handler(request: Request) -> Response:
            return await handle(
                request if isinstance(request, _JsonRequest) else _JsonRequest(request.scope, request.receive)
            )

        return handler


class JsonOrNdjsonRoute(JsonRoute):
    """A route whose body may be JSON or NDJSON; another media type gets 415."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handler(request: Request) -> Response:
            media_type = _media_type(request)
            if media_type not in _MEDIA_TYPES:
                raise HTTPException(415, f"The body needs the header Content-Type: {' or '.join(_MEDIA_TYPES)}")
            return await handle(await _as_json(request) if media_type == NDJSON else request)

        return handler


async def _as_json(request: Request) -> Request:
    """Return the request with its lines as a JSON list, one value a line, so that errors name the right line."""
    lines = (await request.body()).rstrip().split(b"\n")
    filled = [i for i, line in enumerate(lines) if line.strip()]
    for i in filled[:-1]:
        lines[i] += b","
    headers = [(name, value) for name, value in request.scope["headers"] if name != b"content-type"]
    scope = {**request.scope, "headers": [*headers, (b"content-type", b"application/json")]}
    parsed_request = _JsonRequest(scope, request.receive)
    parsed_request._body = _BEFORE_LINES + b"\n".join(lines) + b"]"
    return parsed_request


def describe_json_error(request: Request, error: RequestValidationError) -> str:
    """Return the place and cause of a JSON error in a body, from FastAPI's error of kind `json_invalid`."""
    [problem] = error.errors()
    before = error.body[: problem["loc"][1]]
    line = before.count("\n") + 1
    column = len(before) - before.rfind("\n")
    if line == 1 and _media_type(request) == NDJSON:
        column -= len(_BEFORE_LINES)
    return f"not JSON at line {line}, column {column}: {problem['ctx']['error']}"


def _media_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def require_strict_body(schema: Any) -> params.Depends:
    """Return a dependency that validates the body strictly: `false` and `"0"` are no numbers.

    FastAPI's own validation reads both as 0, and a value that was never measured must not become a number.
    """
    adapter = TypeAdapter(schema)

    async def validate(request: Request) -> None:
        body = await request.body()
        try:
            require_storable(from_json(body))
            adapter.validate_json(body, strict=True)
        except ValidationError as error:
            if (faults := error.error_count()) > _MOST_LISTED:
                message = f"it has {faults:,} faults: send less at once to see which"
                raise RequestValidationError([{"type": "unstorable", "loc": ("body",), "msg": message}]) from None
            errors = error.errors(include_url=False)
            raise RequestValidationError([{**entry, "loc": ("body", *entry["loc"])} for entry in errors]) from error
        except ValueError as error:
            path = error.path if isinstance(error, NotStorable) else ()
            raise RequestValidationError([{"type": "unstorable", "loc": ("body", *path), "msg": str(error)}]) from error

    return params.Depends(validate)


def ndjson_body(what: str) -> dict[str, Any]:
    """Return the OpenAPI entry for a body that may also be NDJSON, with one `what` per line."""
    lines = {"schema": {"type": "string", "description": f"One {what} per line, as a JSON object."}}
    return {"requestBody": {"content": {NDJSON: lines}}}
