"""Measuring in a real browser through the command: what is recorded, and that a killed run leaves no browser."""

from __future__ import annotations

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

from accel_platform.backends.detect import detect
from accel_platform.events import EventLog
from accel_platform.settings import Settings

pytestmark = pytest.mark.slow
BROWSERS = True

COMMAND = (sys.executable, "-m", "accel_platform", "bench", "run")
SMALL = ("--models", "bert-tiny", "--sequence-length", "16", "--batch-sizes", "1", "--effort", "quick")


@pytest.fixture(scope="module", autouse=True)
def browser() -> None:
    """Both must be here: where a browser is, so is WebAssembly, and Chromium brings a software adapter for WebGPU."""
    inventory = detect()
    for name in ("wasm", "webgpu"):
        device = inventory.device(name)
        assert device is not None
        if not device.available:
            pytest.skip(f"{name}: {device.reason}")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("browser")


def payloads(home: Path, type_: str) -> dict[str, Any]:
    log = EventLog.open(Settings(home=home))
    return {event.payload.hardware: event.payload for event in log.read(types={type_})}  # type: ignore[attr-defined]


def test_a_model_is_measured_in_the_browser_and_recorded_as_what_it_is(home: Path) -> None:
    arguments = [*COMMAND, "--home", str(home), *SMALL, "--hardware", "wasm,webgpu", "--json"]
    run = subprocess.run(arguments, capture_output=True, text=True, timeout=840, check=False)
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout)["ok"] == 2
    results, devices = payloads(home, "ResultRecorded"), payloads(home, "DeviceObserved")
    verified = payloads(home, "VerificationRecorded")
    assert results["wasm"].provenance == "measured"
    assert results["webgpu"].provenance == ("emulated" if devices["webgpu"].emulated else "measured")
    assert results["wasm"].device_id == devices["cpu"].device_id
    for name in ("wasm", "webgpu"):
        result = results[name]
        assert result.status == "ok"
        assert result.backend == "onnxruntime-web"
        assert len(result.samples_ns) >= 11
        # The page's clock steps by 5 us; every sample is a multiple of its step, give or take a float's last digit.
        step = result.environment["clock_step_ns"]
        assert all(abs(s - step * round(s / step)) <= 200 for s in result.samples_ns)
        assert result.load_ms > 0
        assert result.compile_ms > 0
        assert result.first_ms > 0
        assert result.memory_peak_mib > 100
        assert "processes" in result.environment["memory_method"]
        assert set(result.environment["runtimes"]) == {"onnxruntime-web", "chromium"}
        assert result.environment["accelerated_nodes_share"] > 0.5
        assert verified[name].passed
        assert verified[name].relative_error < 1e-5
    assert results["wasm"].environment["accelerated_nodes_share"] == 1
    adapter = results["webgpu"].environment["adapter"]
    assert devices["webgpu"].name in adapter.values()
    if adapter["architecture"] == "swiftshader":
        assert results["webgpu"].provenance == "emulated"


def test_sound_is_measured_in_the_browser_too(tmp_path: Path) -> None:
    sound = ("--models", "whisper-tiny", "--batch-sizes", "1", "--effort", "quick", "--hardware", "wasm")
    run = subprocess.run(
        [*COMMAND, "--home", str(tmp_path), *sound], capture_output=True, text=True, timeout=840, check=False
    )
    assert run.returncode == 0, run.stderr
    assert payloads(tmp_path, "ResultRecorded")["wasm"].samples_ns
    verified = payloads(tmp_path, "VerificationRecorded")["wasm"]
    assert verified.passed
    assert verified.relative_error < 1e-4


def test_webnn_is_measured_or_refused_in_its_own_words(tmp_path: Path) -> None:
    device = detect().device("webnn")
    assert device is not None
    if device.available:
        pytest.skip("WebNN is here; the contract tests measure it")
    arguments = [*COMMAND, "--home", str(tmp_path), *SMALL, "--hardware", "webnn"]
    run = subprocess.run(arguments, capture_output=True, text=True, timeout=180, check=False)
    assert run.returncode == 1
    assert f"webnn: unavailable, {device.reason}" in run.stderr
    assert "WebNN" in (device.reason or "")


@pytest.mark.parametrize("signal_", [signal.SIGINT, signal.SIGKILL], ids=["ctrl-c", "kill -9"])
def test_a_stopped_run_leaves_no_browser(home: Path, signal_: int) -> None:
    arguments = [*COMMAND, "--home", str(home), *SMALL, "--hardware", "wasm"]
    process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        browser = wait_for_renderers(process.pid)
    finally:
        os.kill(process.pid, signal_)
        process.wait(30)
    _, alive = psutil.wait_procs(browser, timeout=10)
    assert [p for p in alive if p.status() != psutil.STATUS_ZOMBIE] == []


def wait_for_renderers(pid: int) -> list[psutil.Process]:
    """All processes below the measuring child, once its browser shows a page."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        below = psutil.Process(pid).children(recursive=True)
        try:
            commands = [" ".join(p.cmdline()) for p in below]
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
        measuring = any("accel_platform.bench.measure.worker" in c for c in commands)
        if measuring and any("--type=renderer" in c for c in commands):
            return below
        time.sleep(0.02)
    pytest.fail("no browser was started")
