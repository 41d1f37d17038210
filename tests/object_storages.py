"""Object storages to test against: Azure's emulator, and a stand-in for Google's that moto's S3 server answers."""

from __future__ import annotations

import base64
import fcntl
import hashlib
import hmac
import http.client
import http.server
import shutil
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote, unquote

import pytest
from processes import free_port

AZURITE = "azurite@3.37.0"
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Key of every Azurite, as its documentation has it."""
_UNCHECKED = "AWS4-HMAC-SHA256 Credential=test/20261126/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"
"""By this moto knows that S3 is asked; it checks no signature."""
_AS_S3 = {"x-goog-copy-source": "x-amz-copy-source"}


class Answering(http.server.BaseHTTPRequestHandler):
    """Handler that has one way of answering, whatever the method."""

    def respond(self) -> None:
        raise NotImplementedError

    def ask(self, address: str, path: str, headers: dict[str, str]) -> tuple[int, list[tuple[str, str]], bytes]:
        """Pass the request on to another server; return its status, headers and content."""
        upstream = http.client.HTTPConnection(address.removeprefix("http://"))
        upstream.request(self.command, path, self.body(), headers)
        answer = upstream.getresponse()
        return answer.status, answer.getheaders(), answer.read()

    def body(self) -> bytes:
        """Read what came with the request."""
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def send(self, status: int, content: bytes, headers: Iterable[tuple[str, str]] = ()) -> None:
        """Answer with these headers, but for those of a connection."""
        self.send_response(status)
        for name, value in headers:
            if name.lower() not in ("transfer-encoding", "connection", "content-length", "date", "server"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _any(self) -> None:
        self.respond()

    do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = _any  # noqa: N815 - the base class's names

    def log_message(self, *_: object) -> None:
        """Quiet."""


@contextmanager
def served(handler: type[Answering]) -> Iterator[str]:
    """Yield the address of a server with this handler."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@contextmanager
def google_stand_in(s3_endpoint: str) -> Iterator[str]:
    """Yield the address of a server that takes Google's XML requests and has an S3 server answer them.

    Both protocols are the same, but for the names of headers and the condition of a write.
    """

    class Google(Answering):
        def respond(self) -> None:
            headers = {_AS_S3.get(name.lower(), name.lower()): value for name, value in self.headers.items()}
            headers["authorization"] = _UNCHECKED
            if self.headers.get("x-goog-if-generation-match") == "0":
                headers["if-none-match"] = "*"
            path, mark, query = self.path.partition("?")
            # Google's clients encode hyphens and slashes too.
            status, found, content = self.ask(s3_endpoint, quote(unquote(path)) + mark + query, headers)
            self.send(status, content, [*found, ("x-goog-generation", "1")])

    with served(Google) as address:
        yield address


@contextmanager
def azurite(place: Path) -> Iterator[str]:
    """Yield the address of Azure's own emulator, installed into a folder with npm if it is not there yet."""
    program = _installed(place)
    port = free_port()
    options = ["--blobPort", str(port), "--inMemoryPersistence", "--skipApiVersionCheck", "--silent"]
    server = subprocess.Popen(
        ["node", str(program), *options, "--disableTelemetry"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        address = f"http://127.0.0.1:{port}/{ACCOUNT}"
        _wait_for(server, address)
        yield address
    finally:
        server.terminate()
        server.communicate(timeout=20)


def _installed(place: Path) -> Path:
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed, which brings Azurite")
    place.mkdir(parents=True, exist_ok=True)
    program = place / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
    with (place / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several processes run tests
        if not (place / "package-lock.json").exists():  # written last
            install = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(place), AZURITE]
            done = subprocess.run(install, capture_output=True, text=True, timeout=300, check=False)
            assert done.returncode == 0, done.stderr
    return program


def _wait_for(server: subprocess.Popen[bytes], address: str) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            make_container(address, f"ready-{time.monotonic_ns()}")
        except OSError:
            assert server.poll() is None, server.communicate()[0]
            assert time.monotonic() < deadline, "Azurite does not answer"
            time.sleep(0.1)
        else:
            return


def make_container(address: str, name: str) -> None:
    """Make a container of an Azurite; clients of logs cannot."""
    headers = {"x-ms-date": datetime.now(UTC).strftime("%a, %d %b %Y %H:%M:%S GMT"), "x-ms-version": "2021-08-06"}
    signed = "\n".join(f"{key}:{value}" for key, value in headers.items())
    text = "PUT" + "\n" * 12 + f"{signed}\n/{ACCOUNT}/{ACCOUNT}/{name}\nrestype:container"
    signature = base64.b64encode(hmac.new(base64.b64decode(KEY), text.encode(), hashlib.sha256).digest()).decode()
    headers |= {"Authorization": f"SharedKey {ACCOUNT}:{signature}", "Content-Length": "0"}
    request = urllib.request.Request(f"{address}/{name}?restype=container", method="PUT", headers=headers)
    urllib.request.urlopen(request, timeout=5).close()
