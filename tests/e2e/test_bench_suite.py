"""Suites from end to end with a small real model: a file, the Python functions, real weights, and being stopped."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from accel_platform import BenchmarkConfig, run_benchmark, run_suite
from accel_platform.events import EventLog
from accel_platform.settings import Settings
from accel_platform.warehouse.reader import Reader
from accel_platform.workloads.build import build_model
from accel_platform.workloads.model_catalog import resolve_model
from migrations.detect import detect_format
from migrations.normalize.records import Record
from migrations.sources.documents import load, parse

pytestmark = pytest.mark.slow

SUITE: dict[str, Any] = {
    "// who": "a comment",
    "model_families": {"embedding": ["bert-tiny"]},
    "hardware_types": ["cpu"],
    "batch_sizes": [1, 2],
    "sequence_lengths": [16, 4096],
    "effort": "quick",
    "use_resource_pool": False,
    "warmup_iterations": 4,
    "benchmark_iterations": 12,
    "timeout": 60,
    "csv": "out/results.csv",
    "generate_plots": True,
    "update_compatibility_matrix": True,
    "schedule": "0 2 * * *",
}


def accel(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "accel_platform", "bench", "suite", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=540, check=False)


def results(home: Path) -> list[Any]:
    return [event.payload for event in EventLog.open(Settings(home=home)).read(types={"ResultRecorded"})]


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("suite") / "nightly.json"
    path.write_text(json.dumps(SUITE))
    return path


@pytest.fixture(scope="module")
def home(suite: Path) -> Path:
    """A home in which the suite has run; the command's answer is beside it."""
    home = suite.parent / "home"
    done = accel(suite, "--home", home, "--json")
    assert done.returncode == 0, done.stderr
    (suite.parent / "answer.json").write_text(done.stdout)
    told = " ".join(done.stderr.split())
    assert "length 4096 is left out: bert-tiny reads at most 512 tokens" in told
    assert "Dagster asks for the suite at '0 2 * * *' where ACCEL_SUITE names its file" in told
    return home


def test_checking_prints_the_plan_and_measures_nothing(suite: Path, tmp_path: Path) -> None:
    checked = accel("--config", suite, "--check", "--home", tmp_path, "--json")
    assert checked.returncode == 0, checked.stderr
    answer = json.loads(checked.stdout)
    assert [cell["state"] for cell in answer["cells"]] == ["to measure"] * 2
    assert answer["config"]["schedule"] == "0 2 * * *"
    assert any("length 4096" in remark for remark in answer["remarks"])
    assert list(tmp_path.iterdir()) == []


def test_a_suite_measures_and_leaves_reports_charts_csv_and_tables(suite: Path, home: Path) -> None:
    answer = json.loads((suite.parent / "answer.json").read_text())
    assert (answer["ok"], answer["failed"]) == (2, 0)
    folder = home / "reports" / answer["run_id"]
    names = {path.name for path in folder.iterdir()}
    assert names > {"charts.html", "latency.png", "throughput.png", "memory.png"}
    assert {str(path) for path in folder.iterdir()} < set(answer["files"])
    (report,) = folder.glob("bert-tiny_cpu_float32_*.json")
    with (suite.parent / "out" / "results.csv").open() as file:
        assert [row["batch_size"] for row in csv.DictReader(file)] == ["1", "2"]
    assert len({result.load_ms for result in results(home)}) == 2, "without a pool each cell has a process of its own"
    for result in results(home):
        assert result.warmup_iterations >= 4
        assert len(result.samples_ns) >= 12
        assert result.weights_source is result.weights_sha256 is None
    # What was written is what was recorded.
    document = parse(load(report))
    found = detect_format(document)
    assert found is not None
    read = [record.result for record in found.parse(document) if isinstance(record, Record)]
    assert [r.samples_ns for r in read] == [r.samples_ns for r in results(home)]
    (started,) = (e.payload for e in EventLog.open(Settings(home=home)).read(types={"RunStarted"}))
    assert started.plan["asked"]["schedule"] == "0 2 * * *"  # type: ignore[attr-defined]
    (row,) = Reader(Settings(home=home)).rows("SELECT model_id, hardware, state FROM compat_matrix")
    assert row == {"model_id": "bert-tiny", "hardware": "cpu", "state": "compatible"}


def test_the_functions_do_what_the_command_does(suite: Path, home: Path) -> None:
    lines: list[str] = []
    again = run_suite(suite, home=home, on_progress=lines.append)
    assert again.ok == 2
    assert again.run_id is not None
    assert (home / "reports" / again.run_id / "charts.html") in again.files
    config = BenchmarkConfig(
        models=("bert-tiny",), hardware_types=("cpu",), batch_sizes=(1, 2), sequence_lengths=(16,), missing=True
    )
    assert run_benchmark(config, home=home).run_id is None, "all of it is measured"


def test_real_weights_are_measured_apart_and_the_result_says_so(home: Path, tmp_path: Path) -> None:
    import torch

    model: Any = build_model(resolve_model("bert-tiny"))
    with torch.no_grad():
        model.embeddings.word_embeddings.weight.mul_(2)
    model.save_pretrained(tmp_path / "weights")
    before = len(results(home))
    config = {
        "models": ["bert-tiny"],
        "weights": {"bert-tiny": str(tmp_path / "weights")},
        "hardware_types": ["cpu", "onnxruntime"],
        "batch_sizes": [1],
        "sequence_lengths": [16],
        "effort": "quick",
        "missing": True,
        "report_dir": str(tmp_path / "reports"),
    }
    summary = run_benchmark(config, home=home)
    assert summary.ok == 2, "measured although the same shape is there with random weights"
    real = results(home)[before:]
    (sha256,) = {result.weights_sha256 for result in real}
    assert {result.weights_source for result in real} == {str(tmp_path / "weights")}
    prepared = list((home / "cache" / "prepared").iterdir())
    assert len(prepared) == 2, "one folder for the random weights, one for these"
    assert all(f"weights-{sha256[:8]}" in file.name for file in summary.files)
    assert run_benchmark(config, home=home).run_id is None


def test_models_of_ones_own_through_the_command(home: Path, tmp_path: Path) -> None:
    small = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    (tmp_path / "custom.json").write_text(
        json.dumps({"our-bert": {"architecture": "bert", "config": small, "family": "ours", "size": "nano"}})
    )
    command = [sys.executable, "-m", "accel_platform", "bench", "run", "--home", str(home), "--json"]
    command += ["--hardware", "cpu"]
    command += ["--models-file", str(tmp_path / "custom.json"), "--batch-sizes", "1", "--sequence-length", "16"]
    command += ["--effort", "quick", "--report-dir", str(tmp_path / "r"), "--csv", str(tmp_path / "r.csv")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=360, check=False)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert [row["model_id"] for row in answer["results"]] == ["our-bert"]
    assert len(answer["files"]) == 2
    report = json.loads(Path(answer["files"][0]).read_text())
    assert report["architecture_type"] == "ours"
    assert report["model_info"]["size"] == "nano"


def _works(child: psutil.Process) -> bool:
    """Whether it prepares or measures; looking at the hardware has children too."""
    with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
        return any(
            module in child.cmdline()
            for module in ("accel_platform.bench.prepare.worker", "accel_platform.bench.measure.worker")
        )
    return False


def test_a_stopped_suite_keeps_what_it_has_and_says_how_to_go_on(tmp_path: Path) -> None:
    config = {**SUITE, "csv": None, "effort": "thorough", "sequence_lengths": None, "generate_plots": False}
    (tmp_path / "suite.json").write_text(json.dumps(config))
    command = [sys.executable, "-m", "accel_platform", "bench", "suite", "--home", str(tmp_path / "home")]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env={**os.environ}
    )
    left_over: list[psutil.Process] = []
    end = time.monotonic() + 90
    while time.monotonic() < end and process.poll() is None and not left_over:
        time.sleep(0.05)
        left_over = [child for child in psutil.Process(process.pid).children() if _works(child)]
    process.send_signal(signal.SIGINT)
    _, progress = process.communicate(timeout=90)
    assert left_over, progress
    assert process.returncode == 130
    assert "the same command with --missing continues" in progress
    assert "Traceback" not in progress
    assert psutil.wait_procs(left_over, timeout=10)[1] == []


def test_a_bad_suite_ends_with_one_line(tmp_path: Path) -> None:
    path = tmp_path / "suite.json"
    path.write_text('{"batchsizes": [1]}')
    done = accel(path, "--home", tmp_path / "home")
    assert done.returncode == 2
    assert done.stderr == f"accel: {path}: unknown key batchsizes (line 1), did you mean batch_sizes?.\n"
    assert not (tmp_path / "home").exists()


def test_the_example_is_written_and_checks_out(tmp_path: Path) -> None:
    path = tmp_path / "example.json"
    assert accel("--create-config", path).returncode == 0
    checked = accel(path, "--check", "--home", tmp_path / "home")
    assert checked.returncode == 0, checked.stderr
    assert "the file is valid" in checked.stderr
    again = accel("--create-config", path)
    assert (again.returncode, "is there already" in again.stderr) == (2, True)


def test_importing_the_platform_and_asking_for_help_stay_light() -> None:
    script = "import sys, accel_platform.cli; print(sorted({'torch', 'pydantic', 'altair'} & {*sys.modules}))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
