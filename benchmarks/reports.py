"""Time, memory and size of `accel report comprehensive` over many results."""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from accel_platform.settings import Settings
from accel_platform.warehouse.publish import refresh
from figures import tell
from synthetic import write_log


def comprehensive(home: Path, events: int, rounds: int) -> dict[str, object]:
    """Measure wall and processor seconds of the command, its peak memory and the size of its output."""
    output = home / "report.html"
    command = [sys.executable, "-m", "accel_platform", "report", "comprehensive"]
    wall, processor = [], []
    for _ in range(rounds):
        started, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([*command, "--home", str(home), "--output", str(output)], check=True, stderr=subprocess.DEVNULL)
        wall.append(time.perf_counter() - started)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        processor.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    times, used = (", ".join(f"{second:.1f}" for second in seconds) for seconds in (wall, processor))
    return {
        "what": f"`accel report comprehensive --format html` over {events:,} results",
        "reach": "<= 15 s",
        "got": f"{statistics.median(wall):.1f} s",
        "detail": f"{times} s; of processor {used} s; {output.stat().st_size / 2**20:.1f} MiB written, "
        f"{after.ru_maxrss / 1024:,.0f} MiB of memory",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--directory", type=Path, help="where to work (default: a temporary directory)")
    parser.add_argument("--home", type=Path, help="an installation that has such results already")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    os.environ.pop("ACCEL_LOG_URI", None)
    with tempfile.TemporaryDirectory(dir=arguments.directory, prefix="accel-bench-") as directory:
        home = arguments.home or Path(directory)
        if arguments.home is None:
            write_log(home, arguments.events)
            refresh(Settings(home=home))
        figure = comprehensive(home, arguments.events, arguments.rounds)
    tell([figure], for_machines=arguments.json)


if __name__ == "__main__":
    main()
