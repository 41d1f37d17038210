"""Generation and training from the command to the tables, with small real models; two processes train together."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from typer.testing import CliRunner

from accel_platform.analysis.stats.medians import MIN_MEDIAN_SAMPLES, median_ns
from accel_platform.backends.detect import detect
from accel_platform.bench.measure.generation import NEW_TOKENS
from accel_platform.bench.plan.plan import plan_cells
from accel_platform.bench.plan.run_options import EFFORTS
from accel_platform.bench.run.recorder import RunContext
from accel_platform.bench.run.runner import measure_cells
from accel_platform.cli.measurement.bench import app
from accel_platform.events import EventLog
from accel_platform.hardware.cpu import usable_cores
from accel_platform.settings import Settings
from accel_platform.warehouse import publish
from accel_platform.warehouse.reader import Reader
from accel_platform.workloads.model_catalog import resolve_model

pytestmark = pytest.mark.slow
SHORT = ("--sequence-length", "12", "--batch-sizes", "2", "--effort", "quick", "--json")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run: a model that generates and is trained, and one that cannot generate."""
    settings = Settings(home=tmp_path_factory.mktemp("modes"))
    gpt, bert = resolve_model("gpt2-tiny"), resolve_model("bert-tiny")
    cells = plan_cells([gpt], ["cpu"], [2], [12], modes=("generation", "training"))
    cells += plan_cells([bert], ["cpu"], [2], [12], modes=("generation",))
    context = RunContext(settings, EventLog.open(settings), detect({"cpu"}), EFFORTS["quick"])
    summary = measure_cells(cells, context)
    assert (summary.ok, summary.failed) == (2, 1), summary.results
    publish.refresh(settings)
    return settings.home


def test_every_mode_is_recorded_with_its_figures(home: Path) -> None:
    rows = {(r["model_id"], r["mode"]): r for r in Reader(Settings(home=home)).rows("SELECT * FROM results")}
    generated = rows["gpt2-tiny", "generation"]
    assert generated["output_tokens"] == NEW_TOKENS
    if generated["samples"] >= MIN_MEDIAN_SAMPLES:  # a busy machine gives fewer, and then there is no median
        assert 0 < generated["prefill_ms"] <= generated["time_to_first_token_ms"] < generated["latency_p50_ms"]
    assert 0 < generated["time_per_output_token_ms"] < generated["latency_mean_ms"]
    assert generated["throughput_tokens_per_s"] == pytest.approx(NEW_TOKENS * generated["throughput_items_per_s"])
    assert generated["forward_ms"] is None
    trained = rows["gpt2-tiny", "training"]
    assert (trained["status"], trained["processes"], trained["scaling_efficiency"]) == ("ok", 1, None)
    parts = [trained[name] for name in ("forward_ms", "backward_ms", "optimizer_ms")]
    assert all(part > 0 for part in parts) if trained["samples"] >= MIN_MEDIAN_SAMPLES else parts == [None] * 3
    assert trained["output_tokens"] is None
    refused = rows["bert-tiny", "generation"]
    assert (refused["status"], refused["failure_class"]) == ("failed", "unsupported_mode")
    assert "does not generate" in refused["reason"]


def test_each_mode_is_verified_and_has_a_row_of_the_matrix(home: Path) -> None:
    reader = Reader(Settings(home=home))
    verified = reader.rows("SELECT model_id, mode, passed FROM verifications ORDER BY ALL")
    assert [(v["model_id"], v["mode"]) for v in verified if v["passed"]] == [
        ("gpt2-tiny", "generation"),
        ("gpt2-tiny", "training"),
    ]
    matrix = {(m["model_id"], m["mode"]): m["state"] for m in reader.rows("SELECT * FROM compat_matrix")}
    assert matrix == {
        ("bert-tiny", "generation"): "failed",
        ("gpt2-tiny", "generation"): "compatible",
        ("gpt2-tiny", "training"): "compatible",
    }


def test_what_is_measured_in_a_mode_is_missing_in_no_other(home: Path) -> None:
    options = ["--home", str(home), *SHORT, "--models", "gpt2-tiny", "--missing", "--dry-run"]
    options += ["--mode", "inference,generation,training"]
    named = CliRunner().invoke(app, ["run", *options, "--hardware", "cpu,openvino"])
    assert {(c["hardware"], c["mode"]): c["state"].partition(":")[0] for c in json.loads(named.stdout)} == {
        ("cpu", "inference"): "to measure",
        ("cpu", "generation"): "measured already",
        ("cpu", "training"): "measured already",
        ("openvino", "inference"): "to measure",
        ("openvino", "generation"): "to measure",
        ("openvino", "training"): "cannot",
    }
    unnamed = CliRunner().invoke(app, ["run", *options])
    assert {c["hardware"] for c in json.loads(unnamed.stdout) if c["mode"] == "training"} <= {
        "cpu",
        "cuda",
        "rocm",
        "mps",
    }


@pytest.mark.skipif(usable_cores() < 2, reason="one core is no room for two processes")
def test_two_processes_train_together(home: Path) -> None:
    options = ("--models", "bert-tiny", "--hardware", "cpu", "--mode", "training", "--nproc", "2", "--missing")
    command = [sys.executable, "-m", "accel_platform", "bench", "run", "--home", str(home), *SHORT, *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    [row] = json.loads(done.stdout)["results"]
    assert row["status"] == "ok", row["reason"]
    assert row["processes"] == 2
    results = [event.payload for event in EventLog.open(Settings(home=home)).read(types={"ResultRecorded"})]
    together: Any = results[-1]
    environment = together.environment
    assert environment["threads_per_process"] == usable_cores() // 2
    assert len(environment["memory_peak_per_process_mib"]) == 2
    assert together.memory_peak_mib == pytest.approx(sum(environment["memory_peak_per_process_mib"]))
    alone, both = environment["alone_samples_ns"], together.samples_ns
    if min(len(alone), len(both)) >= MIN_MEDIAN_SAMPLES:
        assert row["throughput_items_per_s"] == pytest.approx(2 * 2 * 1e9 / fmean(both))
        assert row["scaling_efficiency"] == pytest.approx(median_ns(alone) / median_ns(both))
        assert 0 < row["scaling_efficiency"] < 2
