"""Time from 1,000 new events on 1,000,000 to tables, audit and matrix in service, by three kinds of process."""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from accel_platform.events import EventLog
from accel_platform.settings import Settings
from accel_platform.warehouse import publish
from figures import Figure, tell
from synthetic import result_events, with_verifications, write_log

_REACH_S = 10.0

_FRESH = """
from accel_platform.settings import Settings
from accel_platform.warehouse.publish import refresh
refresh(Settings())
"""
# As a run of the automation sensor does it: the code is loaded, then the assets are made with their checks.
_DAGSTER = """
import dagster as dg
from assets.definitions import build_defs
from assets.run_in_process import dagster_home
from accel_platform.settings import Settings
keys = [dg.AssetKey(name) for name in ("raw_events", "results", "compat_matrix")]
with dg.DagsterInstance.from_config(str(dagster_home(Settings()))) as instance:
    job = build_defs().resolve_implicit_global_asset_job_def()
    assert job.execute_in_process(instance=instance, asset_selection=keys).success
"""


class Bench:
    """A warehouse of `events` verified results, to which a thousand more come for each measurement."""

    def __init__(self, home: Path, events: int) -> None:
        self.settings, self._events, self._rounds = Settings(home=home), events, 0
        write_log(home, events)
        staged = publish.stage(self.settings, full=True)
        publish.check(staged)
        publish.publish(self.settings, staged)

    def arrive(self) -> None:
        table = with_verifications(result_events(1000, first=10_000_000 + 1000 * self._rounds))
        EventLog.open(self.settings).append_table(table, key=f"new-{self._rounds}")
        self._rounds += 1

    def warm(self) -> tuple[float, float, float]:
        """Return the seconds for tables, audit and matrix in this process, Great Expectations loaded already."""
        self.arrive()
        started = time.perf_counter()
        staged = publish.stage(self.settings)
        assert staged.mode == "incremental"
        built = time.perf_counter()
        publish.check(staged)
        checked = time.perf_counter()
        publish.publish(self.settings, staged)
        return built - started, checked - built, time.perf_counter() - checked

    def fresh(self, program: str) -> tuple[float, float]:
        """Return the wall and processor seconds of a process of its own, from its start to its end."""
        self.arrive()
        environment = {**os.environ, "ACCEL_HOME": str(self.settings.home.resolve())}
        started, used = time.perf_counter(), _children_cpu_s()
        subprocess.run([sys.executable, "-c", program], env=environment, check=True, capture_output=True)
        return time.perf_counter() - started, _children_cpu_s() - used


def measure(home: Path, events: int, rounds: int) -> list[Figure]:
    """Measure the three ways in turns, so that other work on the machine slows all of them."""
    bench = Bench(home, events)
    warm, fresh, dagster = [], [], []
    for _ in range(rounds):
        warm.append(bench.warm())
        fresh.append(bench.fresh(_FRESH))
        dagster.append(bench.fresh(_DAGSTER))
    parts = [statistics.median(part) for part in zip(*warm, strict=True)]
    told = f"project {parts[0]:.2f} s, check {parts[1]:.2f} s, matrix {parts[2]:.2f} s"
    what = f"1,000 new events on {events:,} to matrix in service"
    return [
        _figure(f"{what}, warm process", [sum(one) for one in warm], told),
        _of_process(f"{what}, a process of its own", fresh, "Great Expectations loaded anew"),
        _of_process(f"{what}, a Dagster run in a process of its own", dagster, "with previews and charts"),
    ]


def _children_cpu_s() -> float:
    spent = os.times()
    return spent.children_user + spent.children_system


def _of_process(what: str, taken: list[tuple[float, float]], detail: str) -> Figure:
    cpu = statistics.median(used for _, used in taken)
    return _figure(what, [seconds for seconds, _ in taken], f"{detail}; {cpu:.2f} s of the processor")


def _figure(what: str, seconds: list[float], detail: str) -> Figure:
    spread = ", ".join(f"{one:.2f}" for one in seconds)
    return {"what": what, "reach": f"<= {_REACH_S:.0f} s", "got": f"{statistics.median(seconds):.2f} s",
            "detail": f"{detail}; rounds {spread}"}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--directory", type=Path, help="where to work (default: a temporary directory)")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.directory, prefix="accel-bench-") as directory:
        figures = measure(Path(directory), arguments.events, arguments.rounds)
    tell(figures, for_machines=arguments.json)


if __name__ == "__main__":
    main()
