"""Benchmark runs from end to end with a small real model: what is recorded, and what becomes of every fault."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from bench_world import HARDWARE, QUICK, SPEC, World, strike_first_worker, workers

from accel_platform.backends.detect import Inventory
from accel_platform.bench.plan.plan import done_cells, host_fingerprints, missing_cells, plan_cells
from accel_platform.bench.plan.run_options import RunOptions
from accel_platform.bench.prepare.artifacts import Artifacts
from accel_platform.events import Event, EventLog
from accel_platform.settings import Settings
from accel_platform.table_io.values import count_of

pytestmark = pytest.mark.slow


def test_a_run_records_everything_it_saw(measured: World) -> None:
    results = measured.events("ResultRecorded")
    assert len(results) == 6
    for result in results:
        assert result.status == "ok"
        assert result.provenance == "measured"
        assert result.precision == "float32"
        assert len(result.samples_ns) == result.iterations >= 11
        assert result.load_ms > 0
        assert result.first_ms > 0
        assert (result.compile_ms is not None) == (result.backend == "openvino")
        assert result.memory_peak_mib > 20
        assert result.noisy is not None
        assert (result.noisy_reason is None) == (not result.noisy)
        assert result.environment["threads"] == result.threads
        assert result.environment["before"]["load_average_1min"] >= 0
        assert result.environment["runtimes"]
    assert len({result.device_id for result in results}) == 1
    assert len({result.fingerprint for result in results}) == 3
    verifications = measured.events("VerificationRecorded")
    assert len(verifications) == 6
    assert all(v.passed and v.relative_error < 1e-5 and not v.constant_output for v in verifications)
    (model,) = measured.events("ModelDescribed")
    assert model.model_id == "bert-tiny"
    assert model.parameters == 4_385_920
    (started,), (finished,) = measured.events("RunStarted"), measured.events("RunFinished")
    assert len(started.plan["cells"]) == 6
    assert finished.status == "succeeded"
    assert finished.cells_ok == 6
    assert len({event.run_id for event in measured.log.read()}) == 1


def test_measuring_processes_hold_the_runtime_they_measure_and_no_more(measured: World) -> None:
    peaks = {r.hardware: r.memory_peak_mib for r in measured.events("ResultRecorded")}
    # An import of torch alone takes more than all of ONNX Runtime's process.
    assert peaks["onnxruntime"] < peaks["cpu"] / 1.5
    assert peaks["openvino"] < peaks["cpu"] / 1.5


def test_each_precision_is_what_ran_or_a_failure_that_says_so(world: World) -> None:
    cells = plan_cells([SPEC], HARDWARE, [1], [16], ["bfloat16", "int8"])
    world.run(cells)
    found = {(r.hardware, r.precision): r for r in world.events("ResultRecorded")}
    assert len(found) == 6
    for (hardware, precision), result in found.items():
        if result.status == "ok":
            assert result.environment["precision_share"] >= 0.5, (hardware, precision)
        else:
            # A processor without bfloat16 refuses it, and ONNX Runtime's has no such products at all.
            assert precision == "bfloat16"
            assert hardware != "cpu"
            assert result.failure_class == "unsupported_precision"
            assert "bfloat16" in result.reason or "bf16" in result.reason
    assert found["onnxruntime", "bfloat16"].status == "failed"
    assert all(found[hardware, "int8"].status == "ok" for hardware in HARDWARE)
    errors = {(v.hardware, v.precision): v.relative_error for v in world.events("VerificationRecorded") if v.passed}
    assert all(errors[hardware, "int8"] > 1e-3 for hardware in HARDWARE), "float32 would come closer"


def test_a_second_run_lacks_nothing_and_a_wider_one_only_what_is_new(measured: World, inventory: Inventory) -> None:
    marks = host_fingerprints(inventory)
    done = done_cells(measured.log)
    assert missing_cells(plan_cells([SPEC], HARDWARE, [1, 2], [16]), done, marks) == ()
    wider = plan_cells([SPEC], HARDWARE, [1, 2, 4], [16])
    assert {cell.batch_size for cell in missing_cells(wider, done, marks)} == {4}


def test_on_a_machine_that_stays_busy_only_the_first_model_is_measured_again(world: World) -> None:
    with contextlib.ExitStack() as busy:
        for _ in range(psutil.cpu_count() or 1):
            neighbor = busy.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            busy.callback(neighbor.kill)
        world.run(plan_cells([SPEC], ("onnxruntime", "openvino"), [1], [16]))
    first, second = world.events("ResultRecorded")
    assert len(first.environment["disturbed_before"]) == 2
    assert second.environment["disturbed_before"] == []
    assert first.noisy
    assert second.noisy


def test_a_child_killed_ends_its_cells_and_the_run_goes_on(world: World) -> None:
    with strike_first_worker(signal.SIGKILL) as struck:
        summary = world.run(plan_cells([SPEC], ["cpu", "onnxruntime"], [1], [16]))
    assert struck
    assert (summary.ok, summary.failed) == (1, 1)
    by_hardware = {r.hardware: r for r in world.events("ResultRecorded")}
    assert by_hardware["cpu"].status == "failed"
    assert by_hardware["cpu"].failure_class == "killed"
    assert "SIGKILL" in by_hardware["cpu"].reason
    assert by_hardware["onnxruntime"].status == "ok"


def test_a_child_that_hangs_times_out_and_the_run_goes_on(world: World) -> None:
    with strike_first_worker(signal.SIGSTOP) as struck:
        summary = world.run(
            plan_cells([SPEC], ["cpu", "onnxruntime"], [1], [16]), effort=replace(QUICK, timeout_s=15.0)
        )
    assert (summary.ok, summary.failed) == (1, 1)
    by_hardware = {r.hardware: r for r in world.events("ResultRecorded")}
    assert by_hardware["cpu"].status == "timeout"
    assert "15 s" in by_hardware["cpu"].reason
    assert not psutil.pid_exists(struck[0])


def test_a_graph_a_runtime_cannot_read_fails_there_and_only_there(world: World) -> None:
    Artifacts.of(SPEC, world.settings).graph("onnx", 16).write_bytes(b"no graph at all")
    summary = world.run(plan_cells([SPEC], HARDWARE, [1], [16]), options=RunOptions(fix=False))
    assert (summary.ok, summary.failed) == (1, 2)
    for result in world.events("ResultRecorded"):
        if result.hardware != "cpu":
            assert result.status == "failed"
            assert result.reason
            assert result.failure_class == "invalid_model"
            assert result.latency_p50_ms is None
            assert result.samples_ns == ()


def test_a_fast_backend_with_wrong_numbers_is_a_failure(world: World) -> None:
    from accel_platform.workloads.build import build_model

    impostor = replace(SPEC, config={**SPEC.config, "hidden_act": "relu"})
    artifacts = Artifacts.of(SPEC, world.settings)
    other: Any = build_model(impostor)
    other.save_pretrained(str(artifacts.weights))
    summary = world.run(plan_cells([SPEC], ["cpu"], [1], [16]), options=RunOptions(fix=False))
    assert (summary.ok, summary.failed) == (0, 1)
    (result,), (verification,) = world.events("ResultRecorded"), world.events("VerificationRecorded")
    assert result.status == "failed"
    assert result.failure_class == "wrong_output"
    assert "differs from the reference" in result.reason
    assert not verification.passed
    assert verification.relative_error > verification.tolerance
    (finished,) = world.events("RunFinished")
    assert finished.status == "failed"
    assert finished.cells_failed == 1


def test_a_model_that_cannot_be_prepared_fails_with_the_reason(tmp_path: Path, inventory: Inventory) -> None:
    world = World(tmp_path, inventory)
    broken = replace(SPEC, model_id="bert-broken", config={**SPEC.config, "hidden_size": 127})
    summary = world.run(plan_cells([broken, SPEC], ["cpu"], [1], [16]))
    assert (summary.ok, summary.failed) == (1, 1)
    by_model = {result.model_id: result for result in world.events("ResultRecorded")}
    assert by_model["bert-broken"].status == "failed"
    assert "127" in by_model["bert-broken"].reason
    assert by_model["bert-tiny"].status == "ok"
    assert [run.status for run in world.events("RunFinished")] == ["succeeded"]


def test_a_preparing_child_that_times_out_ends_its_model_only(tmp_path: Path, inventory: Inventory) -> None:
    world = World(tmp_path, inventory)
    summary = world.run(plan_cells([SPEC], ["cpu"], [1], [16]), effort=replace(QUICK, prepare_timeout_s=0.01))
    assert (summary.ok, summary.failed) == (0, 1)
    (result,) = world.events("ResultRecorded")
    assert result.status == "timeout"
    assert result.reason.startswith("preparing it")
    assert [run.status for run in world.events("RunFinished")] == ["failed"]


def test_hardware_that_is_not_here_is_named_and_leaves_no_result(world: World, inventory: Inventory) -> None:
    absent = next(device for device in inventory.devices if not device.available)
    summary = world.run(plan_cells([SPEC], [absent.hardware], [1], [16]))
    assert summary.run_id is None
    assert summary.ok == 0
    assert summary.skipped == 1
    assert summary.unavailable == {absent.hardware: absent.reason}
    assert list(world.log.read()) == []


def accel(home: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "accel_platform", "bench", "run", "--home", str(home), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


SMALL = ("--models", "BERT-tiny", "--sequence-length", "16", "--effort", "quick")


def test_the_command_measures_then_finds_nothing_missing(world: World) -> None:
    options = (*SMALL, "--hardware", "onnxruntime", "--batch-sizes", "1,2")
    first = accel(world.settings.home, *options, "--json")
    output, progress = first.communicate(timeout=360)
    assert first.returncode == 0, progress
    answer = json.loads(output)
    assert answer["ok"] == 2
    assert len(answer["results"]) == 2
    assert all(row["latency_p50_ms"] > 0 and row["status"] == "ok" for row in answer["results"])
    again = accel(world.settings.home, *options, "--missing")
    output, progress = again.communicate(timeout=360)
    assert again.returncode == 0
    assert "Measured already: all 2 cells." in progress
    dry = accel(world.settings.home, *options[:-1], "1,2,4", "--missing", "--dry-run", "--json")
    rows = json.loads(dry.communicate(timeout=180)[0])
    assert [row["state"] for row in rows] == ["measured already"] * 2 + ["to measure"]
    assert [row["estimate_from"] for row in rows] == [None, None, "effort limits"]
    dry = accel(world.settings.home, *options, "--dry-run")
    output, progress = dry.communicate(timeout=180)
    assert output.count("earlier result") == 2
    assert "for 2 cells: 2 by earlier results" in progress


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--models", "bert-tinny"), 1, "Did you mean bert-tiny"),
        (("--hardware", "cpuu"), 2, "Did you mean cpu"),
        (("--batch-sizes", "1,two"), 2, "whole numbers"),
        (("--effort", "standart"), 2, "Try standard"),
        (("--verify-only", "--benchmark-only"), 2, "nothing to do"),
        (("--older-than", "30d"), 2, "give both"),
        (("--models", "bert-tiny", "--hardware", "webnn"), 1, "Nothing could be measured"),
    ],
)
def test_the_command_says_what_is_wrong(tmp_path: Path, arguments: tuple[str, ...], code: int, words: str) -> None:
    process = accel(tmp_path, *arguments)
    _, progress = process.communicate(timeout=180)
    assert process.returncode == code
    assert words in progress
    assert "Traceback" not in progress


def wait_for_segment(log: EventLog, results: int, process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 90
    while time.monotonic() < end and process.poll() is None:
        if sum(1 for _ in log.read(types={"ResultRecorded"})) >= results and workers(process.pid):
            return
        time.sleep(0.05)
    pytest.fail(f"no measuring child after {results} results: {process.communicate()[1]}")


@pytest.mark.parametrize("signal_", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=["ctrl-c", "kill", "kill -9"])
def test_a_stopped_command_keeps_what_it_measured_and_leaves_no_child(world: World, signal_: int) -> None:
    options = (*SMALL, "--hardware", "onnxruntime,cpu", "--batch-sizes", "1,2")
    process = accel(world.settings.home, *options, "--label", "branch=main", "--label", "note=first")
    wait_for_segment(world.log, 2, process)
    left_over = workers(process.pid)
    process.send_signal(signal_)
    _, progress = process.communicate(timeout=90)
    _, alive = psutil.wait_procs(left_over, timeout=10)
    assert alive == []
    kept = [event for event in world.log.read() if event.type == "ResultRecorded"]
    assert len(kept) >= 2
    assert all(result_of(event).hardware == "onnxruntime" for event in kept[:2])
    finished = world.events("RunFinished")
    if signal_ != signal.SIGKILL:
        assert process.returncode == 130
        assert "kept" in progress
        assert [run.status for run in finished] == ["cancelled"]
    else:
        assert finished == []
    # The last run goes on from there, and then there is none to go on with.
    rest = accel(world.settings.home, "--resume", "--json", "--label", "note=rest")
    output, progress = rest.communicate(timeout=360)
    assert rest.returncode == 0, progress
    assert f": {count_of(4 - len(kept), 'cell')} left" in progress
    assert json.loads(output)["ok"] == 4 - len(kept)
    resumed = world.events("RunStarted")[-1]
    assert resumed.plan["effort"]["name"] == "quick"
    assert resumed.labels.items() >= {"branch": "main", "note": "rest"}.items()
    again = accel(world.settings.home, "--resume")
    assert "nothing to resume" in again.communicate(timeout=180)[1]


def result_of(event: Event) -> Any:
    return event.payload


def test_detecting_prints_every_hardware_and_goes_on_record_where_there_is_one(
    tmp_path: Path, inventory: Inventory
) -> None:
    home = tmp_path / "home"
    arguments = [sys.executable, "-m", "accel_platform", "detect", "--home", str(home)]
    for_people = subprocess.run(arguments, capture_output=True, text=True, check=True)
    assert "built without" in for_people.stdout or "cuda-" in for_people.stdout
    assert not home.exists(), "a look creates nothing"
    log = EventLog.open(Settings(home=home))
    log.append([Event.of(inventory.host, source="test")])
    for_machines = subprocess.run([*arguments, "--json"], capture_output=True, text=True, check=True)
    answer = json.loads(for_machines.stdout)
    assert [device["hardware"] for device in answer["devices"]][:2] == ["cpu", "cuda"]
    assert all(device["available"] or device["reason"] for device in answer["devices"])
    recorded = [event.payload for event in log.read(types={"DeviceObserved"})]
    assert [(d.hardware, d.available) for d in recorded] == [(d["hardware"], d["available"]) for d in answer["devices"]]  # type: ignore[attr-defined]
