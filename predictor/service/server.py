"""The service under uvicorn: where it may listen, and how it starts and stops."""

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
from types import FrameType
from typing import TYPE_CHECKING

import uvicorn
from fastapi import FastAPI
from uvicorn.supervisors import Multiprocess
from uvicorn.supervisors import multiprocess as supervisor

from accel_platform.api_keys import KeyStore
from accel_platform.errors import AccelError, InvalidInput
from accel_platform.settings import Settings
from accel_platform.signals import block_sigint, end_at_once
from predictor.service.middleware import log_setup, metrics
from predictor.service.middleware.auth import is_loopback
from predictor.service.middleware.connections import (
    ConnectionLimits,
    ConnectionTable,
    GuardedProtocol,
    raise_connection_limit,
)

if TYPE_CHECKING:  # because it imports DuckDB, which commands that only need a port do without
    from predictor.service.background.intake import MarkSuspicious

_STOP_S = 5
"""Time for running requests to end once the service was told to stop."""
_HANDSHAKE_S = 0.2
"""Seconds for connections that are being opened to be accepted, once the service was told to stop."""
_SO_ATTACH_FILTER = 26  # asm-generic/socket.h; Python has no name for it
_DROP_SYN = (
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
    mark_suspicious: MarkSuspicious,
    workers: int = 1,
    log_format: log_setup.Form = "text",
) -> None:
    """Serve until interrupted; `ready` gets the base URL once the port is bound.

    `mark_suspicious` checks posted results. Worker processes import it, so it is a function of a module.

    Raises InvalidInput for a host other than loopback without API keys, AccelError for a port that cannot be bound.
    """
    if not is_loopback(host):
        _require_api_key(settings, host)
    with listen(host, port) as listener, tempfile.TemporaryDirectory(prefix="accel-metrics-") as shared:
        name = f"[{host}]" if ":" in host else host
        ready(f"http://{name}:{listener.getsockname()[1]}")
        if workers == 1:
            run(_create_worker_app(settings, host, log_format, mark_suspicious), listener)
        else:
            os.environ[metrics.MULTIPROCESS_DIR] = shared
            create = partial(_create_worker_app, settings, host, log_format, mark_suspicious)
            config = _config(create, factory=True, workers=workers)
            # uvicorn's supervisor has no parameter for its workers' class.
            supervisor.Process = _Worker  # type: ignore[misc]
            _Workers(config, sockets=[listener]).run()


class Server(uvicorn.Server):
    """A uvicorn server with limits on connections, which answers every accepted connection before it stops."""

    server_state: ConnectionTable

    def __init__(self, config: uvicorn.Config, limits: ConnectionLimits | None = None) -> None:
        super().__init__(config)
        self.server_state = ConnectionTable(limits or ConnectionLimits(raise_connection_limit()))

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit and sig == signal.SIGINT:
            end_at_once(sig)
        super().handle_exit(sig, frame)

    async def on_tick(self, counter: int) -> bool:
        self.server_state.end_overdue()
        if counter % 10 == 0:  # once a second, because it looks at every connection
            self.server_state.end_unread()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        listeners = sockets or []
        if self.config.workers == 1:  # of several, the parent does it, because one may stop while others go on
            stop_accepting(listeners)
        self.server_state.stop()
        await _drain_backlog(listeners)
        for server in self.servers:
            server.close()
        # A client that has just connected sends its request now; closed before that is read, it would see a reset.
        while not self.server_state.idle():
            await asyncio.sleep(0.05)
            self.server_state.end_overdue()
        await super().shutdown(sockets)


async def _drain_backlog(listeners: Sequence[socket.socket]) -> None:
    """Wait until the event loop, or other workers, have taken all connections that the kernel accepted."""
    started = time.monotonic()
    poll = select.poll()
    for listener in listeners:
        poll.register(listener, select.POLLIN)
    while (now := time.monotonic()) < started + _HANDSHAKE_S or (poll.poll(0) and now < started + _STOP_S):
        await asyncio.sleep(0.02)


def stop_accepting(listeners: Sequence[socket.socket]) -> None:
    """Have the kernel ignore new connections, as if it were busy; those it accepted stay in the queue.

    Ignored clients try again, and are refused once the socket is closed. Closing it at once would reset the queue.
    """
    if sys.platform != "linux":
        return
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in _DROP_SYN))
    filter_ = struct.pack("HP", len(_DROP_SYN), ctypes.addressof(program))
    for listener in listeners:
        with suppress(OSError):  # because without socket filters only the last moment's clients are reset
            listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, filter_)


class _Worker(supervisor.Process):
    """uvicorn's worker process with our server."""

    @property
    def server(self) -> uvicorn.Server:
        if self._server is None:
            self._server = Server(self.config)
        return self._server


class _Workers(Multiprocess):
    """uvicorn's supervisor, which alone gets Ctrl-C and ends its workers, because one amid its imports would break."""

    def __init__(self, config: uvicorn.Config, sockets: list[socket.socket]) -> None:
        super().__init__(config, sockets)
        signal.signal(signal.SIGINT, self._interrupt)

    def _interrupt(self, number: int, _: FrameType | None) -> None:
        if self.should_exit.is_set() or number in self.signal_queue:
            end_at_once(number)
        self.signal_queue.append(number)

    def terminate_all(self) -> None:
        stop_accepting(self.sockets)
        super().terminate_all()

    def init_processes(self) -> None:
        with block_sigint():
            super().init_processes()

    def keep_subprocess_alive(self) -> None:
        with block_sigint():
            super().keep_subprocess_alive()


def run(app: FastAPI, listener: socket.socket) -> None:
    """Serve the app on a socket until interrupted, as one worker."""
    try:
        Server(_config(app)).run(sockets=[listener])
    except KeyboardInterrupt:
        # uvicorn has finished its requests by now and passes the signal on; the command ends well.
        return


def _create_worker_app(
    settings: Settings, host: str, log_format: log_setup.Form, mark_suspicious: MarkSuspicious
) -> FastAPI:
    """Return the app of one worker, in the worker's process."""
    from predictor.service.app import create_app

    log_setup.configure(log_format)
    if (parent := multiprocessing.parent_process()) is not None:
        threading.Thread(target=_stop_with_parent, args=(parent,), daemon=True).start()
    return create_app(settings, host=host, mark_suspicious=mark_suspicious)


def _stop_with_parent(parent: BaseProcess) -> None:
    """Stop this worker when its parent ends, because a killed parent stops no workers."""
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)


def _config(app: FastAPI | Callable[[], FastAPI], *, factory: bool = False, workers: int = 1) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        factory=factory,
        workers=workers,
        http=GuardedProtocol,
        ws="none",  # because WebSocket connections would escape the limits
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=_STOP_S,
    )


def _require_api_key(settings: Settings, host: str) -> None:
    now = datetime.now(UTC)
    if not any(key.is_active(now) for key in KeyStore(settings).all()):
        raise InvalidInput(
            f"Others could connect to {host}, and there is no API key that works: make one first (`accel keys create "
            "NAME --scope read`), or listen on loopback (--host 127.0.0.1)."
        )


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raises AccelError, with what to do, for a port that cannot be bound."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(2048)
    except OSError as error:
        listener.close()
        raise AccelError(
            f"Port {port} on {host} cannot be had ({error.strerror}): choose another with --port."
        ) from error
    return listener
