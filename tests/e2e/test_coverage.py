"""Checking architectures for real: one of each kind, one that fails, going on after a stop, and a killed process."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from accel_platform.bench.coverage.runner import check_architectures, latest_checks
from accel_platform.events import EventLog
from accel_platform.settings import Settings
from accel_platform.warehouse.publish import refresh
from accel_platform.warehouse.reader import Reader

pytestmark = pytest.mark.slow

ONE_OF_EACH = ["bert", "vit", "videomae", "whisper", "clip", "patchtst", "decision_transformer"]
WITHOUT_ITS_LIBRARY = "layoutlmv2"
"""It needs detectron2, which is on no package index."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("coverage")


@pytest.fixture(scope="module")
def log(home: Path) -> EventLog:
    """A log in which one architecture of each kind has been checked, and one that cannot be built."""
    log = EventLog.open(Settings(home=home))
    result = check_architectures([*ONE_OF_EACH, WITHOUT_ITS_LIBRARY], ["cpu"], log, jobs=1)
    assert result.checked == 8
    result = check_architectures(["bert"], ["cpu", "openvino"], log, jobs=1)
    assert (result.checked, result.skipped) == (1, 1)
    return log


def test_one_of_each_kind_runs(log: EventLog) -> None:
    checks = latest_checks(log)
    for model_type in ONE_OF_EACH:
        check = checks[model_type, "cpu"]
        assert check.status == "ok", check.reason
        assert check.parameters is not None
        assert 1_000 < check.parameters < 100_000_000
    assert checks["clip", "cpu"].inputs == ("attention_mask", "input_ids", "pixel_values")
    categories = [checks[model_type, "cpu"].category for model_type in ONE_OF_EACH]
    assert categories == ["text", "vision", "video", "audio", "multimodal", "time-series", "decision"]


def test_openvino_gives_the_same_numbers(log: EventLog) -> None:
    check = latest_checks(log)["bert", "openvino"]
    assert check.status == "ok", check.reason
    assert check.relative_error is not None
    assert 0 < check.relative_error < 1e-4
    assert set(check.versions) == {"torch", "transformers", "openvino"}


def test_what_fails_says_why(log: EventLog) -> None:
    check = latest_checks(log)[WITHOUT_ITS_LIBRARY, "cpu"]
    assert (check.status, check.failure_class) == ("failed", "missing_dependency")
    assert check.reason is not None
    assert "detectron2" in check.reason


def test_what_is_on_record_is_not_checked_again_unless_it_failed(log: EventLog) -> None:
    again = check_architectures([*ONE_OF_EACH, WITHOUT_ITS_LIBRARY], ["cpu"], log, jobs=2)
    assert (again.checked, again.skipped, again.run_id) == (0, 8, None)
    lines: list[str] = []
    retried = check_architectures(
        [*ONE_OF_EACH, WITHOUT_ITS_LIBRARY], ["cpu"], log, jobs=1, retry=True, on_progress=lines.append
    )
    assert lines[0].endswith("…")
    assert len(lines[0]) <= 200
    assert (retried.checked, retried.skipped) == (1, 7)


def test_the_warehouse_holds_the_last_check_of_each(home: Path, log: EventLog) -> None:
    settings = Settings(home=home)
    refresh(settings)
    rows = Reader(settings).rows("SELECT hardware, status, count(*) AS n FROM coverage GROUP BY ALL ORDER BY ALL")
    assert [tuple(row.values()) for row in rows] == [("cpu", "failed", 1), ("cpu", "ok", 7), ("openvino", "ok", 1)]
    [bert] = Reader(settings).rows("SELECT inputs, scale FROM coverage WHERE model_type = 'bert' AND hardware = 'cpu'")
    assert bert == {"inputs": ["attention_mask", "input_ids"], "scale": "tiny"}


def test_a_killed_process_takes_one_architecture_with_it(tmp_path: Path) -> None:
    log = EventLog.open(Settings(home=tmp_path))
    struck: list[int] = []

    def strike(line: str) -> None:
        if not struck:
            assert line.startswith("1/6 bert · cpu: ok")
            for child in psutil.Process().children(recursive=True):
                if "accel_platform.bench.coverage.worker" in " ".join(child.cmdline()):
                    struck.append(child.pid)
                    child.send_signal(signal.SIGKILL)

    # The one after the first takes the longest.
    types = ["bert", "swin", "t5", "gpt2", "electra", "mamba"]
    result = check_architectures(types, ["cpu"], log, jobs=1, on_progress=strike)
    assert struck
    checks = {model_type: result.latest[model_type, "cpu"] for model_type in types}
    dead = [check for check in checks.values() if check.status != "ok"]
    assert [check.failure_class for check in dead] == ["killed"]
    assert "SIGKILL" in str(dead[0].reason)
    assert checks["bert"].status == checks["mamba"].status == "ok"


def test_a_check_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    log = EventLog.open(Settings(home=tmp_path))
    result = check_architectures(["bert"], ["cpu"], log, jobs=1, timeout_s=0.1)
    check = result.latest["bert", "cpu"]
    assert (check.status, check.failure_class) == ("timeout", "timeout")


def accel(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "accel_platform", "bench", "coverage", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=360, check=False)


def test_the_command_reports_what_is_on_record(home: Path, log: EventLog, tmp_path: Path) -> None:
    page = tmp_path / "coverage.md"
    done = accel("--home", str(home), "--report", "--json", "--hardware", "cpu,openvino", "--write", str(page))
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    totals = {row["hardware"]: row for row in answer["categories"] if row["category"] == "all"}
    assert totals["cpu"]["ok"] == 7
    assert totals["cpu"]["failures"] == "missing_dependency 1"
    assert totals["openvino"]["ok"] == 1
    assert "detectron2" in page.read_text()
    failures = accel("--home", str(home), "--report", "--failures")
    assert WITHOUT_ITS_LIBRARY in failures.stdout
    assert "bert" not in failures.stdout.replace(WITHOUT_ITS_LIBRARY, "")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--types", "berd"), "Did you mean bert"),
        (("--category", "smell"), "Known: text, vision"),
        (("--types", "bert", "--hardware", "cuda"), "not on 'cuda'"),
    ],
)
def test_the_command_says_what_is_wrong(tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    done = accel("--home", str(tmp_path), *arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr
