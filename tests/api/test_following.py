"""What is written through the service comes into the tables by itself, and whoever listens is told."""

from __future__ import annotations

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
        answer = client.post("/results", json=CLAIM)
        told = _heard(client, "event: snapshot")
        deadline = time.monotonic() + 60
        while (found := client.get(answer.headers["location"])).status_code == 202:
            assert time.monotonic() < deadline, "the tables did not follow"
            time.sleep(0.1)
        assert found.json()["result"]["provenance"] == "imported"
        last = next(line.partition(": ")[2] for line in told.splitlines() if line.startswith("id: "))
        _heard(client, '"new_results":1', **{"Last-Event-ID": last})
    assert Reader(settings).rows("SELECT count(*) AS n FROM results WHERE source = 'api'") == [{"n": 1}]


def _heard(client: TestClient, what: str, **headers: str) -> str:
    """What is told, once it is: a machine that has much to do may take longer than anybody listens."""
    deadline = time.monotonic() + 60
    while what not in (told := client.get("/progress", params={"for_s": 1}, headers=headers).text):
        assert time.monotonic() < deadline, f"never told of {what}: {told}"
    return told
