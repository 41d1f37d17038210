"""Route for live changes, as Server-Sent Events."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import StreamingResponse
from pydantic_core import to_json

from predictor.service.background.change_feed import POLL_INTERVAL_S, ChangeFeed, ChangeNotice
from predictor.service.http.problems import problem_responses

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


def router(feed: ChangeFeed) -> APIRouter:
    routes = APIRouter(tags=["service"])

    @routes.get("/progress", responses={**_DOCUMENTED, **problem_responses(422)}, response_class=StreamingResponse)
    async def progress(
        request: Request,
        for_s: Annotated[float, Query(ge=0, le=3600, description="The stream ends after so many seconds.")] = 3600,
        last_event_id: Annotated[
            str | None, Header(max_length=200, description="The last that came: what it missed is sent first.")
        ] = None,
    ) -> StreamingResponse:
        """Stream new snapshots and changed requests until the service stops.

        A browser's `EventSource` reconnects by itself and names the last event it got.
        """
        stream = _stream(feed, request, last_event_id, for_s)
        return StreamingResponse(stream, media_type=_STREAM, headers={"Cache-Control": "no-store"})

    return routes


async def _stream(feed: ChangeFeed, request: Request, last_id: str | None, for_s: float) -> AsyncIterator[bytes]:
    until, sent_at = time.monotonic() + for_s, time.monotonic()
    with feed.listening():
        yield b"retry: 2000\n\n"
        while True:
            for notice in feed.after(last_id):
                last_id, sent_at = feed.id_of(notice), time.monotonic()
                yield _event(last_id, notice)
            if time.monotonic() >= until or feed.closing.is_set() or await request.is_disconnected():
                return
            if time.monotonic() - sent_at > HEARTBEAT_S:
                sent_at = time.monotonic()
                yield b": still here\n\n"
            await asyncio.sleep(POLL_INTERVAL_S)


def _event(identity: str, notice: ChangeNotice) -> bytes:
    return f"id: {identity}\nevent: {notice.kind}\ndata: {to_json(notice.data).decode()}\n\n".encode()
