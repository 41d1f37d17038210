"""An answer from the tables as HTTP: one snapshot, its ETag, and JSON. What is in it is decided by the routes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from importlib.metadata import version
from typing import Any

from fastapi import Request, Response
from pydantic_core import to_json

from accel_platform.warehouse.reader import Reader

NOT_MODIFIED: dict[int | str, dict[str, Any]] = {
    304: {"description": "The tables are those of the `If-None-Match` that was sent."}
}
_VERSION = version("accel-platform")
JSON = "application/json"


def table_response(reader: Reader, request: Request, read: Callable[[Reader], Any]) -> Response:
    """What `read` finds at one snapshot, as JSON; 304 where the asker has it already, and then nothing is read.

    A response that `read` makes itself is the answer. The rows go out as they come: they were validated when they came
    into the tables.
    """
    now = reader.pinned()
    headers = cache_headers(now, request)

    def made() -> Response:
        found = read(now)
        if isinstance(found, Response):
            return found
        return Response(to_json(found, inf_nan_mode="null"), headers=headers)

    return conditional_response(request, headers, made)


def conditional_response(request: Request, headers: dict[str, str], make: Callable[[], Response]) -> Response:
    """What `make` answers; 304 where `If-None-Match` names the ETag of the headers, and then nothing is made.

    Tags are compared weakly, as RFC 9110 says; `*` is any answer, but only where there is one.
    """
    kept = Response(status_code=304, headers=headers)
    named = {tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")}
    if headers["ETag"].removeprefix("W/") in named:
        return kept
    made = make()
    return kept if "*" in named and made.status_code == 200 else made


def cache_headers(reader: Reader, request: Request, form: str = "json", *, media_type: str = JSON) -> dict[str, str]:
    """The headers by which an answer from these tables may be kept, the same for the answer and for its 304.

    The ETag is strong: one URL gives the same bytes as long as the projection in service and the version of the
    platform are the same. It is of this URL alone: what another one answered says nothing of what is not there.
    `no-cache` lets it be kept, and asks each time whether it still holds; `private`, by no proxy that would hand it to
    people without a key. The type is among them, because the door's headers follow from it.
    """
    address = hashlib.sha256(f"{request.url.path}?{request.url.query}".encode()).hexdigest()[:12]
    tag = f"{reader.projection_id}.{_VERSION}.{form}.{address}"
    return {"ETag": f'"{tag}"', "Cache-Control": "private, no-cache", "Content-Type": media_type}


def parse_json_columns(rows: Iterable[dict[str, Any]], *columns: str) -> list[dict[str, Any]]:
    """The rows with these columns as the objects that their JSON is of."""
    return [{**row, **{name: None if row[name] is None else json.loads(row[name]) for name in columns}} for row in rows]
