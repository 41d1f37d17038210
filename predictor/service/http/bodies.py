"""Bodies that are stored: read to the letter of their schema, and as one JSON value per line (NDJSON), too."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response, params
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json
from starlette.exceptions import HTTPException

from predictor.service.schemas.ingest import require_storable

NDJSON = "application/x-ndjson"
_KINDS = ("application/json", NDJSON)


class JsonOrNdjsonRoute(APIRoute):
    """A route whose body may be JSON or NDJSON; another media type is 415."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handler(request: Request) -> Response:
            kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind not in _KINDS:
                raise HTTPException(415, f"The body must be {' or '.join(_KINDS)}")
            return await handle(await _as_json(request) if kind == NDJSON else request)

        return handler


async def _as_json(request: Request) -> Request:
    lines = [line for line in (await request.body()).split(b"\n") if line.strip()]
    headers = [(name, value) for name, value in request.scope["headers"] if name != b"content-type"]
    scope = {**request.scope, "headers": [*headers, (b"content-type", b"application/json")]}
    read = Request(scope, request.receive)
    read._body = b"[" + b",".join(lines) + b"]"
    return read


def require_strict_body(kind: Any) -> params.Depends:
    """A dependency that holds the body against its schema to the letter: of a figure, `false` and `"0"` are none.

    The framework's own reading takes both for 0, and what was never measured must not become a number.
    """
    adapter = TypeAdapter(kind)

    async def check(request: Request) -> None:
        body = await request.body()
        try:
            require_storable(from_json(body))
            adapter.validate_json(body, strict=True)
        except ValidationError as error:
            errors = error.errors(include_url=False)
            raise RequestValidationError([{**one, "loc": ("body", *one["loc"])} for one in errors]) from error
        except ValueError as error:
            raise RequestValidationError([{"type": "unstorable", "loc": ("body",), "msg": str(error)}]) from error

    return params.Depends(check)


def ndjson_body(what: str) -> dict[str, Any]:
    """For OpenAPI: that the body may be lines, too."""
    lines = {"schema": {"type": "string", "description": f"One {what} per line, as a JSON object."}}
    return {"requestBody": {"content": {NDJSON: lines}}}
