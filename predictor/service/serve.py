"""Runs the service with uvicorn: where it may listen, and how it starts and stops. Routes are in `app.py`."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable

import uvicorn
from fastapi import FastAPI

from accel_platform.errors import AccelError, InvalidInput
from accel_platform.settings import Settings
from predictor.service.app import create_app


def serve(settings: Settings, host: str, port: int, *, ready: Callable[[str], None]) -> None:
    """Serve until interrupted. `ready` gets the base URL once the port is ours.

    Raises InvalidInput for a host other than loopback, AccelError where the port cannot be had.
    """
    _require_loopback(host)
    with listen(host, port) as listening:
        name = f"[{host}]" if ":" in host else host
        ready(f"http://{name}:{listening.getsockname()[1]}")
        run(create_app(settings), listening)


def run(app: FastAPI, listening: socket.socket) -> None:
    """Serve the app there until interrupted, as one worker."""
    config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=5)
    try:
        uvicorn.Server(config).run(sockets=[listening])
    except KeyboardInterrupt:
        # uvicorn has finished its requests by now and passes the signal on; the command ends well.
        return


def _require_loopback(host: str) -> None:
    try:
        loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        raise InvalidInput(
            f"The service has no API keys yet and listens on loopback only: use --host 127.0.0.1, not {host}."
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
