"""Connections that keep the service waiting, and those that are there when it stops."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from fastapi import FastAPI, Request
from fastapi.responses import PlainTextResponse, StreamingResponse
from processes import asking_until_refused

from predictor.service.middleware.connections import ConnectionLimits
from predictor.service.server import Server, _config, listen

HEALTH = b"GET /health HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n"
LIMITS = ConnectionLimits(most=1_000, headers_s=0.4, body_s=0.4, unread_s=0.6, last_request_s=0.5)
LARGE = 32 * 1024 * 1024
"""More than the kernel takes for a client that reads nothing."""


def _app() -> FastAPI:
    app = FastAPI()

    @app.get("/health")
    async def health() -> str:
        return "ok"

    @app.post("/length")
    async def length(request: Request, wait_s: float = 0) -> int:
        await asyncio.sleep(wait_s)
        return len(await request.body())

    @app.get("/stream")
    async def stream(for_s: float) -> StreamingResponse:
        async def lines() -> AsyncIterator[bytes]:
            until = time.monotonic() + for_s
            while time.monotonic() < until:
                yield b"still here\n"
                await asyncio.sleep(0.1)
            yield b"end"

        return StreamingResponse(lines())

    @app.get("/large")
    async def large() -> PlainTextResponse:
        return PlainTextResponse(b"x" * LARGE)

    @app.get("/block")
    async def block(seconds: float) -> str:
        time.sleep(seconds)
        return "ok"

    return app


class _Service:
    """A server in a thread of its own."""

    def __init__(self, server: Server, address: tuple[str, int]) -> None:
        self.server = server
        self.address = address

    def connect(self, sent: bytes = b"") -> socket.socket:
        client = socket.create_connection(self.address, timeout=30)
        client.sendall(sent)
        return client

    def ask(self, request: bytes) -> bytes:
        with self.connect(request) as client:
            return _rest(client)

    def held(self) -> int:
        return len(self.server.server_state.connections)


@contextmanager
def _serving(limits: ConnectionLimits = LIMITS) -> Iterator[_Service]:
    with listen("127.0.0.1", 0) as listening:
        server = Server(_config(_app()), limits)
        address = listening.getsockname()
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield _Service(server, address)
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture(scope="module")
def service() -> Iterator[_Service]:
    with _serving() as service:
        yield service


def _rest(client: socket.socket) -> bytes:
    """All that comes until the service closes the connection; a reset is an error."""
    return b"".join(iter(lambda: client.recv(1 << 16), b""))


def _until(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _post(path: str, length: int, body: bytes) -> bytes:
    return b"POST %s HTTP/1.1\r\nHost: here\r\nContent-Length: %d\r\n\r\n%s" % (path.encode(), length, body)


def _problem(response: bytes) -> dict[str, object]:
    head, _, body = response.partition(b"\r\n\r\n")
    assert b"application/problem+json" in head
    assert b"connection: close" in head.lower()
    problem: dict[str, object] = json.loads(body)
    assert int(head.split()[1]) == problem["status"]
    return problem


def test_a_connection_without_a_request_is_closed_without_a_word(service: _Service) -> None:
    assert service.ask(b"") == b""


@pytest.mark.parametrize("begun", [b"G", b"GET /health HTTP/1.1\r\nHost: he"])
def test_headers_that_never_end_are_a_problem(service: _Service, begun: bytes) -> None:
    problem = _problem(service.ask(begun))
    assert problem["status"] == 408
    assert "headers" in str(problem["detail"])


def test_headers_that_come_byte_by_byte_are_no_way_round(service: _Service) -> None:
    with service.connect() as client:
        for byte in HEALTH:
            try:
                client.send(bytes([byte]))
            except OSError:
                return
            time.sleep(0.1)
    pytest.fail("the request took seconds and was not ended")


def test_headers_and_trailers_without_end_are_not_held() -> None:
    with _serving(replace(LIMITS, headers_s=20, body_s=20)) as service:
        for begun in (
            b"GET /health HTTP/1.1\r\nHost: here\r\nX-Long: ",
            b"GET /",
            HEALTH.replace(b"close", b"keep-alive") + b"GET /health HTTP/1.1\r\nX-Long: ",
            b"POST /length HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nX-Long: ",
        ):
            with service.connect(begun) as client:
                for size in (1 << 16, 1 << 10):
                    time.sleep(0.1)
                    client.sendall(b"x" * size)
                assert b"HTTP/1.1 431 " in _rest(client), begun


def test_a_long_body_is_no_header(service: _Service) -> None:
    for part in (1 << 10, 1 << 20):
        with service.connect(_post("/length", 1 << 20, b"")) as client:
            for _ in range((1 << 20) // part):
                client.sendall(b"x" * part)
            client.sendall(HEALTH)
            answer = _rest(client)
        assert answer.count(b"HTTP/1.1 200 OK") == 2
        assert b"1048576" in answer


def test_an_idle_connection_gets_no_time_anew_by_the_begin_of_a_request(service: _Service) -> None:
    with service.connect(HEALTH.replace(b"close", b"keep-alive")) as client:
        assert client.recv(1 << 16).startswith(b"HTTP/1.1 200")
        client.sendall(b"GET /hea")
        assert _problem(_rest(client))["status"] == 408


@pytest.mark.parametrize("body", [b"", b"some"])
def test_a_body_that_never_ends_is_a_problem(service: _Service, body: bytes) -> None:
    problem = _problem(service.ask(_post("/length", 100, body)))
    assert problem["status"] == 408
    assert problem["instance"] == "/length"
    assert "body" in str(problem["detail"])


def test_a_body_that_comes_byte_by_byte_is_no_way_round(service: _Service) -> None:
    with service.connect(_post("/length", 100, b"")) as client:
        for _ in range(100):
            try:
                client.send(b"x")
            except OSError:
                return
            time.sleep(0.1)
    pytest.fail("the request took seconds and was not ended")


def test_a_body_may_take_longer_than_its_limit_while_it_goes_on(service: _Service) -> None:
    piece = b"x" * 20_000
    with service.connect(_post("/length", 8 * len(piece), b"")) as client:
        for _ in range(8):
            client.sendall(piece)
            time.sleep(0.1)
        assert client.recv(1 << 16).endswith(b"160000")


def test_a_body_that_the_application_does_not_read_is_not_its_clients_fault(service: _Service) -> None:
    with service.connect(_post("/length?wait_s=1.2", 300_000, b"x" * 300_000)) as client:
        assert client.recv(1 << 16).endswith(b"300000")


def test_a_stream_lives_on(service: _Service) -> None:
    response = service.ask(b"GET /stream?for_s=1.5 HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n")
    assert response.count(b"still here") > 10
    assert b"end" in response


def test_requests_that_come_at_once_are_all_answered(service: _Service) -> None:
    kept = HEALTH.replace(b"close", b"keep-alive")
    assert service.ask(kept * 4 + HEALTH).count(b"HTTP/1.1 200") == 5


def test_a_response_that_nobody_reads_ends_and_one_that_is_read_slowly_does_not(service: _Service) -> None:
    request = b"GET /large HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n"
    with service.connect(request) as deaf, service.connect(request) as slow:
        read = 0
        for _ in range(32):
            read += len(slow.recv(LARGE // 64, socket.MSG_WAITALL))
            time.sleep(0.1)
        read += len(_rest(slow))
        assert read > LARGE
        assert len(_rest(deaf)) < LARGE


@pytest.mark.parametrize("begun", [b"", b"GET /he", _post("/length", 100, b"some")])
def test_half_open_connections_make_way_for_new_ones_of_the_same_address(begun: bytes) -> None:
    with _serving(replace(LIMITS, most=40, headers_s=60, body_s=60)) as service, ExitStack() as opened:
        for number in range(120):
            opened.enter_context(service.connect(begun))
            if number % 10 == 0:
                assert service.ask(HEALTH).startswith(b"HTTP/1.1 200")
                assert service.held() <= 22, "half of all for one address, and one or two that end"


def test_one_address_does_not_drive_out_another() -> None:
    with _serving(replace(LIMITS, most=40, headers_s=60)) as service, ExitStack() as opened:
        host, port = service.address
        other = socket.create_connection((host, port), timeout=30, source_address=("127.0.0.2", 0))
        opened.enter_context(other)
        for _ in range(120):
            opened.enter_context(service.connect())
        other.sendall(HEALTH)
        assert _rest(other).startswith(b"HTTP/1.1 200")


def test_where_every_connection_has_a_request_others_are_told_when_to_come_back() -> None:
    with _serving(replace(LIMITS, most=8)) as service, ExitStack() as opened:
        for _ in range(4):
            client = opened.enter_context(service.connect(b"GET /stream?for_s=1 HTTP/1.1\r\nHost: here\r\n\r\n"))
            assert client.recv(100).startswith(b"HTTP/1.1 200")
        refused = service.ask(HEALTH)
        assert _problem(refused)["status"] == 503
        assert b"retry-after: 1\r\n" in refused.lower()
        _until(lambda: service.held() == 0)
        assert service.ask(HEALTH).startswith(b"HTTP/1.1 200")


def test_more_half_open_connections_than_descriptors_do_not_shut_out_health() -> None:
    program = (
        "import sys; sys.path[:0] = sys.argv[1:]; from test_connections import _app; "
        "from predictor.service.server import listen, run\n"
        "with listen('127.0.0.1', 0) as s: print(s.getsockname()[1], flush=True); run(_app(), s)"
    )
    here = Path(__file__).parent
    folders = [str(here), str(here.parent), str(here.parent.parent)]
    limited = ["sh", "-c", 'ulimit -n 256; exec "$@"', "sh", sys.executable, "-c", program, *folders]
    with subprocess.Popen(limited, stdout=subprocess.PIPE, text=True) as process, ExitStack() as opened:
        opened.callback(process.kill)
        assert process.stdout is not None
        address = ("127.0.0.1", int(process.stdout.readline()))
        for number in range(600):
            opened.enter_context(socket.create_connection(address, timeout=30))
            if number % 60 == 0:
                with socket.create_connection(address, timeout=30) as client:
                    client.sendall(HEALTH)
                    assert _rest(client).startswith(b"HTTP/1.1 200")


def test_what_was_accepted_before_the_service_stops_is_answered() -> None:
    """While its loop is busy, requests come and it is told to stop: it has begun none of them by then."""
    with _serving() as service, ExitStack() as opened:
        busy = opened.enter_context(service.connect(b"GET /block?seconds=0.5 HTTP/1.1\r\nHost: here\r\n\r\n"))
        time.sleep(0.1)
        clients = [opened.enter_context(service.connect(HEALTH)) for _ in range(200)]
        later = opened.enter_context(service.connect())
        service.server.should_exit = True
        time.sleep(0.5)
        later.sendall(HEALTH.replace(b"close", b"keep-alive"))
        assert all(_rest(client).startswith(b"HTTP/1.1 200") for client in clients)
        for kept in (busy, later):
            response = _rest(kept)
            assert response.startswith(b"HTTP/1.1 200")
        assert b"connection: close" in response.lower(), "no more requests after this one"


def test_whoever_connects_while_it_stops_is_answered_or_refused() -> None:
    for _ in range(3):
        with ExitStack() as stack:
            service = stack.enter_context(_serving())
            with asking_until_refused(service.address, HEALTH) as (responses, broken):
                _until(lambda responses=responses: len(responses) > 8)
                stack.close()
        assert broken == []
        assert all(response.startswith(b"HTTP/1.1 200") for response in responses)
