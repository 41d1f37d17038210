"""The service as users run it: a process of its own on a free loopback port."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest
from processes import PATIENCE, asking_until_refused

from accel_platform.events import EventLog
from accel_platform.settings import Settings
from predictor.training.train import train
from predictor_world import MODELS, append, measured_grid, result, world

# Real servers are started.
pytestmark = pytest.mark.slow

ACCEL = [sys.executable, "-m", "accel_platform"]


class _Said:
    """Lines that a process writes to stderr, read as they come: a full pipe would stop one that logs every request."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stderr is not None
        self._stream, self._lines = process.stderr, list[str]()
        self.first = self._stream.readline()
        self._reader = threading.Thread(target=lambda: self._lines.extend(self._stream), daemon=True)
        self._reader.start()

    def lines(self) -> list[str]:
        """All lines after the first, once the process has ended."""
        self._reader.join(60)
        return self._lines

    def close(self) -> None:
        """Close the pipe, once the process has ended."""
        self._reader.join(60)
        self._stream.close()


@contextmanager
def _serving(settings: Settings, *options: str) -> Iterator[tuple[str, subprocess.Popen[str], _Said]]:
    """The service's base URL and process, from the line it prints until it has ended, and what else it says."""
    process = subprocess.Popen(
        [*ACCEL, "serve", "--port", "0", "--home", str(settings.home), *options], stderr=subprocess.PIPE, text=True
    )
    said = _Said(process)
    try:
        found = re.search(r"http://[0-9.]+:(\d+)", said.first)
        assert found, "the service did not say where it listens"
        yield f"http://127.0.0.1:{found[1]}", process, said
    finally:
        process.kill()
        process.wait()
        said.close()


def _wait_until_healthy(url: str) -> None:
    deadline = time.monotonic() + 120
    while True:
        try:
            response = httpx.get(f"{url}/health", timeout=5 * PATIENCE)
        except httpx.TransportError:
            assert time.monotonic() < deadline, "the service did not answer within 120 s"
            time.sleep(0.1)
        else:
            response.raise_for_status()
            return


def test_new_snapshots_and_predictors_are_swapped_in_without_one_failed_request(tmp_path: Path) -> None:
    settings = world(tmp_path, measured_grid(MODELS[:6]))
    log = EventLog.open(settings)
    train(settings, log)
    answers: list[dict[str, object]] = []
    failures: list[str] = []
    done = threading.Event()

    def ask(url: str, model: str) -> None:
        with httpx.Client(base_url=url, timeout=30 * PATIENCE) as client:
            while not done.is_set():
                try:
                    response = client.post("/recommend", json={"model": model, "batch_size": 2})
                    response.raise_for_status()
                    answers.append(response.json())
                except httpx.HTTPError as error:
                    failures.append(repr(error))

    with _serving(settings) as (url, process, _):
        _wait_until_healthy(url)
        threads = [threading.Thread(target=ask, args=(url, m)) for m in ("bert-base", "vit-base", "bert-large", "gpt2")]
        for thread in threads:
            thread.start()
        for published, batch_size in enumerate(range(8, 14), start=2):
            append(settings, [result(MODELS[0], "cpu", batch_size, provenance="imported")])
            train(settings, log)
            # On a busy machine the service passes over a snapshot that is soon followed by another.
            deadline = time.monotonic() + 30 * PATIENCE
            while len({str(a["snapshot_id"]) for a in list(answers)}) < published:
                assert time.monotonic() < deadline, f"the service does not answer from snapshot {published}"
                time.sleep(0.05)
        # The last predictor must be seen as well.
        time.sleep(1)
        done.set()
        for thread in threads:
            thread.join()
        assert process.poll() is None
    assert failures == []
    assert len({str(a["predictor_id"]) for a in answers}) >= 5
    assert all(a["recommendations"] for a in answers)


def test_ctrl_c_ends_it_cleanly_and_the_port_is_refused_while_taken(tmp_path: Path) -> None:
    settings = world(tmp_path, measured_grid(MODELS[:3]))
    with _serving(settings) as (url, process, said):
        _wait_until_healthy(url)
        port = url.rpartition(":")[2]
        second = subprocess.run(
            [*ACCEL, "serve", "--port", port, "--home", str(tmp_path)],
            check=False,
            capture_output=True,
            text=True,
            timeout=60 * PATIENCE,
        )
        assert second.returncode == 1
        assert f"Port {port}" in second.stderr
        assert "--port" in second.stderr
        assert "Traceback" not in second.stderr
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20 * PATIENCE) == 0
        assert "Traceback" not in "".join(said.lines())
    with socket.socket() as freed:
        freed.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        freed.bind(("127.0.0.1", int(port)))


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_second_ctrl_c_ends_it_at_once(tmp_path: Path, workers: str) -> None:
    settings = world(tmp_path, measured_grid(MODELS[:1]))
    with _serving(settings, "--workers", workers) as (url, process, said):
        _wait_until_healthy(url)
        with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))) as slow:
            # A request that does not end: the service waits for its body, and says so.
            slow.sendall(
                b"POST /recommend HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                b"Content-Length: 9\r\nExpect: 100-continue\r\n\r\n"
            )
            assert slow.recv(100).startswith(b"HTTP/1.1 100 ")
            process.send_signal(signal.SIGINT)
            time.sleep(1)
            assert process.poll() is None, "it waits for the request"
            ends = time.monotonic() + 20
            while process.poll() is None and time.monotonic() < ends:
                process.send_signal(signal.SIGINT)  # again, because a busy machine tells it of two as of one
                time.sleep(1)
            assert process.poll() == 130
        assert said.lines()[-1] == "Ended at once.\n"
        assert "Traceback" not in "".join(said.lines())


