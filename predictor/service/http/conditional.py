"""Conditional HTTP responses from the tables: one snapshot, its ETag, and JSON."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
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


def table_response(
    reader: Reader, request: Request, read: Callable[[Reader], Mapping[str, Any] | Response]
) -> Response:
    """Return the result of `read` at one snapshot as JSON, with the snapshot's id; 304, without reading, if unchanged.

    A `Response` from `read` is passed on. Rows are not validated again, because the tables hold only valid ones.
    """
    tables = reader.pinned()
    headers = cache_headers(tables, request)

    def respond() -> Response:
        found = read(tables)
        if isinstance(found, Response):
            return found
        return Response(to_json({**found, "snapshot_id": tables.snapshot_id}, inf_nan_mode="null"), headers=headers)

    return conditional_response(request, headers, respond)


def conditional_response(request: Request, headers: dict[str, str], make: Callable[[], Response]) -> Response:
    """Return the response of `make`; 304, without calling it, where `If-None-Match` names the ETag of the headers.

    Tags are compared weakly (RFC 9110); `*` matches any response with status 200.
    """
    not_modified = Response(status_code=304, headers=headers)
    tags = {tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")}
    if headers["ETag"].removeprefix("W/") in tags:
        return not_modified
    response = make()
    return not_modified if "*" in tags and response.status_code == 200 else response


def cache_headers(reader: Reader, request: Request, form: str = "json", *, media_type: str = JSON) -> dict[str, str]:
    """Return the headers by which a response from these tables may be cached, the same for its 304.

    The ETag is strong: one URL gives the same bytes while the tables and the platform's version stay the same. It
    depends on the URL, because a client may not reuse it for another. `no-cache` has the client revalidate each time;
    `private` keeps proxies from serving clients without a key. The media type is included, because the security
    headers depend on it.
    """
    address = hashlib.sha256(f"{request.url.path}?{request.url.query}".encode()).hexdigest()[:12]
    tag = f"{reader.projection_id}.{_VERSION}.{form}.{address}"
    return {"ETag": f'"{tag}"', "Cache-Control": "private, no-cache", "Content-Type": media_type}


def parse_json_columns(rows: Iterable[dict[str, Any]], *columns: str) -> list[dict[str, Any]]:
    """Return the rows with the JSON of these columns parsed."""
    return [{**row, **{name: None if row[name] is None else json.loads(row[name]) for name in columns}} for row in rows]
