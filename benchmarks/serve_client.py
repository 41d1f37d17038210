"""How near `accel bench serve` comes to a second client, written apart from it, that loads the same server.

The second client is threads that read plain sockets. The server runs in a process of its own, answers after a known
time and streams at a known pace; both clients take turns, so that a busy machine meets both.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np

from accel_platform.bench.load.generator import Shape, prepare, run_load
from accel_platform.bench.load.http import Server
from accel_platform.bench.load.report import report

TESTS = Path(__file__).parents[1] / "tests"
SERVE = (
    "import sys, time; sys.path.insert(0, sys.argv[1])\n"
    "from openai_server import Served, serving\n"
    "with serving(Served(float(sys.argv[2]), float(sys.argv[3]))) as url:\n"
    "    print(url, flush=True); sys.stdin.read()\n"
)
FIRST_S, GAP_S, TOKENS = 0.1, 0.02, 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="turns of each client per number of users")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    command = [sys.executable, "-c", SERVE, str(TESTS), str(FIRST_S), str(GAP_S)]
    found = []
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        if server.stdout is None:
            raise RuntimeError("the server has no output")
        url = server.stdout.readline().strip()
        for users in (1, 8, 32):
            rounds = [(_ours(url, users), _sockets(url, users)) for _ in range(arguments.rounds)]
            for number, figure in enumerate(("first_token_ms", "between_tokens_ms")):
                ours, theirs = (float(np.median([pair[who][number] for pair in rounds])) for who in (0, 1))
                found.append(
                    {"users": users, "figure": figure, "ours": ours, "second_client": theirs, "ratio": ours / theirs}
                )
        server.terminate()
    if arguments.json:
        sys.stdout.write(json.dumps(found) + "\n")
        return
    for row in found:
        sys.stdout.write(
            f"{row['users']:>3} users  {row['figure']:<18} {row['ours']:8.2f} ms  second client "
            f"{row['second_client']:8.2f} ms  ratio {row['ratio']:.4f}\n"
        )


def _ours(url: str, users: int) -> tuple[float, float]:
    """Return median milliseconds to the first token and between tokens."""

    async def run() -> tuple[float, float]:
        shape = Shape(64, TOKENS, 4 * users, users=users)
        async with Server(url) as server:
            target, words, _ = await prepare(server, None, shape, chat=False)
            result = await run_load(target, shape, words, on_answer=lambda _: None)
        content = report(result, target, {}, [])
        return float(content["median_ttft_ms"]), float(content["median_itl_ms"])

    return asyncio.run(run())


def _sockets(url: str, users: int) -> tuple[float, float]:
    """Return the same by threads that each hold one connection, warmed up by one request."""
    first: list[float] = []
    gaps: list[float] = []

    def user() -> None:
        for number in range(5):
            arrivals = _stream(url)
            if number:
                first.append(arrivals[1] - arrivals[0])
                gaps.extend(np.diff(arrivals[1:]))

    threads = [threading.Thread(target=user) for _ in range(users)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return float(np.median(first)) * 1e3, float(np.median(gaps)) * 1e3


def _stream(url: str) -> list[float]:
    """Return the time of sending, and that of each part of the answer that holds text."""
    place = urlsplit(url)
    body = json.dumps({"model": "tiny/llama-3.1-8b", "prompt": "word " * 32, "max_tokens": TOKENS, "stream": True})
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: {place.netloc}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    times = [time.perf_counter()]
    with socket.create_connection((place.hostname or "", place.port or 80), timeout=60) as connection:
        connection.sendall((head + body).encode())
        while part := connection.recv(65_536):
            now = time.perf_counter()
            times += [now] * part.count(b'"text": "a "')
    return times


if __name__ == "__main__":
    main()