def test_ctrl_c_while_its_workers_start_ends_all_without_a_word(tmp_path: Path) -> None:
    """As a terminal has it, that sends the signal to workers too."""
    command = [*ACCEL, "serve", "--port", "0", "--workers", "2", "--home", str(tmp_path)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        workers: list[psutil.Process] = []
        while len(workers) < 2:
            assert process.poll() is None
            time.sleep(0.02)
            children = psutil.Process(process.pid).children()
            workers = [child for child in children if "spawn_main" in " ".join(child.cmdline())]
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=60 * PATIENCE)
    assert process.returncode == 0
    assert "Traceback" not in said
    assert not any(worker.is_running() for worker in workers)


def test_machines_are_told_where_it_listens(tmp_path: Path) -> None:
    command = [*ACCEL, "serve", "--port", "0", "--json", "--home", str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        said = "".join(iter(process.stdout.readline, "}\n")) + "}"
        answer = httpx.get(json.loads(said)["url"], timeout=30 * PATIENCE)
        assert answer.json()["name"]
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20 * PATIENCE) == 0
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.10", "::", "example.org"])
def test_without_keys_only_loopback_is_served(tmp_path: Path, host: str) -> None:
    from accel_platform.api_keys import KeyStore, Scope
    from accel_platform.errors import InvalidInput
    from predictor.service.server import serve

    settings = Settings(home=tmp_path)
    keys = KeyStore(settings)
    keys.create("ended", Scope.read)
    keys.revoke("ended")
    with pytest.raises(InvalidInput, match="accel keys create"):
        serve(settings, host, 0, ready=lambda url: pytest.fail(f"listened on {url}"), mark_suspicious=list)


def test_several_workers_open_to_others_with_a_key(tmp_path: Path) -> None:
    from accel_platform.api_keys import KeyStore, Scope

    settings = world(tmp_path, measured_grid(MODELS[:1]))
    _, secret = KeyStore(settings).create("ci", Scope.read)
    options = ["--host", "0.0.0.0", "--workers", "2", "--log-format", "json"]
    with _serving(settings, *options) as (url, process, said):
        _wait_until_healthy(url)
        with httpx.Client(base_url=url, headers={"X-API-Key": secret}, timeout=30 * PATIENCE) as client:
            assert httpx.get(f"{url}/results").status_code == 401
            for number in range(20):
                # A connection of its own each, so that both workers have some.
                asked = httpx.get(
                    f"{url}/results",
                    headers={"X-API-Key": secret, "X-Request-ID": f"ask-{number}"},
                    timeout=30 * PATIENCE,
                )
                assert asked.status_code == 200
            found = client.post("/query", json={"sql": "SELECT count(*) FROM results"}).json()
            assert found["rows"] == [[6]]
            counted = re.findall(
                r'accel_requests_total{[^}]*route="/results"[^}]*} ([0-9.]+)', client.get("/metrics").text
            )
            assert sum(map(float, counted)) == 20, "of both workers together"
        workers = [
            child for child in psutil.Process(process.pid).children() if "spawn_main" in " ".join(child.cmdline())
        ]
        assert len(workers) == 2
        request = b"GET /health HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n"
        address = ("127.0.0.1", int(url.rpartition(":")[2]))
        with asking_until_refused(address, request) as (responses, broken):
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=120) == 0
        assert broken == [], "who was accepted while it stopped is answered"
        assert all(response.startswith(b"HTTP/1.1 200") for response in responses)
        assert responses
        assert not any(worker.is_running() for worker in workers)
        lines = [json.loads(line) for line in said.lines() if line.startswith("{")]
    asked_for = [line for line in lines if str(line.get("request_id", "")).startswith("ask-")]
    assert {line["key"] for line in asked_for} == {"ci"}
    assert len(asked_for) == 20
    assert not [line for line in lines if line["level"] == "error"]


def test_the_commands_train_recommend_and_predict(tmp_path: Path) -> None:
    settings = world(tmp_path)
    environment = {**os.environ, "ACCEL_HOME": str(settings.home)}

    def accel(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*ACCEL, *arguments], check=False, capture_output=True, text=True, env=environment, timeout=120 * PATIENCE
        )

    trained = accel("train", "--json")
    assert trained.returncode == 0, trained.stderr
    assert json.loads(trained.stdout)["rows"] == 60
    recommended = accel("recommend", "bert-base-uncased", "--json", "--objective", "throughput", "--hardware", "cpu")
    answer = json.loads(recommended.stdout)
    assert [r["hardware"] for r in answer["recommendations"]] == ["cpu"]
    predicted = accel("predict", "bert-large", "--hardware", "cpu", "--batch-size", "2", "--json")
    assert json.loads(predicted.stdout)["provenance"] == "predicted"
    table = accel("recommend", "bert-base-uncased")
    assert "measured" in table.stdout
    assert "left out: cuda" in table.stderr
    unknown = accel("recommend", "no-such-model-at-all")
    assert unknown.returncode == 1
    assert "Traceback" not in unknown.stderr
    assert unknown.stdout == ""
    invalid = accel("recommend", "bert-base", "--batch-size", "99999")
    assert invalid.returncode == 2
    assert "--batch-size" in invalid.stderr
