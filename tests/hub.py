"""A model hub on loopback, in the protocol that huggingface_hub speaks, to download from. No test lives here."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@contextmanager
def hub(repository: str, folder: Path) -> Iterator[str]:
    """Serve the files of a folder as one repository with one revision; the endpoint's address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            path = self.path.partition("?")[0].strip("/")
            file = folder / path.rpartition("/")[2]
            if path.startswith(f"api/models/{repository}/tree/"):
                entries = [{"type": "file", "path": f.name, "size": f.stat().st_size, "oid": "1"} for f in files()]
                self.reply(200, json.dumps(entries).encode())
            elif path.startswith(f"api/models/{repository}/"):
                siblings = [{"rfilename": f.name} for f in files()]
                self.reply(200, json.dumps({"id": repository, "sha": COMMIT, "siblings": siblings}).encode())
            elif path.startswith(f"{repository}/resolve/{COMMIT}/") and file.is_file():
                data = file.read_bytes()
                self.reply(200, data, {"ETag": f'"{hashlib.sha1(data).hexdigest()}"', "X-Repo-Commit": COMMIT})
            else:
                self.reply(404, b"{}", {"X-Error-Code": "RepoNotFound"})

        def reply(self, status: int, data: bytes, headers: dict[str, str] | None = None) -> None:
            self.send_response(status)
            for name, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            """Quietly."""

    def files() -> list[Path]:
        return sorted(folder.iterdir())

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
