"""What is written through the service comes into the tables by itself, and whoever listens is told."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from accel_platform.warehouse.reader import Reader
from predictor.service.app import create_app
from predictor_world import MODELS, measured_grid, world

CLAIM = {"model_id": "bert-base", "model_family": "bert", "hardware": "cuda", "backend": "tensorrt", "batch_size": 8,
         "latency_mean_ms": 6.2, "source_path": "paper"}  # fmt: skip


@pytest.mark.slow
def test_the_tables_follow_what_is_written_and_listeners_are_told(tmp_path: Path) -> None:
    settings = world(tmp_path, measured_grid(MODELS[:1]))
    with TestClient(create_app(settings)) as client:
        # Heard before anything is written: a machine that has much to do may be done before anybody listens again.
        told = _heard(client, "event: snapshot")
        last = next(line.partition(": ")[2] for line in told.splitlines() if line.startswith("id: "))
        answer = client.post("/results", json=CLAIM)
        deadline = time.monotonic() + 60
        while (found := client.get(answer.headers["location"])).status_code == 202:
            assert time.monotonic() < deadline, "the tables did not follow"
            time.sleep(0.1)
        assert found.json()["result"]["provenance"] == "imported"
        _heard(client, '"new_results":1', **{"Last-Event-ID": last})
    assert Reader(settings).rows("SELECT count(*) AS n FROM results WHERE source = 'api'") == [{"n": 1}]


def _heard(client: TestClient, what: str, **headers: str) -> str:
    """What is told, once it is: a machine that has much to do may take longer than anybody listens."""
    deadline = time.monotonic() + 60
    while what not in (told := client.get("/progress", params={"for_s": 1}, headers=headers).text):
        assert time.monotonic() < deadline, f"never told of {what}: {told}"
    return told


_TWO_SIGNALS = """
import signal, threading
from predictor.service.background.change_feed import set_on_shutdown

class Interrupted(threading.Event):
    def set(self):
        with self._cond:
            signal.raise_signal(signal.SIGTERM)  # as when `make` passes on what its group got, too
            self._flag = True

received = []
signal.signal(signal.SIGTERM, lambda *_: received.append("SIGTERM"))
event = Interrupted()
set_on_shutdown(event)
signal.raise_signal(signal.SIGTERM)
print(event.is_set(), *received)
"""


def test_two_signals_at_once_stop_it() -> None:
    done = subprocess.run([sys.executable, "-c", _TWO_SIGNALS], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout == "True SIGTERM SIGTERM\n"
