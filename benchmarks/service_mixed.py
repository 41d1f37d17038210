"""Failed requests and lost writes of 32 connections that read and write while the warehouse is rebuilt.

`accel serve` over 100,000 synthetic results. Every fourth request writes (results, a benchmark, with an
Idempotency-Key), and every tenth write is sent twice. Another process rebuilds the warehouse over and over. Afterwards
each write that was acknowledged must be in the log and in the tables, once.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import subprocess
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID, uuid4

import httpx
import numpy as np

from accel_platform.events import EventLog
from accel_platform.settings import Settings
from accel_platform.warehouse.publish import refresh
from accel_platform.warehouse.reader import Reader
from figures import tell
from service import accel, accel_command, serving
from synthetic import write_log

READS = (
    "/results?limit=100", "/results?hardware=cpu&model=model-7", "/models?limit=50", "/models/model-9", "/hardware",
    "/matrix?model=model-3", "/runs?limit=20", "/events?limit=20", "/requests", "/snapshots", "/health",
    "/performance/comparison/model-5", "/trend?model=model-11&hardware=cpu&limit=5",
)  # fmt: skip


@dataclass
class Seen:
    """Times, acknowledged events and failures that the clients saw."""

    read_s: list[float] = field(default_factory=list)
    written_s: list[float] = field(default_factory=list)
    acknowledged: Counter[str] = field(default_factory=Counter)
    """Number of times that each event was acknowledged, by event id."""
    failures: Counter[str] = field(default_factory=Counter)


def claims(drawn: random.Random) -> list[dict[str, object]]:
    return [
        {
            "model_id": f"model-{drawn.randrange(200)}", "model_family": "synthetic", "hardware": "cuda",
            "backend": "pytorch", "batch_size": drawn.randint(1, 64), "latency_mean_ms": round(drawn.uniform(1, 90), 3),
            "source_path": "benchmarks/service_mixed.py",
        }
        for _ in range(drawn.randint(1, 4))
    ]  # fmt: skip


async def client(url: str, until: float, seen: Seen, seed: int) -> None:
    """Send requests over one connection, each after the answer to the one before."""
    drawn = random.Random(seed)  # noqa: S311
    async with httpx.AsyncClient(base_url=url, timeout=60) as http:
        while time.monotonic() < until:
            if drawn.random() < 0.25:
                await write(http, seen, drawn)
            else:
                path = drawn.choice(READS)
                started = time.perf_counter()
                if await answered(http.build_request("GET", path), http, seen, (200,)):
                    seen.read_s.append(time.perf_counter() - started)


async def write(http: httpx.AsyncClient, seen: Seen, drawn: random.Random) -> None:
    headers = {"Idempotency-Key": str(uuid4())}
    if drawn.random() < 0.05:
        path, body = "/benchmarks", {"models": ["bert-base"], "hardware_types": ["cpu"]}
    else:
        path, body = "/results", claims(drawn)  # type: ignore[assignment]
    for _ in range(2 if drawn.random() < 0.1 else 1):
        started = time.perf_counter()
        request = http.build_request("POST", path, json=body, headers=headers)
        if answer := await answered(request, http, seen, (202,)):
            seen.written_s.append(time.perf_counter() - started)
            told = answer.json()
            seen.acknowledged.update(told.get("event_ids") or [one["request_id"] for one in told["requests"]])


async def answered(
    request: httpx.Request, http: httpx.AsyncClient, seen: Seen, wanted: tuple[int, ...]
) -> httpx.Response | None:
    try:
        response = await http.send(request)
    except httpx.HTTPError as error:
        seen.failures[f"{request.method} {request.url.path}: {type(error).__name__}"] += 1
        return None
    if response.status_code not in wanted:
        seen.failures[f"{request.method} {request.url.path}: {response.status_code} {response.text[:200]}"] += 1
        return None
    return response


async def load(url: str, connections: int, seconds: float) -> Seen:
    seen, until = Seen(), time.monotonic() + seconds
    await asyncio.gather(*(client(url, until, seen, seed) for seed in range(connections)))
    return seen


def rebuild(settings: Settings, stop: threading.Event, seconds: list[float]) -> None:
    """Rebuild the warehouse from the whole log, over and over, and note how long each took."""
    while not stop.is_set():
        started = time.perf_counter()
        command = accel_command("db", "rebuild", "--home", str(settings.home))
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(done.stderr)
        seconds.append(time.perf_counter() - started)


def stored_once(settings: Settings, seen: Seen) -> tuple[int, int, int]:
    """Return how many of the acknowledged events the log lacks, the tables lack, and the log holds more than once."""
    wanted = {UUID(event_id) for event_id in seen.acknowledged}
    log = EventLog.open(settings)
    types = {"ResultRecorded", "BenchmarkRequested"}
    new = Counter(event.event_id for event in log.read(types=types) if event.event_id in wanted)
    refresh(settings)
    rows = Reader(settings).rows(
        "SELECT event_id FROM events WHERE event_id IN (SELECT unnest($ids))", {"ids": [*wanted]}
    )
    return len(wanted - new.keys()), len(wanted - {row["event_id"] for row in rows}), sum(n - 1 for n in new.values())


def measure(home: Path, *, results: int, connections: int, seconds: float) -> list[dict[str, object]]:
    settings = Settings(home=home)
    write_log(home, results)
    refresh(settings)
    stop, rebuilt = threading.Event(), list[float]()
    with serving(accel(settings)) as served:
        rebuilding = threading.Thread(target=rebuild, args=(settings, stop, rebuilt))
        rebuilding.start()
        seen = asyncio.run(load(f"http://127.0.0.1:{served.port}", connections, seconds))
        stop.set()
        rebuilding.join()
    missing_log, missing_tables, doubled = stored_once(settings, seen)
    asked = len(seen.read_s) + len(seen.written_s)
    reads, writes = ([np.percentile(spent, p) * 1e3 for p in (50, 99)] for spent in (seen.read_s, seen.written_s))
    how = f"{asked} requests in {seconds:g} s at {connections} connections, {len(rebuilt)} rebuilds meanwhile"
    failures = "; ".join(f"{count} x {what}" for what, count in seen.failures.most_common(5))
    lost = f"{missing_log} not in the log, {missing_tables} not in the tables, {doubled} there twice"
    return [
        {"what": "failed requests", "got": seen.failures.total(), "reach": "0", "detail": failures or how},
        {"what": "lost writes", "got": max(missing_log, missing_tables), "reach": "0",
         "detail": f"of {len(seen.acknowledged)} events acknowledged: {lost}"},
        {"what": "reads", "got": f"{len(seen.read_s)}", "reach": "",
         "detail": f"p50 {reads[0]:.0f} ms, p99 {reads[1]:.0f} ms"},
        {"what": "writes", "got": f"{len(seen.written_s)}", "reach": "",
         "detail": f"p50 {writes[0]:.0f} ms, p99 {writes[1]:.0f} ms"},
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=int, default=100_000)
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="accel-bench-") as directory:
        figures = measure(
            Path(directory) / "home",
            results=arguments.results,
            connections=arguments.connections,
            seconds=arguments.seconds,
        )
    tell(figures, for_machines=arguments.json)


if __name__ == "__main__":
    main()
