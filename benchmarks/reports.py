"""The figure of reports: `accel report comprehensive` over many results, as a person would start it."""

from __future__ import annotations

import argparse
import os
import resource
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
    """Wall seconds of the command, the best of a few, its peak memory and the size of what it writes."""
    output = home / "report.html"
    command = [sys.executable, "-c", "from accel_platform.cli import main; main()", "report", "comprehensive"]
    seconds = []
    for _ in range(rounds):
        started = time.perf_counter()
        subprocess.run([*command, "--home", str(home), "--output", str(output)], check=True, stderr=subprocess.DEVNULL)
        seconds.append(time.perf_counter() - started)
    peak_mib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    times = ", ".join(f"{second:.1f}" for second in seconds)
    return {
        "what": f"`accel report comprehensive --format html` over {events:,} results",
        "reach": "<= 15 s",
        "got": f"{sorted(seconds)[len(seconds) // 2]:.1f} s",
        "detail": f"{times} s; {output.stat().st_size / 2**20:.1f} MiB written, {peak_mib:,.0f} MiB at most",
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
