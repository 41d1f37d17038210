"""Limits on connections of slow clients: a server state and an HTTP protocol for uvicorn.

uvicorn itself ends only connections that are idle after a response.
"""

from __future__ import annotations

import asyncio
import resource
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus
from time import monotonic
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

if TYPE_CHECKING:
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol as AutoHTTPProtocol
else:
    from uvicorn.protocols.http.auto import AutoHTTPProtocol

_MOST_DESCRIPTORS = 8_192
"""Limit per worker, because each connection also costs memory."""
_OWN_DESCRIPTORS = 128
"""Reserve for files of the warehouse and log, threads that read them, and child processes."""
_HELD_BYTES = 64 * 1024
"""Most bytes of incomplete headers or trailers, because httptools, unlike h11, holds any number, before any key."""
_BODY_STEP_BYTES = 16 * 1024
"""Bytes of a body that restart its time limit, because single bytes could keep a connection for ever."""


@dataclass(frozen=True)
class ConnectionLimits:
    """Limits of one worker: on the number of connections, and on the time (in s) a client may keep one waiting."""

    most: int
    headers_s: float = 10.0
    """Seconds from the opening, or the last response, to the end of a request's headers."""
    body_s: float = 30.0
    """Seconds for each 16 KiB of a request's body, or for all of a smaller one."""
    unread_s: float = 60.0
    """Seconds for the client to read any part of a response that is ready."""
    last_request_s: float = 1.0
    """Value of `headers_s` once the service was told to stop."""

    @property
    def most_per_address(self) -> int:
        """Half of all, because all clients of this machine, or of a proxy, share one address."""
        return max(1, self.most // 2)


def raise_connection_limit() -> int:
    """Raise this process's soft limit on descriptors and return how many of them connections may use."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return max(wanted - max(wanted // 4, _OWN_DESCRIPTORS), 1)


class _Address:
    """Connections of one peer address. Those that wait for the peer are stored with the time since which they wait."""

    __slots__ = ("bodies", "connections", "heads")

    def __init__(self) -> None:
        self.connections = 0
        self.heads: OrderedDict[GuardedProtocol, float] = OrderedDict()
        """Connections without a request: new, idle, or with incomplete headers; the longest wait first."""
        self.bodies: OrderedDict[GuardedProtocol, float] = OrderedDict()
        """Connections with a request whose body is incomplete; the longest wait first."""

    def waiting(self) -> int:
        """Return the number of connections that wait for the peer."""
        return len(self.heads) + len(self.bodies)

    def pop_oldest(self) -> GuardedProtocol | None:
        """Remove and return the connection that waits longest, preferably one without a request."""
        waiting = self.heads or self.bodies
        return waiting.popitem(last=False)[0] if waiting else None


class ConnectionTable(ServerState):
    """Connections of one worker. It is used from the worker's event loop only."""

    connections: set[GuardedProtocol]  # type: ignore[assignment]  # every one is ours

    def __init__(self, limits: ConnectionLimits) -> None:
        super().__init__()
        self.limits = limits
        self.stopping = False
        """True once the service was told to stop."""
        self._addresses: dict[str, _Address] = {}
        self._unread: dict[GuardedProtocol, tuple[int, float]] = {}

    def add(self, connection: GuardedProtocol) -> _Address:
        """Add a new connection. If there are too many, it replaces the one that waits longest for its client.

        New connections are preferred, because a probe of /health is a new one, and may come from the address with the
        most connections.
        """
        host = connection.client[0] if connection.client else ""
        address = self._addresses.setdefault(host, _Address())
        address.connections += 1
        fullest: _Address | None = None
        if address.connections > self.limits.most_per_address:
            fullest = address
        elif len(self.connections) > self.limits.most:
            fullest = max(self._addresses.values(), key=_Address.waiting)
        if fullest is not None:
            oldest = fullest.pop_oldest()
            if oldest is None:
                connection.app = _refuse
            else:
                oldest.transport.abort()
        address.heads[connection] = monotonic()
        return address

    def remove(self, connection: GuardedProtocol, address: _Address) -> None:
        """Forget a connection that ended."""
        address.heads.pop(connection, None)
        address.bodies.pop(connection, None)
        address.connections -= 1
        if not address.connections:
            host = connection.client[0] if connection.client else ""
            del self._addresses[host]

    def stop(self) -> None:
        """Keep no connection open after its response, and wait less for requests."""
        self.stopping = True
        for connection in self.connections:
            if connection.cycle is not None:
                connection.cycle.keep_alive = False

    def idle(self) -> bool:
        """Return whether no connection is without a request."""
        return not any(address.heads for address in self._addresses.values())

    def end_overdue(self) -> None:
        """End connections that kept the service waiting for headers or a body for too long."""
        now = monotonic()
        headers_s = self.limits.headers_s
        if self.stopping:
            headers_s = min(headers_s, self.limits.last_request_s)
        for address in list(self._addresses.values()):
            for connection in _pop_until(address.heads, now - headers_s):
                connection.time_out()
            for connection in _pop_until(address.bodies, now - self.limits.body_s):
                if connection.waits_for_us():
                    address.bodies[connection] = now
                else:
                    connection.time_out()

    def end_unread(self) -> None:
        """End connections whose client reads nothing of a response, even those about to close."""
        now = monotonic()
        unread: dict[GuardedProtocol, tuple[int, float]] = {}
        for connection in list(self.connections):
            size = connection.transport.get_write_buffer_size()
            if not size:
                continue
            before, since = self._unread.get(connection, (size, now))
            if size < before:
                before, since = size, now
            if now - since > self.limits.unread_s:
                connection.transport.abort()
            else:
                unread[connection] = before, since
        self._unread = unread

    def has_read(self, connection: GuardedProtocol) -> None:
        """Restart a client's time limit, because it reads its response."""
        self._unread.pop(connection, None)


class GuardedProtocol(AutoHTTPProtocol):
    """uvicorn's HTTP protocol, which records in the table what each connection waits for."""

    server_state: ConnectionTable

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._begun = False
        self._held_bytes: int | None = None  # where the parser is h11
        self._body_bytes = 0
        self._address = self.server_state.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.server_state.remove(self, self._address)

    def data_received(self, data: bytes) -> None:
        if self._held_bytes is not None:
            self._held_bytes += len(data)
        super().data_received(data)
        if self._held_bytes is not None and self._held_bytes > _HELD_BYTES:
            self._end(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"The headers are larger than {_HELD_BYTES} bytes.")
            return
        heads, bodies = self._address.heads, self._address.bodies
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            self._begun = True
            return
        heads.pop(self, None)
        if self.server_state.stopping:
            cycle.keep_alive = False
        if not cycle.more_body:
            bodies.pop(self, None)
            return
        self._body_bytes += len(data)
        if self not in bodies or self._body_bytes >= _BODY_STEP_BYTES:
            self._body_bytes = 0
            bodies.pop(self, None)
            bodies[self] = monotonic()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._held_bytes = 0

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self._held_bytes = 0

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        self._held_bytes = 0

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.cycle.response_complete:
            return  # the next of several requests that came at once
        self._address.bodies.pop(self, None)
        if self.server_state.stopping:
            self.transport.close()
        if not self.transport.is_closing():
            self._begun = False
            self._address.heads[self] = monotonic()

    def resume_writing(self) -> None:
        super().resume_writing()
        self.server_state.has_read(self)

    def waits_for_us(self) -> bool:
        """Return whether the rest of a body is not read yet, because the application or an earlier response is slow."""
        return self.flow.read_paused or bool(getattr(self, "pipeline", ()))

    def time_out(self) -> None:
        """Close the connection, with a problem document for a request that has no response yet."""
        missing = "headers" if self.cycle is None or self.cycle.response_complete else "body"
        self._end(HTTPStatus.REQUEST_TIMEOUT, f"The request's {missing} did not arrive in time: send it again.")

    def _end(self, status: HTTPStatus, detail: str) -> None:
        """Close the connection, with a problem document where a request has begun and no response."""
        if self.transport.is_closing():
            return
        cycle: Any = self.cycle  # None before the first request
        path = ""
        if cycle is not None and not cycle.response_complete:
            answerable, path = not cycle.response_started, self.scope["path"]
            # The application must not send after this.
            cycle.disconnected = True
            cycle.message_event.set()
        else:
            # After a response, the next bytes may be the rest of a body that the application did not read.
            answerable = self._begun and (cycle is None or not cycle.more_body)
        if answerable:
            self.transport.write(_problem(self.server_state.default_headers, status, path, detail))
        self.transport.close()


def _pop_until(waiting: OrderedDict[GuardedProtocol, float], latest: float) -> Iterator[GuardedProtocol]:
    """Remove and yield those whose time began by `latest`."""
    while waiting:
        connection, since = next(iter(waiting.items()))
        if since > latest:
            return
        del waiting[connection]
        yield connection


def _problem(headers: list[tuple[bytes, bytes]], status: HTTPStatus, path: str, detail: str) -> bytes:
    """Return a whole HTTP response, because the application has no request to answer."""
    from predictor.schemas.queries import Problem
    from predictor.service.http.problems import CONTENT_TYPE

    kind = status.phrase.lower().replace(" ", "-")
    problem = Problem(
        type=f"urn:accel:problem:{kind}", title=status.phrase, status=status, detail=detail, instance=path
    )
    body = problem.model_dump_json(exclude_none=True).encode()
    head = b"HTTP/1.1 %d %s\r\n" % (status, status.phrase.encode())
    own = {b"content-type": CONTENT_TYPE.encode(), b"content-length": b"%d" % len(body), b"connection": b"close"}
    return head + b"".join(b"%s: %s\r\n" % pair for pair in (*headers, *own.items())) + b"\r\n" + body


async def _refuse(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a request with 503, because every allowed connection already has one."""
    from predictor.service.http.problems import problem_response

    detail = "The service answers as many requests at once as it may hold connections: wait 1 s."
    headers = {"Retry-After": "1", "Connection": "close"}
    await problem_response(Request(scope), 503, "too-many-connections", detail, headers)(scope, receive, send)
