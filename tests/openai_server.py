"""A small server that speaks OpenAI's streaming protocol, with known delays and planted faults."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

KEY = "secret"


class Served:
    """What the server does: time to the first token and between tokens, in seconds, and a fault by name."""

    def __init__(self, first_s: float = 0.02, gap_s: float = 0.004, fault: str | None = None, *, key: bool = False):
        self.first_s, self.gap_s, self.fault, self.key = first_s, gap_s, fault, key
        self.asked: list[dict[str, Any]] = []
        self.at_once = self.most_at_once = 0

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/v1/models", self.models),
                Route("/v1/completions", self.complete, methods=["POST"]),
                Route("/v1/chat/completions", self.complete, methods=["POST"]),
            ]
        )

    async def models(self, request: Request) -> Response:
        if self.key and request.headers.get("authorization") != f"Bearer {KEY}":
            return JSONResponse({"error": "no key"}, 401)
        return JSONResponse({"data": [{"id": "tiny/llama-3.1-8b"}]})

    async def complete(self, request: Request) -> Response:
        body = await request.json()
        self.asked.append(body)
        measured = body["max_tokens"] > 4
        third = self.fault == "every-third" and len(self.asked) % 3 == 0
        if measured and (self.fault == "broken" or third):
            return JSONResponse({"error": "out of memory"}, 500)
        if self.fault == "refuses ignore_eos" and "ignore_eos" in body:
            return JSONResponse({"error": "unknown field ignore_eos"}, 400)
        if self.fault == "no-stream":
            return JSONResponse({"choices": [{"text": "all at once"}]})
        return StreamingResponse(self.stream(body), media_type="text/event-stream")

    async def stream(self, body: dict[str, Any]) -> AsyncIterator[str]:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        chat, count = "messages" in body, body["max_tokens"]
        words = len((body["messages"][0]["content"] if chat else body["prompt"]).split())
        measured = count > 4
        if self.fault == "short" and measured:
            count = count // 2
        try:
            await asyncio.sleep(self.first_s)
            for number in range(0 if self.fault == "empty" and measured else count):
                if number:
                    await asyncio.sleep(self.gap_s)
                if self.fault == "half-way" and measured and number == count // 2:
                    return
                text = {"delta": {"content": "a "}} if chat else {"text": "a "}
                if self.fault == "nonsense" and measured:
                    yield "data: [1, 2]\n\n"
                yield _event({"choices": [{**text, "finish_reason": None}]})
            yield _event({"choices": [{"text": "", "finish_reason": "length"}]})
            if self.fault != "no-usage":
                told = count // 2 if self.fault == "miscounting" else count
                # Two tokens a word, as some tokenizers have it.
                yield _event({"choices": [], "usage": {"prompt_tokens": 2 * words, "completion_tokens": told}})
            yield "data: [DONE]\n\n"
        finally:
            self.at_once -= 1


def _event(content: dict[str, Any]) -> str:
    return f"data: {json.dumps(content)}\n\n"


@contextmanager
def serving(served: Served) -> Iterator[str]:
    """Run the server on a free port of the loopback; give its address."""
    server = uvicorn.Server(uvicorn.Config(served.app(), port=0, log_level="warning", lifespan="off"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        thread.join(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(10)
