"""Generation and training from the command to the tables, with small real models; two processes train together."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from accel_platform.bench.generation import NEW_TOKENS
from accel_platform.events import EventLog
from accel_platform.hardware.cpu import usable_cores
from accel_platform.settings import Settings
from accel_platform.warehouse import publish
from accel_platform.warehouse.query import Reader

pytestmark = pytest.mark.slow
COMMAND = "from accel_platform.cli import main; main()"
SHORT = ("--sequence-length", "12", "--batch-sizes", "2", "--profile", "quick", "--json")


def accel(home: Path, *arguments: str) -> Any:
    command = [sys.executable, "-c", COMMAND, "bench", "run", "--home", str(home), *SHORT, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run of a model that generates and one that does not, on a runtime that can and one that cannot."""
    home = tmp_path_factory.mktemp("modes")
    options = ("--models", "gpt2-tiny,bert-tiny", "--hardware", "cpu", "--mode", "generation,training")
    answer = accel(home, *options)
    assert (answer["ok"], answer["failed"]) == (3, 1), answer
    return home


def test_every_mode_is_recorded_with_its_figures(home: Path) -> None:
    publish.refresh(Settings(home=home))
    rows = {(r["model_id"], r["mode"]): r for r in Reader(Settings(home=home)).rows("SELECT * FROM results")}
    generated = rows["gpt2-tiny", "generation"]
    assert generated["output_tokens"] == NEW_TOKENS
    assert 0 < generated["prefill_ms"] <= generated["time_to_first_token_ms"] < generated["latency_p50_ms"]
    assert 0 < generated["time_per_output_token_ms"] < generated["latency_p50_ms"]
    assert generated["throughput_tokens_per_s"] == pytest.approx(NEW_TOKENS * generated["throughput_items_per_s"])
    assert generated["forward_ms"] is None
    for model in ("gpt2-tiny", "bert-tiny"):
        trained = rows[model, "training"]
        assert (trained["status"], trained["processes"], trained["scaling_efficiency"]) == ("ok", 1, None)
        assert min(trained["forward_ms"], trained["backward_ms"], trained["optimizer_ms"]) > 0
        assert trained["output_tokens"] is None
    refused = rows["bert-tiny", "generation"]
    assert (refused["status"], refused["failure_class"]) == ("failed", "unsupported_mode")
    assert "does not generate" in refused["reason"]


def test_each_mode_is_verified_and_has_a_row_of_the_matrix(home: Path) -> None:
    publish.refresh(Settings(home=home))
    reader = Reader(Settings(home=home))
    verified = reader.rows("SELECT model_id, mode, passed FROM verifications ORDER BY ALL")
    assert [(v["model_id"], v["mode"]) for v in verified if v["passed"]] == [
        ("bert-tiny", "training"), ("gpt2-tiny", "generation"), ("gpt2-tiny", "training"),
    ]  # fmt: skip
    matrix = {(m["model_id"], m["mode"]): m["state"] for m in reader.rows("SELECT * FROM compat_matrix")}
    assert matrix == {
        ("bert-tiny", "generation"): "failed",
        ("bert-tiny", "training"): "compatible",
        ("gpt2-tiny", "generation"): "compatible",
        ("gpt2-tiny", "training"): "compatible",
    }


def test_what_is_measured_in_a_mode_is_missing_in_no_other(home: Path) -> None:
    options = ("--models", "gpt2-tiny", "--mode", "inference,generation,training", "--missing", "--dry-run")
    plan = accel(home, *options, "--hardware", "cpu,openvino")
    assert {(c["hardware"], c["mode"]): c["state"].partition(":")[0] for c in plan} == {
        ("cpu", "inference"): "to measure",
        ("cpu", "generation"): "measured already",
        ("cpu", "training"): "measured already",
        ("openvino", "inference"): "to measure",
        ("openvino", "generation"): "cannot",
        ("openvino", "training"): "cannot",
    }
    unnamed = accel(home, *options)
    assert {c["hardware"] for c in unnamed if c["mode"] == "training"} == {"cpu"}, "nobody asked for the others"


@pytest.mark.skipif(usable_cores() < 2, reason="one core is no room for two processes")
def test_two_processes_train_together(home: Path) -> None:
    answer = accel(
        home, "--models", "bert-tiny", "--hardware", "cpu", "--mode", "training", "--nproc", "2", "--missing"
    )
    [row] = answer["results"]
    assert row["status"] == "ok", row["reason"]
    assert row["processes"] == 2
    assert 0 < row["scaling_efficiency"] < 2
    assert row["throughput_items_per_s"] == pytest.approx(2 * 2 * 1000 / row["latency_p50_ms"])
    results = [event.payload for event in EventLog.open(Settings(home=home)).read(types={"ResultRecorded"})]
    together: Any = results[-1]
    environment = together.environment
    assert environment["threads_per_process"] == usable_cores() // 2
    assert len(environment["memory_peak_per_process_mib"]) == 2
    assert together.memory_peak_mib == pytest.approx(sum(environment["memory_peak_per_process_mib"]))
    alone, both = sorted(environment["alone_samples_ns"]), sorted(together.samples_ns)
    assert row["scaling_efficiency"] == pytest.approx(alone[len(alone) // 2] / both[len(both) // 2], rel=0.1)


def test_more_processes_than_cores_are_refused(tmp_path: Path) -> None:
    count = str(usable_cores() + 1)
    options = ("--models", "bert-tiny", "--hardware", "cpu", "--mode", "training", "--nproc", count)
    command = [sys.executable, "-c", COMMAND, "bench", "run", "--home", str(tmp_path), *SHORT, *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 1
    [row] = json.loads(done.stdout)["results"]
    assert row["failure_class"] == "unsupported_mode"
    assert f"needs as many cores; here: {usable_cores()}" in row["reason"]
