"""Client that loads an HTTP service over keep-alive connections, and parses no more than it must."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import uvloop

_HEAD = b"POST /recommend HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
Seen = Callable[[bytes, bytes], None]
"""Callback with the bodies of a request and its answer, called for each request that was answered with 200."""


@dataclass
class Load:
    """Times and failures of one spell of load."""

    seconds: float = 0.0
    latencies_s: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    service_cpu_s: float = 0.0
    """Processor time of the service during the load, in seconds; 0 if the caller did not read it."""
    busy: float = 0.0
    """Share of the time in which the client itself computed; near 1, the figures are limited by the client."""

    @property
    def per_second(self) -> float:
        return len(self.latencies_s) / self.seconds

    def percentile_ms(self, percent: float) -> float:
        return float(np.percentile(self.latencies_s, percent)) * 1e3


def load(port: int, bodies: Iterator[bytes], *, connections: int, seconds: float, seen: Seen | None = None) -> Load:
    """POST bodies to /recommend for so long, or while there are any.

    Answers that come after the time is up are awaited and not counted.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_load(port, bodies, connections, seconds, seen))


async def _load(port: int, bodies: Iterator[bytes], connections: int, seconds: float, seen: Seen | None) -> Load:
    result = Load()
    loop = asyncio.get_running_loop()
    started, computed = time.perf_counter(), time.process_time()
    made = [
        await loop.create_connection(lambda: _Connection(bodies, started + seconds, result, seen), "127.0.0.1", port)
        for _ in range(connections)
    ]
    await asyncio.gather(*(connection.done for _, connection in made))
    result.busy = (time.process_time() - computed) / (time.perf_counter() - started)
    result.seconds = min(seconds, time.perf_counter() - started)
    for transport, _ in made:
        transport.close()
    return result


class _Connection(asyncio.Protocol):
    def __init__(self, bodies: Iterator[bytes], until: float, result: Load, seen: Seen | None) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._bodies, self._until, self._result, self._seen = bodies, until, result, seen
        self._received = b""
        self._body = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport  # uvloop's is an asyncio.Transport in all but name
        self._ask()

    def data_received(self, data: bytes) -> None:
        self._received += data
        end = self._received.find(b"\r\n\r\n")
        if end < 0:
            return
        start = self._received.index(b"content-length: ", 0, end) + 16
        length = int(self._received[start : self._received.index(b"\r\n", start)])
        if len(self._received) < end + 4 + length:
            return
        now = time.perf_counter()
        if self._received.startswith(b"HTTP/1.1 200 "):
            if now <= self._until:
                self._result.latencies_s.append(now - self._asked)
            if self._seen is not None:
                self._seen(self._body, self._received[end + 4 :])
        else:
            self._result.failures.append(self._received[:200].decode(errors="replace"))
        self._received = b""
        if now < self._until:
            self._ask()
        else:
            self.done.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self._result.failures.append(f"connection lost: {error}")
            self.done.set_result(None)

    def _ask(self) -> None:
        body = next(self._bodies, None)
        if body is None:
            self.done.set_result(None)
            return
        self._body = body
        request = _HEAD % len(self._body) + self._body
        self._asked = time.perf_counter()
        self._transport.write(request)
