"""An answer from the tables as HTTP: one snapshot, its ETag, and JSON. What is in it is decided by the routes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from importlib.metadata import version
from typing import Any

from fastapi import Request, Response
from pydantic_core import to_json

from accel_platform.warehouse.query import Reader

NOT_MODIFIED: dict[int | str, dict[str, Any]] = {
    304: {"description": "The tables are those of the `If-None-Match` that was sent."}
}
_VERSION = version("accel-platform")
JSON = "application/json"


def answer(reader: Reader, request: Request, read: Callable[[Reader], Any]) -> Response:
    """What `read` finds at one snapshot, as JSON; 304 where the asker has it already, and then nothing is read.

    A response that `read` makes itself is the answer. The rows go out as they come: they were validated when they came
    into the tables.
    """
    now = reader.pinned()
    headers = validators(now)
    if has_it(request, headers["ETag"]):
        return Response(status_code=304, headers=headers)
    found = read(now)
    if isinstance(found, Response):
        return found
    return Response(to_json(found, inf_nan_mode="null"), media_type=JSON, headers=headers)


def validators(reader: Reader, form: str = "json") -> dict[str, str]:
    """The headers by which an answer from these tables may be kept.

    The ETag is strong: one URL gives the same bytes as long as the projection in service and the version of the
    platform are the same. `no-cache` lets it be kept, and asks each time whether it still holds; `private`, by no proxy
    that would hand it to people without a key.
    """
    return {"ETag": f'"{reader.projection_id}.{_VERSION}.{form}"', "Cache-Control": "private, no-cache"}


def has_it(request: Request, etag: str) -> bool:
    """Whether `If-None-Match` names the tag; compared weakly, as RFC 9110 says."""
    sent = (tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(","))
    return any(tag in ("*", etag) for tag in sent)


def parsed(rows: Iterable[dict[str, Any]], *columns: str) -> list[dict[str, Any]]:
    """The rows with these columns as the objects that their JSON is of."""
    return [{**row, **{name: None if row[name] is None else json.loads(row[name]) for name in columns}} for row in rows]
