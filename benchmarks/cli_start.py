"""Start-up time of `accel --help` and `accel db query` over that of their imports alone, in turns."""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from accel_platform.events import EventLog
from accel_platform.knowledge import adopt_campaigns
from accel_platform.settings import Settings
from accel_platform.warehouse.publish import refresh
from figures import Figure, tell

ACCEL = [sys.executable, "-m", "accel_platform"]


def _seconds(command: list[str]) -> float:
    started = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def _figure(what: str, reach: str, command: list[str], imports: str, rounds: int) -> Figure:
    """Return the ratio of the medians; each round runs both."""
    importing = [sys.executable, "-c", f"import {imports}"]
    pairs = [(_seconds(command), _seconds(importing)) for _ in range(rounds)]
    ours_ms, theirs_ms = (statistics.median(times) * 1e3 for times in zip(*pairs, strict=True))
    detail = f"{ours_ms:.0f} ms against {theirs_ms:.0f} ms"
    return {"what": what, "reach": reach, "got": round(ours_ms / theirs_ms, 2), "detail": detail}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="accel-bench-") as directory:
        settings = Settings(home=Path(directory), log_uri=None)
        adopt_campaigns(EventLog.open(settings))
        refresh(settings)
        query = [*ACCEL, "db", "query", "SELECT count(*) FROM results", "--home", directory]
        figures = [
            _figure("accel --help against import typer", "<= 1.4", [*ACCEL, "--help"], "typer", arguments.rounds),
            _figure("accel db query against import duckdb, typer", "<= 2", query, "duckdb, typer", arguments.rounds),
        ]
    tell(figures, for_machines=arguments.json)


if __name__ == "__main__":
    main()
