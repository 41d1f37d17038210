"""Half-open connections: how fast `/health` answers beside them, how long they stay, and what they cost in memory.

The service runs with the 1,024 descriptors that a login shell gives. 2,000 connections each send the beginning of a
request and no more. It runs once under its own server, whose limits end such connections, and once under uvicorn's.
Processor time under both, in turns, tells what the limits cost every other request.
"""

from __future__ import annotations

import argparse
import resource
import select
import socket
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from accel_platform.settings import Settings
from figures import Figure, tell
from service import Served, make_home, repeated, serving
from service_load import load

HALF_OPEN = 2_000
DESCRIPTORS = 1_024
PROBES = 200
PROBE_S = 20.0
MOST_S = 90.0
"""Longest time for which connections are watched, in seconds."""
HEALTH = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
BEGUN = b"GET /health HTTP/1.1\r\nHost: 127."


def _health_s(port: int) -> float | None:
    """Return the seconds from connecting to the end of the response; None where none is complete within 5 s."""
    started = time.perf_counter()
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as client:
            client.sendall(HEALTH)
            response = b"".join(iter(lambda: client.recv(1 << 16), b""))
    except OSError:
        return None
    return time.perf_counter() - started if response.startswith(b"HTTP/1.1 200 ") else None


def _probe(port: int) -> list[float | None]:
    answers: list[float | None] = []
    until = time.monotonic() + PROBE_S
    while len(answers) < PROBES and time.monotonic() < until:
        answers.append(_health_s(port))
        time.sleep(0.01)
    return answers


def _told(answers: list[float | None]) -> str:
    answered = [seconds for seconds in answers if seconds is not None]
    if not answered:
        return f"0 of {len(answers)}"
    median, tail = (float(np.percentile(answered, percent)) * 1e3 for percent in (50, 99))
    return f"{len(answered)} of {len(answers)}, median {median:.1f} ms, p99 {tail:.1f} ms"


def half_open(settings: Settings, which: str) -> list[Figure]:
    """Measure what 2,000 half-open connections do to a service with 1,024 descriptors."""
    limited = ["sh", "-c", f'ulimit -n {DESCRIPTORS}; exec "$@"', "sh", *_command(which, settings)]
    with serving(limited) as service, ExitStack() as opened:
        alone, memory, descriptors = _probe(service.port), service.process.memory_info().rss, service.process.num_fds()
        poll = opened.enter_context(select.epoll())
        last_opened = time.monotonic()
        waiting = refused = 0
        for _ in range(HALF_OPEN):
            try:
                client = opened.enter_context(socket.create_connection(("127.0.0.1", service.port), timeout=5))
                client.sendall(BEGUN)
            except OSError:
                refused += 1
                continue
            poll.register(client, select.EPOLLRDHUP | select.EPOLLONESHOT)
            last_opened, waiting = time.monotonic(), waiting + 1
        held = service.process.num_fds() - descriptors
        beside = _probe(service.port)
        more = service.process.memory_info().rss - memory
        while waiting and time.monotonic() < last_opened + MOST_S:
            waiting -= len(poll.poll(0.1))
        stayed = time.monotonic() - last_opened
    ours = which == "limited"
    server = "with limits" if ours else "uvicorn's server"
    return [
        {"what": f"/health answered beside {HALF_OPEN:,} half-open connections, {server}",
         "reach": "all" if ours else "none",
         "got": _told(beside),
         "detail": f"{DESCRIPTORS:,} descriptors, {held:,} of them held by half-open connections, {refused:,} "
                   f"could not connect; without them {_told(alone)}"},
        {"what": f"the last half-open connection ends, {server}", "reach": "<= 12 s" if ours else "none",
         "got": f"after {stayed:.1f} s" if not waiting else f"not within {MOST_S:.0f} s",
         "detail": f"{waiting:,} left"},
        {"what": f"memory for half-open connections, {server}", "reach": "<= 50 MB" if ours else "none",
         "got": f"{more / 1e6:.1f} MB", "detail": f"the service itself {memory / 1e6:.0f} MB"},
    ]  # fmt: skip


def _command(which: str, settings: Settings) -> list[str]:
    return [sys.executable, __file__, "--server", which, "--home", str(settings.home)]


def _serve(which: str, settings: Settings) -> None:
    """Serve on a free port, under the platform's own server (`limited`) or uvicorn's (`plain`)."""
    import uvicorn

    from predictor.service.app import create_app
    from predictor.service.server import listen, run

    app = create_app(settings, host="127.0.0.1")
    with listen("127.0.0.1", 0) as listening:
        print(f"http://127.0.0.1:{listening.getsockname()[1]}", file=sys.stderr, flush=True)
        if which == "plain":
            config = uvicorn.Config(app, log_config=None, log_level="warning", access_log=False, server_header=False)
            uvicorn.Server(config).run(sockets=[listening])
        else:
            run(app, listening)


def cost(settings: Settings, *, rounds: int, seconds: float) -> list[Figure]:
    """Compare the processor time of a request with and without limits, on a kept and on a new connection."""
    spells: dict[tuple[str, str], list[float]] = {}
    with (
        serving(_command("plain", settings)) as plain,
        serving(_command("limited", settings)) as limited,
    ):
        services = {"plain": plain, "limited": limited}
        for service in services.values():
            load(service.port, repeated(), connections=8, seconds=seconds)
        for turn in range(rounds):
            for name in sorted(services, reverse=bool(turn % 2)):
                spells.setdefault((name, "kept"), []).append(_asking_us(services[name], seconds))
            for name in sorted(services, reverse=bool(turn % 2)):
                spells.setdefault((name, "own"), []).append(_connecting_us(services[name], seconds))
    return [
        _ratio("/recommend, one body again and again", spells["limited", "kept"], spells["plain", "kept"]),
        _ratio("/health, a connection for each request", spells["limited", "own"], spells["plain", "own"]),
    ]


def _asking_us(service: Served, seconds: float) -> float:
    before = service.cpu_s()
    spell = load(service.port, repeated(), connections=8, seconds=seconds)
    assert not spell.failures, spell.failures[0]
    return (service.cpu_s() - before) * 1e6 / len(spell.latencies_s)


def _connecting_us(service: Served, seconds: float) -> float:
    before, until, answered = service.cpu_s(), time.perf_counter() + seconds, 0
    while time.perf_counter() < until:
        assert _health_s(service.port) is not None
        answered += 1
    return (service.cpu_s() - before) * 1e6 / answered


def _ratio(what: str, limited: list[float], plain: list[float]) -> Figure:
    ratios = [ours / its for ours, its in zip(limited, plain, strict=True)]
    return {
        "what": f"processor time with limits against without, {what}", "reach": "<= 1.03",
        "got": round(statistics.median(ratios), 3),
        "detail": f"{statistics.median(limited):.0f} us against {statistics.median(plain):.0f} us; "
                  f"{len(ratios)} rounds, {min(ratios):.2f} to {max(ratios):.2f}",
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=1.5, help="of one spell of load")
    parser.add_argument("--home", type=Path, help="a home that is there already (default: a temporary one)")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--server", choices=("plain", "limited"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.server:
        _serve(arguments.server, Settings(home=arguments.home))
        return
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with tempfile.TemporaryDirectory(prefix="accel-bench-") as directory:
        settings = Settings(home=arguments.home) if arguments.home else make_home(Path(directory))
        figures = half_open(settings, "limited") + half_open(settings, "plain")
        figures += cost(settings, rounds=arguments.rounds, seconds=arguments.seconds)
    tell(figures, for_machines=arguments.json)


if __name__ == "__main__":
    main()
