"""The route that tells what happens as it happens: Server-Sent Events. What there is to tell is `change_feed.py`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import StreamingResponse
from pydantic_core import to_json

from predictor.service.background.change_feed import LOOK_EVERY_S, ChangeFeed, ChangeNotice
from predictor.service.http.problems import documented

HEARTBEAT_S = 15.0
_STREAM = "text/event-stream"
_EXAMPLE = 'id: 5f1e22aa-7\nevent: snapshot\ndata: {"snapshot_id":"9b10d165df23","results":51,"new_results":1}\n\n'
_EVENT = {
    "type": "object",
    "properties": {
        "id": {"type": "string"},
        "event": {"enum": ["snapshot", "request"]},
        "data": {"type": "string", "contentMediaType": "application/json"},
    },
}
_DOCUMENTED: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "`snapshot`: other tables are in service, with how many results more; `request`: a request"
        " changed. A comment comes every 15 s where nothing else does.",
        "content": {_STREAM: {"schema": _EVENT, "example": _EXAMPLE}},
    }
}


def router(telling: ChangeFeed) -> APIRouter:
    routes = APIRouter(tags=["service"])

    @routes.get("/progress", responses={**_DOCUMENTED, **documented(422)}, response_class=StreamingResponse)
    async def progress(
        request: Request,
        for_s: Annotated[float, Query(ge=0, le=3600, description="The stream ends after so many seconds.")] = 3600,
        last_event_id: Annotated[
            str | None, Header(max_length=200, description="The last that came: what it missed is sent first.")
        ] = None,
    ) -> StreamingResponse:
        """New snapshots and changed requests as they come, until the service stops; a browser's `EventSource` comes
        back by itself and says which was its last."""
        stream = _stream(telling, request, last_event_id, for_s)
        return StreamingResponse(stream, media_type=_STREAM, headers={"Cache-Control": "no-store"})

    return routes


async def _stream(telling: ChangeFeed, request: Request, last_id: str | None, for_s: float) -> AsyncIterator[bytes]:
    until, spoke = time.monotonic() + for_s, time.monotonic()
    with telling.listening():
        yield b"retry: 2000\n\n"
        while True:
            for told in telling.after(last_id):
                last_id, spoke = telling.id_of(told), time.monotonic()
                yield _event(last_id, told)
            if time.monotonic() >= until or telling.ending.is_set() or await request.is_disconnected():
                return
            if time.monotonic() - spoke > HEARTBEAT_S:
                spoke = time.monotonic()
                yield b": still here\n\n"
            await asyncio.sleep(LOOK_EVERY_S)


def _event(identity: str, told: ChangeNotice) -> bytes:
    return f"id: {identity}\nevent: {told.kind}\ndata: {to_json(told.data).decode()}\n\n".encode()
