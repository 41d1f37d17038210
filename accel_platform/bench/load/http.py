"""HTTP/1.1 connections that stream answers with little work per part.

A general client spends about a millisecond of processor time on a request. With 32 users at once that is 10 % of a time
to the first token of 100 ms (`benchmarks/serve_client.py`).
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

_LINE_LIMIT = 1 << 20
"""Most bytes of one line; it is high, because a server's refusal may be long."""


class Unreachable(Exception):
    """The server cannot be reached, or a connection to it broke."""


@dataclass
class Response:
    """Status, headers in lower case, and the body as it comes."""

    status: int
    headers: dict[str, str]
    reader: asyncio.StreamReader
    finished: bool = False
    """True if the whole body was read, so that the connection can serve another request."""

    async def parts(self) -> AsyncIterator[bytes]:
        """Yield the parts of the body as they arrive. Raises Unreachable where it ends early."""
        if "chunked" in self.headers.get("transfer-encoding", ""):
            while size := _chunk_size(await _line(self.reader)):
                part = await _exactly(self.reader, size + 2)
                yield part[:-2]
            await _line(self.reader)
        elif "content-length" in self.headers:
            yield await _exactly(self.reader, int(self.headers["content-length"]))
        else:
            while part := await self.reader.read(_LINE_LIMIT):
                yield part
        self.finished = True

    async def text(self) -> str:
        """Return the whole body."""
        return b"".join([part async for part in self.parts()]).decode(errors="replace")


@dataclass
class Server:
    """A server by its address, with the connections to it that are free; a context that closes them."""

    url: str
    headers: dict[str, str] = field(default_factory=dict)
    timeout_s: float = 300.0
    _free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = field(default_factory=list)

    @asynccontextmanager
    async def request(self, method: str, path: str, body: Any = None) -> AsyncIterator[Response]:
        """Send a request, with a JSON body unless that is None. Raises Unreachable, and TimeoutError if it is slow."""
        async with asyncio.timeout(self.timeout_s):
            while True:
                reader, writer, used = await self._connect()
                try:
                    response = await self._send(reader, writer, method, path, body)
                    break
                except Unreachable:
                    await _close(writer)
                    # A server may close a free connection at any time: another one is tried.
                    if not used:
                        raise
                except asyncio.CancelledError:
                    await _close(writer)
                    raise
            try:
                yield response
            finally:
                if response.finished and response.headers.get("connection", "").lower() != "close":
                    self._free.append((reader, writer))
                else:
                    await _close(writer)

    async def __aenter__(self) -> Server:
        return self

    async def __aexit__(self, *error: object) -> None:
        while self._free:
            await _close(self._free.pop()[1])

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, bool]:
        if self._free:
            return *self._free.pop(), True
        place = urlsplit(self.url)
        secure = ssl.create_default_context() if place.scheme == "https" else None
        port = place.port or (443 if secure else 80)
        try:
            reader, writer = await asyncio.open_connection(place.hostname, port, ssl=secure, limit=_LINE_LIMIT)
        except OSError as error:
            raise Unreachable(str(error)) from error
        return reader, writer, False

    async def _send(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, method: str, path: str, body: Any
    ) -> Response:
        place = urlsplit(self.url)
        content = b"" if body is None else json.dumps(body).encode()
        head = {
            "Host": place.netloc.rpartition("@")[2],
            "Accept": "text/event-stream, application/json",
            **({} if body is None else {"Content-Type": "application/json"}),
            "Content-Length": str(len(content)),
            **self.headers,
        }
        lines = [f"{method} {place.path}{path} HTTP/1.1", *(f"{name}: {value}" for name, value in head.items())]
        try:
            writer.write("\r\n".join([*lines, "", ""]).encode() + content)
            await writer.drain()
            status = (await _line(reader)).split(maxsplit=2)
            headers = {}
            while line := await _line(reader):
                name, _, value = line.decode("latin-1").partition(":")
                headers[name.strip().lower()] = value.strip()
            return Response(int(status[1]), headers, reader)
        except (OSError, ValueError, IndexError) as error:
            raise Unreachable(f"its answer is no HTTP ({error})") from error


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    # A broken connection cannot be closed properly, because its other end no longer answers.
    with suppress(OSError):
        await writer.wait_closed()


async def _line(reader: asyncio.StreamReader) -> bytes:
    """Return a line without its end. Raises Unreachable where the connection ends before."""
    try:
        line = await reader.readuntil(b"\n")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError) as error:
        raise Unreachable("the connection was closed") from error
    return line.rstrip(b"\r\n")


def _chunk_size(line: bytes) -> int:
    """Return the size of the next chunk, which extensions may follow. Raises Unreachable."""
    try:
        return int(line.partition(b";")[0], 16)
    except ValueError as error:
        raise Unreachable(f"its answer is no HTTP: {line[:40]!r} is no size of a chunk") from error


async def _exactly(reader: asyncio.StreamReader, size: int) -> bytes:
    try:
        return await reader.readexactly(size)
    except (asyncio.IncompleteReadError, OSError) as error:
        raise Unreachable("the connection was closed") from error
