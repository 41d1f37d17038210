"""Figures of `accel bench serve` over those of a second, independent client that loads the same server.

The second client is threads that read plain sockets. One server answers after a known time and streams at a known pace;
the other is a real engine, `transformers serve` with continuous batching. Each runs in a process of its own, and both
clients take turns, so that a busy machine meets both.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import socket
import string
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from accel_platform.bench.load.generator import Shape, prepare, run_load
from accel_platform.bench.load.http import Server
from accel_platform.bench.load.report import report

TESTS = Path(__file__).parents[1] / "tests"
sys.path.insert(0, str(TESTS))
from transformers_server import real_engine  # type: ignore[import-not-found]  # noqa: E402 - beside the tests

SERVE = (
    "import sys, time; sys.path.insert(0, sys.argv[1])\n"
    "from openai_server import Served, serving\n"
    "with serving(Served(float(sys.argv[2]), float(sys.argv[3]))) as url:\n"
    "    print(url, flush=True); sys.stdin.read()\n"
)
FIRST_S, GAP_S, TOKENS = 0.1, 0.02, 32
PROMPT_TOKENS = 64
_TEXT, _COUNTED = re.compile(rb'"text": ?"(?!")'), re.compile(rb'"prompt_tokens": ?(\d+)')


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="turns of each client per number of users")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    command = [sys.executable, "-c", SERVE, str(TESTS), str(FIRST_S), str(GAP_S)]
    found: list[dict[str, Any]] = []
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        if server.stdout is None:
            raise RuntimeError("the server has no output")
        url = server.stdout.readline().strip()
        for users in (1, 8, 32):
            found += _compare("known delays", url, "tiny/llama-3.1-8b", users, arguments.rounds)
        server.terminate()
    with tempfile.TemporaryDirectory() as folder, real_engine(Path(folder)) as (url, model):
        for users in (1, 4):
            found += _compare("transformers serve", url, model, users, 3 * arguments.rounds)  # it varies by a tenth
    if arguments.json:
        sys.stdout.write(json.dumps(found) + "\n")
        return
    for row in found:
        sys.stdout.write(
            f"{row['server']:<18} {row['users']:>3} users  {row['figure']:<18} {row['ours']:8.2f} ms  second client "
            f"{row['second_client']:8.2f} ms  ratio {row['ratio']:.4f}\n"
        )


def _compare(server: str, url: str, model: str, users: int, rounds: int) -> Iterator[dict[str, Any]]:
    turns = (_ours, _sockets)
    pairs = []
    for number in range(rounds):
        first = number % 2
        took = {turn: turn(url, model, users) for turn in (turns[first], turns[1 - first])}
        pairs.append([took[turn] for turn in turns])
    for number, figure in enumerate(("first_token_ms", "between_tokens_ms")):
        ours, theirs = (float(np.median([pair[who][number] for pair in pairs])) for who in (0, 1))
        of = {"server": server, "users": users, "figure": figure}
        yield {**of, "ours": ours, "second_client": theirs, "ratio": ours / theirs}


def _ours(url: str, model: str, users: int) -> tuple[float, float]:
    """Return median milliseconds to the first token and between tokens."""

    async def run() -> tuple[float, float]:
        shape = Shape(PROMPT_TOKENS, TOKENS, 4 * users, users=users)
        async with Server(url) as server:
            target, words, _ = await prepare(server, model, shape, chat=False)
            result = await run_load(target, shape, words, on_answer=lambda _: None)
        content = report(result, target, {}, [])
        return float(content["median_ttft_ms"]), float(content["median_itl_ms"])

    return asyncio.run(run())


def _sockets(url: str, model: str, users: int) -> tuple[float, float]:
    """Return the same by threads that each hold one connection, warmed up by one request."""
    first: list[float] = []
    gaps: list[float] = []
    words = _words_of_a_prompt(url, model)

    def user() -> None:
        for number in range(5):
            arrivals = [when for when, part in _stream(url, model, words, TOKENS) for _ in _TEXT.findall(part)]
            if number:
                first.append(arrivals[0])
                gaps.extend(np.diff(arrivals))

    threads = [threading.Thread(target=user) for _ in range(users)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return float(np.median(first)) * 1e3, float(np.median(gaps)) * 1e3


def _words_of_a_prompt(url: str, model: str) -> int:
    """Return how many words have as many tokens as the prompts of `accel bench serve`."""
    answer = b"".join(part for _, part in _stream(url, model, PROMPT_TOKENS, 2))
    counted = _COUNTED.search(answer)
    return PROMPT_TOKENS if counted is None else round(PROMPT_TOKENS**2 / int(counted[1]))


def _stream(url: str, model: str, words: int, tokens: int) -> Iterator[tuple[float, bytes]]:
    """Yield the parts of an answer as they arrive, each with the seconds since its request was sent.

    The prompt is of words that no cache of prefixes has seen.
    """
    place = urlsplit(url)
    prompt = " ".join("".join(random.choices(string.ascii_lowercase, k=5)) for _ in range(words))  # noqa: S311
    payload = {"model": model, "prompt": prompt, "max_tokens": tokens, "stream": True}
    body = json.dumps({**payload, "stream_options": {"include_usage": True}})
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: {place.netloc}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    with socket.create_connection((place.hostname or "", place.port or 80), timeout=60) as connection:
        sent = time.perf_counter()
        connection.sendall((head + body).encode())
        while part := connection.recv(65_536):
            yield time.perf_counter() - sent, part


if __name__ == "__main__":
    main()
