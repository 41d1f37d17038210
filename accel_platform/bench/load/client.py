"""One streamed request to a server that speaks OpenAI's protocol, timed at the client."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from accel_platform.bench.load.http import Response, Server, Unreachable

_STREAM = "text/event-stream"
_OK = 200
_SHOWN = 200
"""Characters of a server's refusal that are shown."""


class ServerRefused(Exception):
    """The server answered a request with an error; `status` is HTTP's."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"the server answered {status}: {' '.join(text.split())[:_SHOWN]}")
        self.status = status


class BrokenStream(Exception):
    """The answer is no stream of events, or it ended early."""


@dataclass(frozen=True)
class Target:
    """A served model, and how it is asked."""

    server: Server
    model: str
    chat: bool = False
    """Ask `/v1/chat/completions` in place of `/v1/completions`."""
    ignore_end: bool = True
    """Send `ignore_eos`, so that answers have the length asked for; some servers refuse the field."""

    @property
    def path(self) -> str:
        return "/v1/chat/completions" if self.chat else "/v1/completions"

    def body(self, prompt: str, output_tokens: int) -> dict[str, Any]:
        """Return the body of a request."""
        return {
            "model": self.model,
            **({"messages": [{"role": "user", "content": prompt}]} if self.chat else {"prompt": prompt}),
            "max_tokens": output_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            **({"ignore_eos": True} if self.ignore_end else {}),
        }


@dataclass
class Answer:
    """Outcome of one request; times in seconds of the monotonic clock."""

    due_s: float
    """Time at which it should have been sent: in an open loop its arrival, even if the client sends it later."""
    sent_s: float = 0.0
    token_s: list[float] = field(default_factory=list)
    """Arrival times of the parts of the answer that hold text."""
    ended_s: float = 0.0
    prompt_tokens: int | None = None
    """Tokens of the prompt as the server counts them; None where it does not say."""
    output_tokens: int | None = None
    problem: str | None = None
    """Reason why it failed; None if it was answered."""


async def ask(target: Target, prompt: str, output_tokens: int, due_s: float | None = None) -> Answer:
    """Send one request, and time each part of its answer. The answer tells a failure. None is due at once."""
    body = target.body(prompt, output_tokens)
    sent_s = time.monotonic()
    answer = Answer(sent_s if due_s is None else due_s, sent_s)
    try:
        async with target.server.request("POST", target.path, body) as response:
            await _read(response, answer)
    except (ServerRefused, BrokenStream, Unreachable) as error:
        answer.problem = str(error)
    except TimeoutError:
        answer.problem = f"no end of the answer within {target.server.timeout_s:g} s"
    answer.ended_s = time.monotonic()
    return answer


async def _read(response: Response, answer: Answer) -> None:
    if response.status != _OK:
        raise ServerRefused(response.status, await response.text())
    kind = response.headers.get("content-type", "")
    if not kind.startswith(_STREAM):
        raise BrokenStream(f"the server streams nothing: its answer is {kind or 'of no type'}, {_STREAM} is needed")
    finished = False
    async for arrived_s, event in _events(response):
        if event == "[DONE]":
            finished = True
            continue
        try:
            finished = _take(json.loads(event), answer, arrived_s) or finished
        except (ValueError, AttributeError, TypeError) as error:
            raise BrokenStream(f"the server streams what is no part of an answer: {event[:_SHOWN]}") from error
    if not finished:
        raise BrokenStream(f"the stream ended half-way, after {len(answer.token_s)} parts")
    if not answer.token_s:
        raise BrokenStream("the stream held no text")


def _take(part: dict[str, Any], answer: Answer, arrived_s: float) -> bool:
    """Add a part to the answer; return whether it is the last with text. Raises BrokenStream."""
    finished = False
    if part.get("error"):
        raise BrokenStream(f"the server broke off: {json.dumps(part['error'])[:_SHOWN]}")
    for choice in part.get("choices") or ():
        if choice.get("text") or (choice.get("delta") or {}).get("content"):
            answer.token_s.append(arrived_s)
        finished = finished or choice.get("finish_reason") is not None
    if usage := part.get("usage"):
        answer.prompt_tokens, answer.output_tokens = usage.get("prompt_tokens"), usage.get("completion_tokens")
    return finished


async def _events(response: Response) -> AsyncIterator[tuple[float, str]]:
    """Yield the events of a stream, each with the time at which the last of it arrived."""
    rest = b""
    async for part in response.parts():
        now = time.monotonic()
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield now, line.removeprefix(b"data:").strip().decode(errors="replace")


async def served_models(server: Server) -> list[str]:
    """Return the names under which the server serves models; empty where it does not list them.

    Raises Unreachable and TimeoutError, and ServerRefused where it wants a key.
    """
    async with server.request("GET", "/v1/models") as response:
        text = await response.text()
    if response.status in (401, 403):
        raise ServerRefused(response.status, text)
    try:
        return [str(entry["id"]) for entry in json.loads(text)["data"]]
    except (ValueError, KeyError, TypeError):
        return []
