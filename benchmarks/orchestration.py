"""Time until the run of a requested benchmark has started, on one machine under `dagster dev`. Aim: 5 s at most.

    python benchmarks/orchestration.py [REQUESTS]

The clock starts with the request's event and stops with Dagster's RUN_START. The rest of the run is not timed: after
the first, cells are in the log already.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import dagster as dg

from accel_platform.bench.requests.lifecycle import Requests, request_benchmark
from accel_platform.events import EventLog
from accel_platform.settings import Settings
from assets.executors.routing import REQUEST_TAG
from assets.resources import DATA_DIR
from assets.run_in_process import dagster_home

ASKED = {"models": ["bert-tiny"], "hardware_types": ["cpu"], "batch_sizes": [1], "effort": "quick", "missing": True}
GOAL_S = 5.0
PATIENCE_S = 180


def main(count: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(home=Path(folder))
        environment = {**os.environ, "ACCEL_HOME": folder, "DAGSTER_HOME": str(dagster_home(settings))}
        with (Path(folder) / "dagster.log").open("w") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "dagster", "dev", "-w", "workspace.yaml", "-p", str(_free_port())],
                cwd=DATA_DIR,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            waits_s = _measure(settings, count)
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(90)
    first, *later = waits_s
    print(f"first request after the start of dagster dev, its start included: {first:.1f} s")
    print(f"then, {len(later)} requests: median {statistics.median(later):.2f} s, longest {max(later):.2f} s")
    print(f"goal: {GOAL_S:g} s; {sum(wait <= GOAL_S for wait in later)} of {len(later)} within it")


def _measure(settings: Settings, count: int) -> list[float]:
    log, waits_s = EventLog.open(settings), []
    with dg.DagsterInstance.from_config(str(dagster_home(settings))) as instance:
        for number in range(count + 1):
            asked_at = time.time()
            [request_id] = request_benchmark(ASKED, log)
            started_at = _started(instance, log, str(request_id))
            waits_s.append(started_at - asked_at)
            print(f"request {number}: {waits_s[-1]:.2f} s", flush=True)
            time.sleep(random.uniform(1, 6))  # noqa: S311  # another moment between two looks of Dagster's daemons
    return waits_s


def _started(instance: dg.DagsterInstance, log: EventLog, request_id: str) -> float:
    """Wait until a request has ended; return when its run started."""
    deadline, requests = time.monotonic() + PATIENCE_S, Requests(log)
    while time.monotonic() < deadline:
        requests.refresh()
        if not requests.unfinished():
            [record] = instance.get_run_records(dg.RunsFilter(tags={REQUEST_TAG: request_id}))
            if record.start_time is not None and record.end_time is not None:
                return record.start_time
        time.sleep(0.2)
    raise TimeoutError(f"the request {request_id} did not end within {PATIENCE_S} s")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 12)
