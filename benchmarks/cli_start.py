"""How long `accel --help` takes against a Python that only imports typer and prints its help, alternating."""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

_TYPER_ALONE = "import typer; app = typer.Typer(); app.command()(lambda: None); app(['--help'])"


def _seconds(command: list[str]) -> float:
    started = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    accel = [str(Path(sys.executable).with_name("accel")), "--help"]
    importing = [sys.executable, "-c", "import typer"]
    helping = [sys.executable, "-c", _TYPER_ALONE]
    times: dict[str, list[float]] = {"accel": [], "import": [], "help": []}
    for _ in range(arguments.rounds):
        for name, command in (("accel", accel), ("import", importing), ("help", helping)):
            times[name].append(_seconds(command))
    a, i, h = (statistics.median(values) * 1e3 for values in times.values())
    figure = {
        "what": "accel --help against importing typer",
        "reach": "<= 1.5",
        "got": round(a / i, 2),
        "detail": f"{a:.0f} ms against {i:.0f} ms; a typer app of one command takes {h:.0f} ms for its help",
    }
    if arguments.json:
        print(json.dumps([figure], indent=2))
    else:
        print(f"{figure['what']}: {figure['got']} (reach {figure['reach']}; {figure['detail']})")


if __name__ == "__main__":
    main()
