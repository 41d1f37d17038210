"""`accel run` as people live with it: stopped half-way, started again, killed, run twice, on a port that is taken."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import dagster as dg
import httpx
import psutil
import pytest
from processes import family, free_port, running, wait_for

from accel_platform.settings import Settings
from accel_platform.warehouse.reader import Reader
from assets.run_in_process import dagster_home

pytestmark = pytest.mark.slow

ACCEL = str(Path(sys.executable).with_name("accel"))
CELLS = 8
EIGHT = ("--models", "bert-tiny,vit-tiny", "--hardware", "cpu,onnxruntime", "--batch-sizes", "1,2")
ONE = ("--models", "bert-tiny", "--hardware", "cpu", "--batch-sizes", "1")


def _run(home: Path, *more: str) -> list[str]:
    return [ACCEL, "run", "--effort", "quick", "--home", str(home), *more]


def _measured(log: Path) -> list[str]:
    """The lines that tell of a measured cell."""
    return re.findall(r"^ .* s  (\S+ · \S+ · batch \d+.*): [\d.,]+ ms", log.read_text(), re.MULTILINE)


def _pipeline(url: str) -> Any:
    return httpx.get(f"{url}/health", timeout=180).json()["pipeline"]


def _json(command: list[str]) -> Any:
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_stopped_half_way_it_goes_on_serves_and_the_next_run_measures_nothing(tmp_path: Path) -> None:
    home, log = tmp_path / "home", tmp_path / "run.log"

    with running(_run(home, *EIGHT, "--no-serve"), log) as first:
        wait_for("the first cell", 200, lambda: _measured(log) or first.poll() is not None, log)
        started = family(first)
        first.send_signal(signal.SIGINT)
        assert first.wait(timeout=90) == 130, log.read_text()
        assert len(started) > 1
        _, alive = psutil.wait_procs(started[1:], timeout=5)
        assert alive == []
    assert "the same command continues" in log.read_text()
    kept = len(_measured(log))
    assert 1 <= kept < CELLS

    port = free_port()
    with running(_run(home, *EIGHT, "--port", str(port)), log) as second:
        wait_for("serving", 60, lambda: "Serving on" in log.read_text() or second.poll() is not None, log)
        assert "[1/4]" not in log.read_text(), "it answers before it measures"
        url = re.search(r"Serving on (\S+)", log.read_text())
        assert url
        assert f"curl -s {url[1]}/recommend" in log.read_text()
        first_answer = httpx.post(f"{url[1]}/recommend", json={"model": "bert-base", "batch_size": 1}, timeout=180)
        # GPUs of the spec sheet are faster, and predicted; the reference campaign was measured.
        assert "measured" in {r["provenance"] for r in first_answer.json()["recommendations"]}
        wait_for("progress", 120, lambda: _pipeline(url[1]) is not None, log)
        wait_for("the end", 300, lambda: "The pipeline is done" in log.read_text() or second.poll() is not None, log)
        printed = log.read_text()
        assert [int(n) for n in re.findall(r"^\[(\d)/4\]", printed, re.MULTILINE)] == [1, 2, 3, 4], printed
        # A child that had measured two cells when it was stopped is recorded as a whole or not at all.
        before, left = map(int, re.findall(rf"(\d+) of {CELLS} cells are in the log, (\d+) to measure", printed)[0])
        assert before >= 1, printed
        assert left == CELLS - before == len(_measured(log)), printed
        assert _pipeline(url[1]) is None
        answer = httpx.post(f"{url[1]}/recommend", json={"model": "vit-tiny", "batch_size": 2}, timeout=180)
        # The sample files tell of other machines with the same hardware names; this host's own figures are measured.
        ranked = answer.json()["recommendations"]
        assert {r["hardware"] for r in ranked if r["provenance"] == "measured"} >= {"cpu", "onnxruntime"}
        second.send_signal(signal.SIGINT)
        assert second.wait(timeout=90) == 0, log.read_text()

    # The reference campaigns have these models on a GPU alone.
    own = (
        "status = 'ok' AND provenance = 'measured' AND model_id IN ('bert-tiny', 'vit-tiny') "
        "AND hardware IN ('cpu', 'onnxruntime')"
    )
    count = f"SELECT count(*) AS n FROM results WHERE {own}"
    assert Reader(Settings(home=home)).rows(count) == [{"n": CELLS}]
    third = _json(_run(home, *EIGHT, "--no-serve"))
    measurements = third["assets"]["measurements"]
    assert (measurements["in_the_log_before"], measurements["measured"]) == (CELLS, 0)
    assert third["assets"]["predictor"]["trained_now"] is False
    assert Reader(Settings(home=home)).rows(count) == [{"n": CELLS}]


def test_stopped_while_it_measures_beside_the_service_it_leaves_no_process(tmp_path: Path) -> None:
    home, log = tmp_path / "home", tmp_path / "run.log"
    with running(_run(home, *ONE, "--port", str(free_port())), log) as first:
        wait_for("measuring", 120, lambda: "[2/4]" in log.read_text() or first.poll() is not None, log)
        started = family(first)
        first.send_signal(signal.SIGTERM)
        assert first.wait(timeout=180) == 0, log.read_text()
        _, alive = psutil.wait_procs(started[1:], timeout=5)
        assert alive == []


def test_only_one_works_on_a_home_and_one_that_was_killed_is_marked_and_does_not_block(tmp_path: Path) -> None:
    home, log = tmp_path / "home", tmp_path / "run.log"
    with running(_run(home, *ONE, "--no-serve"), log) as first:
        wait_for("measuring", 180, lambda: "[2/4]" in log.read_text() or first.poll() is not None, log)
        first.send_signal(signal.SIGSTOP)  # or it would be done before the other looked, on a busy machine
        other = subprocess.run(_run(home, *ONE, "--no-serve"), capture_output=True, text=True, check=False, timeout=180)
        assert other.returncode == 1
        assert f"Another `accel run` (process {first.pid})" in other.stderr
        first.kill()
        first.wait()
    done = _json(_run(home, *ONE, "--no-serve"))
    assert done["assets"]["measurements"]["measured"] == 1
    with dg.DagsterInstance.from_config(str(dagster_home(Settings(home=home)))) as instance:
        newest, killed = instance.get_runs()
    assert (newest.status, killed.status) == (dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE)


def test_a_taken_port_or_an_unknown_name_ends_it_before_anything_is_done(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = subprocess.run(
            _run(home, *ONE, "--port", str(port)), capture_output=True, text=True, check=False, timeout=180
        )
    assert refused.returncode == 1
    assert f"Port {port}" in refused.stderr
    assert "--port" in refused.stderr
    for wrong, code, hint in (("--models", 1, "bert-tny"), ("--hardware", 2, "bert-tny"), ("--effort", 2, "bert-tny")):
        command = [ACCEL, "run", wrong, "bert-tny", "--home", str(home), "--no-serve"]
        refused = subprocess.run(command, capture_output=True, text=True, check=False, timeout=180)
        assert refused.returncode == code, refused.stderr
        assert hint in refused.stderr
        assert "Traceback" not in refused.stderr
    assert not home.exists()
