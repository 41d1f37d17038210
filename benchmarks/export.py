"""Time and peak memory of `accel db export results` in each format."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
from pathlib import Path

from accel_platform.settings import Settings
from accel_platform.warehouse.publish import refresh
from figures import tell
from synthetic import write_log

KINDS = ("parquet", "json", "csv", "html", "xlsx")


def prepare(home: Path, results: int) -> None:
    """Write a log of so many results under `home`, and build its tables."""
    write_log(home, results)
    refresh(Settings(home=home))


def exported(home: Path, kind: str, rows: int) -> dict[str, object]:
    """Export in a child process, whose peak memory the kernel tells when it ends."""
    file = home / f"results.{kind}"
    command = [sys.executable, "-m", "accel_platform", "db", "export", "results"]
    command += ["--output", str(file), "--home", str(home)]
    started = time.perf_counter()
    child = os.posix_spawn(sys.executable, command, os.environ)
    _, status, used = os.wait4(child, 0)
    seconds = time.perf_counter() - started
    if status != 0:
        raise SystemExit(f"The export as {kind} failed.")
    size_mb = file.stat().st_size / 1e6
    file.unlink()
    return {
        "what": f"export of {rows:,} results as {kind}",
        "got": f"{seconds:.1f} s",
        "reach": "none set",
        "detail": f"{used.ru_maxrss / 1024:.0f} MiB at most, {size_mb:.0f} MB written",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=int, default=1_000_000)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        # In a process of its own: a child's peak begins with what its parent holds.
        preparing = multiprocessing.get_context("spawn").Process(target=prepare, args=(home, arguments.results))
        preparing.start()
        preparing.join()
        tell([exported(home, kind, arguments.results) for kind in KINDS], for_machines=arguments.json)


if __name__ == "__main__":
    main()
