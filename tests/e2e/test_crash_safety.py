"""What was acknowledged survives kill -9, nothing half-written is ever seen, and readers live through swaps."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from processes import THOROUGH

from accel_platform.events import EventLog
from accel_platform.settings import Settings
from accel_platform.warehouse import publish
from accel_platform.warehouse.layers import require_current
from accel_platform.warehouse.reader import Reader
from factories import event, result, verification

_WRITERS = """
import os, sys
sys.path.insert(0, {tests!r})
import pyarrow.compute, pyarrow.fs, pyarrow.parquet
from accel_platform.events import EventLog
from accel_platform.settings import Settings
from factories import event, result
for _ in range({kills}):  # forked, because starting Python takes longer than all that is tested
    child = os.fork()
    if child == 0:
        log = EventLog.open(Settings(home={home!r}))
        log.append([event(result())], key="warm")
        print("ready", os.getpid(), flush=True)
        while True:
            batch = [event(result(samples_ns=tuple(range(1, 400)))) for _ in range(20)]
            log.append(batch)
            print(*(e.event_id for e in batch), flush=True)
    os.waitpid(child, 0)
    print("|", flush=True)
"""
_SAME_RUN = """
import sys, uuid
sys.path.insert(0, {tests!r})
from accel_platform.events import EventLog
from accel_platform.settings import Settings
from factories import event, result
log = EventLog.open(Settings(home={home!r}))
events = [event(result()) for _ in range(3)]
sys.stdin.readline()
print(sum(log.append(events, key=f"run-{{n}}").new for n in range(100)))
"""


def _script(template: str, home: Path, **more: int) -> list[str]:
    tests = str(Path(__file__).parents[1])
    return [sys.executable, "-c", template.format(tests=tests, home=str(home), **more)]


@pytest.mark.slow
def test_kill_9_at_random_moments_loses_no_acknowledged_event(settings: Settings) -> None:
    random.seed(20)
    kills = 50
    acknowledged: set[str] = set()
    with subprocess.Popen(_script(_WRITERS, settings.home, kills=kills), stdout=subprocess.PIPE, text=True) as writers:
        assert writers.stdout is not None
        for _ in range(kills):
            ready, writer = writers.stdout.readline().split()
            assert ready == "ready"
            time.sleep(random.uniform(0, 0.15))
            os.kill(int(writer), signal.SIGKILL)
            # An unfinished last line was never an acknowledgement: its writer's end is told on the same line.
            while not (line := writers.stdout.readline()).endswith("|\n"):
                acknowledged |= set(line.split())
    assert writers.returncode == 0
    log = EventLog.open(settings)
    stored = {str(e.event_id) for e in log.read()}
    assert len(acknowledged) > kills
    assert acknowledged <= stored
    assert len(stored) % 20 == 1  # all or none of each append
    segments = settings.home / "log" / "segments"
    assert all(path.suffix == ".parquet" for path in segments.iterdir())


def test_two_processes_appending_the_same_runs_leave_each_once(settings: Settings) -> None:
    writers = [
        subprocess.Popen(_script(_SAME_RUN, settings.home), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    written = [int(writer.communicate(timeout=180)[0]) for writer in writers]
    assert sum(written) == 100
    assert sum(1 for _ in EventLog.open(settings).read()) == 300


@pytest.mark.slow
def test_four_threads_read_whole_snapshots_through_many_swaps(settings: Settings, log: EventLog) -> None:
    """Each append adds one result and one verification; a reader that saw half of one would count them unequal."""
    log.append([event(result()), event(verification())])
    publish.refresh(settings)
    reader = Reader(settings)
    stop = threading.Event()
    problems: list[str] = []
    seen: list[set[int]] = [set() for _ in range(4)]
    swaps = 30 if THOROUGH else 12

    def query(mine: set[int]) -> None:
        last = 0
        while not stop.is_set():
            [row] = reader.rows(
                "SELECT (SELECT count(*) FROM results) AS results, (SELECT count(*) FROM verifications) AS verified, "
                "(SELECT sum(results_ok) FROM compat_matrix) AS matrix"
            )
            if not row["results"] == row["verified"] == row["matrix"] or row["results"] < last:
                problems.append(f"{row} after {last}")
            last = row["results"]
            mine.add(last)

    threads = [threading.Thread(target=query, args=(mine,)) for mine in seen]
    for thread in threads:
        thread.start()
    try:
        for _ in range(swaps):
            log.append([event(result()), event(verification())])
            staged = publish.stage(settings)
            publish.publish(settings, staged)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert problems == []
    assert all(len(mine) > 3 for mine in seen)
    assert reader.rows("SELECT count(*) AS n FROM results") == [{"n": swaps + 1}]
    layers = {layer.file for layer in require_current(settings).layers}
    assert len(layers) <= 4


def test_kill_9_of_a_builder_leaves_the_tables_in_service(settings: Settings, log: EventLog) -> None:
    log.append([event(result()) for _ in range(50)])
    publish.refresh(settings)
    serving = require_current(settings)
    log.append([event(result()) for _ in range(50)])
    code = (
        "import os, signal\n"
        "from accel_platform.settings import Settings\n"
        "from accel_platform.warehouse import build_layer, publish\n"
        "fill = build_layer.fill_layer\n"
        "def killed(*arguments):\n"
        "    fill(*arguments)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "build_layer.fill_layer = killed\n"
        f"publish.stage(Settings(home={str(settings.home)!r}))\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGKILL
    assert require_current(settings) == serving
    assert publish.refresh(settings).rows["results"] == 100
    assert not list(settings.warehouse_dir.glob(".layer-*"))
