"""The proof of the GPU path, tried on a processor that is called a stand-in in all that it writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from processes import REPOSITORY

from accel_platform.events import EventLog
from accel_platform.events.types import ResultRecorded
from accel_platform.settings import Settings
from predictor.operators.kernels import load_kernels

pytestmark = pytest.mark.slow
QUICK = ("memory", "clocks", "kernels", "campaign", "predictions")
"""The stages that a busy machine does in a minute or two; the others run alike, by hand."""


def _prove(out: Path, *options: str, fails: bool = False) -> str:
    command = [sys.executable, str(REPOSITORY / "benchmarks" / "gpu_proof.py"), "--out", str(out), *options]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=2700)
    assert (done.returncode != 0) == fails, done.stdout + done.stderr
    return done.stderr if fails else done.stdout


def test_each_stage_is_done_once_and_nothing_is_recorded_as_cuda(tmp_path: Path) -> None:
    out, only = tmp_path / "out", [word for name in QUICK for word in ("--only", name)]
    report = json.loads(_prove(out, "--stand-in", "cpu", "--seconds", "800", *only, "--json"))
    assert report["stand_in"] is True
    assert report["hardware"] == "cpu"
    stages = report["stages"]
    # A campaign's models are prepared first, whatever was asked for.
    assert {name: stage["status"] for name, stage in stages.items()} == {
        "models": "pass", "memory": "pass", "clocks": "pass", "kernels": "pass", "campaign": "pass",
        "predictions": "unavailable",
    }  # fmt: skip
    assert all(stage["machine"]["stand_in"] == "cpu" for stage in stages.values())

    events = EventLog.open(Settings(home=tmp_path / "read"))
    events.adopt(out / "campaign.parquet")
    payloads = [event.payload for event in events.read(types={"ResultRecorded"})]
    assert payloads
    assert {payload.hardware for payload in payloads if isinstance(payload, ResultRecorded)} == {"cpu"}
    assert set(pq.read_table(out / "kernels.parquet")["device"].to_pylist()) == {"cpu (stand-in)"}
    assert load_kernels([out / "kernels.parquet"]) == {}, "a stand-in teaches the predictor nothing"

    again = json.loads(_prove(out, "--stand-in", "cpu", "--only", "clocks", "--json"))
    assert again["stages"]["clocks"] == stages["clocks"]
    assert "is of a stand-in" in _prove(out, "--only", "clocks", fails=True)


def test_without_a_gpu_every_stage_says_why(tmp_path: Path) -> None:
    report = json.loads(_prove(tmp_path / "out", "--only", "clocks", "--json"))
    clocks = report["stages"]["clocks"]
    assert clocks["status"] == "unavailable"
    assert "CUDA" in clocks["reason"]
