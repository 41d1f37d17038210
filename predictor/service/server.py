"""Runs the service with uvicorn: where it may listen, and how it starts and stops. Routes are in `app.py`."""

from __future__ import annotations

import asyncio
import ctypes
import multiprocessing
import os
import select
import signal
import socket
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from multiprocessing.process import BaseProcess

import uvicorn
from fastapi import FastAPI
from uvicorn.supervisors import Multiprocess
from uvicorn.supervisors import multiprocess as supervisor

from accel_platform.api_keys import Keys
from accel_platform.errors import AccelError, InvalidInput
from accel_platform.settings import Settings
from accel_platform.signals import block_sigint
from predictor.service.middleware import log_setup, metrics
from predictor.service.middleware.auth import is_loopback
from predictor.service.middleware.connections import (
    ConnectionLimits,
    ConnectionTable,
    GuardedProtocol,
    most_connections,
)

_STOP_S = 5
"""How long requests that are being answered may take to end once the service was told to stop."""
_HANDSHAKE_S = 0.2
"""Time for connections that are being opened to do so, once the service was told to stop."""
_SO_ATTACH_FILTER = 26  # asm-generic/socket.h; Python has no name for it
_WITHOUT_SYN = (
    (0x30, 0, 0, 13),  # load the byte of the TCP flags
    (0x45, 0, 1, 0x02),  # is SYN set?
    (0x06, 0, 0, 0),  # drop the segment
    (0x06, 0, 0, 0xFFFFFFFF),  # let it pass
)
"""A BPF program (code, jump if true, jump if false, operand) that lets no segment pass that opens a connection."""


def serve(
    settings: Settings,
    host: str,
    port: int,
    *,
    ready: Callable[[str], None],
    workers: int = 1,
    log_format: log_setup.Form = "text",
) -> None:
    """Serve until interrupted. `ready` gets the base URL once the port is ours.

    Raises InvalidInput for a host other than loopback where there are no keys, AccelError where the port cannot be had.
    """
    if not is_loopback(host):
        _require_keys(settings, host)
    with listen(host, port) as listening, tempfile.TemporaryDirectory(prefix="accel-metrics-") as shared:
        name = f"[{host}]" if ":" in host else host
        ready(f"http://{name}:{listening.getsockname()[1]}")
        if workers == 1:
            run(_app(settings, host, log_format), listening)
        else:
            os.environ[metrics.SHARED] = shared
            config = _config(partial(_app, settings, host, log_format), factory=True, workers=workers)
            # uvicorn's supervisor has no parameter for its workers' class.
            supervisor.Process = _Worker  # type: ignore[misc]
            _Workers(config, sockets=[listening]).run()


class Server(uvicorn.Server):
    """uvicorn's server with limits on connections, which answers what the kernel accepted before it stops."""

    server_state: ConnectionTable

    def __init__(self, config: uvicorn.Config, limits: ConnectionLimits | None = None) -> None:
        super().__init__(config)
        self.server_state = ConnectionTable(limits or ConnectionLimits(most_connections()))

    async def on_tick(self, counter: int) -> bool:
        self.server_state.end_overdue()
        if counter % 10 == 0:  # once a second, because it looks at every connection
            self.server_state.end_unread()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        listening = sockets or []
        if self.config.workers == 1:  # of several, the parent does it, because one may stop while others go on
            add_no_connections(listening)
        self.server_state.stop()
        await _emptied(listening)
        for server in self.servers:
            server.close()
        # A client that has just connected sends its request now; closed before that is read, it would see a reset.
        while not self.server_state.idle():
            await asyncio.sleep(0.05)
            self.server_state.end_overdue()
        await super().shutdown(sockets)


async def _emptied(listening: Sequence[socket.socket]) -> None:
    """Return once the event loop, or other workers, have taken all connections that the kernel accepted."""
    started = time.monotonic()
    poll = select.poll()
    for one in listening:
        poll.register(one, select.POLLIN)
    while (now := time.monotonic()) < started + _HANDSHAKE_S or (poll.poll(0) and now < started + _STOP_S):
        await asyncio.sleep(0.02)


def add_no_connections(listening: Sequence[socket.socket]) -> None:
    """Have the kernel ignore whoever wants to connect, as if it were busy; those it accepted stay in the queue.

    They try again, and are refused once the socket is closed. Closing it at once would reset those in the queue.
    """
    if sys.platform != "linux":
        return
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in _WITHOUT_SYN))
    filter_ = struct.pack("HP", len(_WITHOUT_SYN), ctypes.addressof(program))
    for one in listening:
        with suppress(OSError):  # a kernel without it: who connects in the very last moment is reset
            one.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, filter_)


class _Worker(supervisor.Process):
    """uvicorn's worker process with our server."""

    @property
    def server(self) -> uvicorn.Server:
        if self._server is None:
            self._server = Server(self.config)
        return self._server


class _Workers(Multiprocess):
    """uvicorn's, but that Ctrl-C reaches their parent alone, which ends them: not each amid its imports."""

    def terminate_all(self) -> None:
        add_no_connections(self.sockets)
        super().terminate_all()

    def init_processes(self) -> None:
        with block_sigint():
            super().init_processes()

    def keep_subprocess_alive(self) -> None:
        with block_sigint():
            super().keep_subprocess_alive()


def run(app: FastAPI, listening: socket.socket) -> None:
    """Serve the app there until interrupted, as one worker."""
    try:
        Server(_config(app)).run(sockets=[listening])
    except KeyboardInterrupt:
        # uvicorn has finished its requests by now and passes the signal on; the command ends well.
        return


def _app(settings: Settings, host: str, log_format: log_setup.Form) -> FastAPI:
    """The app of one worker, made in its own process."""
    from predictor.service.app import create_app

    log_setup.configure(log_format)
    if (parent := multiprocessing.parent_process()) is not None:
        threading.Thread(target=_end_after, args=(parent,), daemon=True).start()
    return create_app(settings, host=host)


def _end_after(parent: BaseProcess) -> None:
    """End well when the process that started the workers was killed: nobody else would tell them."""
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)


def _config(app: FastAPI | Callable[[], FastAPI], *, factory: bool = False, workers: int = 1) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        factory=factory,
        workers=workers,
        http=GuardedProtocol,
        ws="none",  # there is none, and a connection that became one would be under no limit
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=_STOP_S,
    )


def _require_keys(settings: Settings, host: str) -> None:
    now = datetime.now(UTC)
    if not any(key.works(now) for key in Keys(settings).all()):
        raise InvalidInput(
            f"Others could connect to {host}, and there is no API key that works: make one first (`accel keys create "
            "NAME --scope read`), or listen on loopback (--host 127.0.0.1)."
        )


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises AccelError, with what to do, where the port cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(2048)
    except OSError as error:
        listening.close()
        raise AccelError(
            f"Port {port} on {host} cannot be had ({error.strerror}): choose another with --port."
        ) from error
    return listening
