"""A web server on loopback for one page: the page, the runtime, a model's files, arrays in and arrays out.

Its answers make the page cross-origin isolated, without which a browser gives neither threads nor a fine clock.
"""

from __future__ import annotations

import queue
import secrets
import shutil
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

_TYPES = {".html": "text/html", ".js": "text/javascript", ".mjs": "text/javascript", ".wasm": "application/wasm"}
_BYTES = "application/octet-stream"
_PATIENCE_S = 5.0
"""Seconds after which a page that polls for its next call gets an empty answer and polls again."""


class Loopback:
    """Web server of one page, on the loopback interface.

    All paths begin with a secret that only the page is told, so that no other user of this machine can read or write.

    Attributes
    ----------
    folders
        Folders that are served, by name.
    given
        Arrays that the page may fetch, by name, as bytes.
    taken
        Arrays that the page has sent, by name.
    calls, answers
        Queues of calls and their answers, for a page without a driver, which polls.
    """

    def __init__(self, folders: dict[str, Path]) -> None:
        self.folders = folders
        self.given: dict[str, bytes] = {}
        self.taken: dict[str, bytes] = {}
        self.calls: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self.answers: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        secret = secrets.token_urlsafe(16)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self, secret))
        self.url = f"http://127.0.0.1:{self._server.server_port}/{secret}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _handler(loopback: Loopback, secret: str) -> type[BaseHTTPRequestHandler]:
    """Return the request handler of a server whose paths begin with the secret."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            kind, name = self._target()
            if kind == "ask":
                self._next_call()
                return
            if kind == "given" and name in loopback.given:
                data = loopback.given[name]
                self._head(HTTPStatus.OK, _BYTES, len(data))
                self.wfile.write(data)
                return
            file = loopback.folders[kind] / name if kind in loopback.folders else None
            if file is None or not file.is_file():
                self._head(HTTPStatus.NOT_FOUND, _BYTES, 0)
                return
            with file.open("rb") as stream:
                self._head(HTTPStatus.OK, _TYPES.get(file.suffix, _BYTES), file.stat().st_size)
                shutil.copyfileobj(stream, self.wfile, 1 << 20)

        def do_POST(self) -> None:
            kind, name = self._target()
            data = self.rfile.read(int(self.headers["Content-Length"]))
            if kind == "taken":
                loopback.taken[name] = data
            elif kind == "answer":
                loopback.answers.put(data)
            self._head(HTTPStatus.OK if kind in ("taken", "answer") else HTTPStatus.NOT_FOUND, _BYTES, 0)

        def _next_call(self) -> None:
            try:
                call = loopback.calls.get(timeout=_PATIENCE_S)
            except queue.Empty:
                self._head(HTTPStatus.NO_CONTENT, _BYTES, 0)
                return
            self._head(HTTPStatus.OK, _BYTES, len(call))
            self.wfile.write(call)

        def _target(self) -> tuple[str, str]:
            """Return kind and name below the secret path; empty for any other path."""
            parts = [unquote(part) for part in self.path.split("/")]
            if len(parts) != 4 or parts[1] != secret or parts[3] != Path(parts[3]).name:
                return "", ""
            return parts[2], parts[3]

        def _head(self, status: HTTPStatus, content_type: str, length: int) -> None:
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(length))
            self.send_header("Cross-Origin-Opener-Policy", "same-origin")
            self.send_header("Cross-Origin-Embedder-Policy", "require-corp")
            self.send_header("Cache-Control", "no-store")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name in the base class
            """Suppress the line that http.server writes per request."""

    return Handler
