"""Seconds from `accel run` to the first answer of POST /recommend: in an empty home, and again after Ctrl-C."""

from __future__ import annotations

import argparse
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx

from figures import tell

QUESTION = {"model": "bert-base-uncased", "batch_size": 4, "sequence_length": 128}


def _first_answer_s(home: Path) -> float:
    """Return the seconds to the first answer; the service and its pipeline are stopped then."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "accel_platform", "run", "--port", str(port), "--home", str(home)]
    started = time.perf_counter()
    with (home.parent / "run.log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            while True:
                try:
                    answer = httpx.post(f"http://127.0.0.1:{port}/recommend", json=QUESTION, timeout=10)
                except httpx.TransportError:
                    if process.poll() is not None:
                        raise SystemExit((home.parent / "run.log").read_text()) from None
                    time.sleep(0.05)
                    continue
                if answer.status_code == 200:
                    return time.perf_counter() - started
                time.sleep(0.05)
        finally:
            process.send_signal(signal.SIGINT)
            process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    times: dict[str, list[float]] = {"empty": [], "again": []}
    for _ in range(arguments.rounds):
        with tempfile.TemporaryDirectory(prefix="accel-bench-") as directory:
            for seconds in times.values():
                seconds.append(_first_answer_s(Path(directory) / "home"))
    places = {"empty": "empty home", "again": "second run"}
    reach = {"empty": "<= 15 s", "again": "<= 5 s"}
    figures = [
        {
            "what": f"accel run to the first answer, {places[name]}",
            "reach": reach[name],
            "got": f"{min(seconds):.1f} s",
            "detail": f"{arguments.rounds} rounds: {', '.join(f'{one:.1f}' for one in seconds)} s",
        }
        for name, seconds in times.items()
    ]
    tell(figures, for_machines=arguments.json)


if __name__ == "__main__":
    main()
