"""Time of a projection by Spark (a Sail server of its own, or `--spark`) over the same by DuckDB."""

from __future__ import annotations

import argparse
import contextlib
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from accel_platform.settings import Settings
from accel_platform.warehouse import publish
from figures import tell
from synthetic import write_log

_REACH = 4.0


@contextlib.contextmanager
def sail() -> Iterator[tuple[str, psutil.Process]]:
    """Start a Sail server on a free port; yield its address and its process."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "pysail", "spark", "server", "--ip", "127.0.0.1", "--port", str(port)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        while True:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            time.sleep(0.1)
        yield f"sc://127.0.0.1:{port}", psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait()


def projected(settings: Settings, server: psutil.Process | None) -> tuple[float, float]:
    """Return the wall and processor seconds of one whole projection, audited and in service."""
    processes = [psutil.Process(), *([server] if server else [])]
    before = sum(sum(process.cpu_times()[:2]) for process in processes)
    started = time.perf_counter()
    publish.refresh(settings, full=True)
    seconds = time.perf_counter() - started
    return seconds, sum(sum(process.cpu_times()[:2]) for process in processes) - before


def compared(events: int, rounds: int, url: str, server: psutil.Process | None) -> dict[str, object]:
    """Compare the medians of alternating rounds."""
    with tempfile.TemporaryDirectory() as folder:
        write_log(Path(folder), events)
        duckdb = Settings(home=Path(folder))
        spark = duckdb.model_copy(update={"engine": "spark", "spark": url})
        ours, theirs = [], []
        for _ in range(rounds):
            ours.append(projected(duckdb, server))
            theirs.append(projected(spark, server))
    (our_s, our_cpu), (their_s, their_cpu) = (
        [statistics.median(figures) for figures in zip(*times, strict=True)] for times in (ours, theirs)
    )
    return {
        "what": f"projection of {events:,} events by Spark against DuckDB",
        "got": round(their_s / our_s, 2),
        "reach": f"<= {_REACH:g}" if events >= 1_000_000 else "none set",
        "detail": f"{their_s:.1f} s against {our_s:.1f} s; of processors {their_cpu:.1f} s against {our_cpu:.1f} s "
        f"({their_cpu / our_cpu:.2f} times)",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--spark", help="an engine that runs already; its processors are not counted")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with contextlib.ExitStack() as stack:
        url, server = (arguments.spark, None) if arguments.spark else stack.enter_context(sail())
        figures = [compared(events, arguments.rounds, url, server) for events in arguments.events]
    tell(figures, for_machines=arguments.json)


if __name__ == "__main__":
    main()
