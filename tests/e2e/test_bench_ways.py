"""Faults that really happen, what helps against them, and the other ways a run can go."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx.parser
import psutil
import pytest
from bench_world import SPEC, World, strike_first_worker, workers

from accel_platform.backends.detect import Inventory
from accel_platform.bench.plan.plan import done_cells, plan_cells
from accel_platform.bench.plan.run_options import RunOptions
from accel_platform.bench.prepare.artifacts import Artifacts
from accel_platform.warehouse.publish import refresh
from accel_platform.warehouse.reader import Reader
from accel_platform.workloads.model_catalog import ModelSpec

pytestmark = pytest.mark.slow

NO_FIX = RunOptions(fix=False)
FNET = ModelSpec(
    model_id="fnet-tiny",
    architecture="fnet",
    family="fnet",
    modality="text",
    config={"hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 128, "vocab_size": 500},
    sequence_length=16,
)


def by_hardware(world: World) -> dict[str, Any]:
    return {result.hardware: result for result in world.events("ResultRecorded")}


def test_a_process_without_memory_ends_its_cell_and_half_the_batch_works(world: World) -> None:
    peak_bytes = 0

    def watch(worker: psutil.Process) -> None:
        nonlocal peak_bytes
        with suppress(psutil.NoSuchProcess):
            while worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE:
                peak_bytes = max(peak_bytes, worker.memory_info().vms)
                time.sleep(0.005)

    with strike_first_worker(watch):
        assert world.run(plan_cells([SPEC], ["onnxruntime"], [1], [16])).ok == 1
    # What a batch of one takes, and not half of what this one takes above that.
    limit = peak_bytes + 100 * 2**20

    def confine(worker: psutil.Process) -> None:
        worker.rlimit(psutil.RLIMIT_AS, (limit, resource.RLIM_INFINITY))

    with strike_first_worker(confine) as struck:
        summary = world.run(plan_cells([SPEC], ["onnxruntime"], [1024], [16]))
    assert struck
    assert (summary.ok, summary.failed) == (1, 1)
    half, whole = world.events("ResultRecorded")[1:]
    assert (whole.batch_size, whole.status, whole.failure_class) == (1024, "failed", "out_of_memory")
    assert whole.samples_ns == ()
    assert "batch 512" in whole.reason
    assert (half.batch_size, half.status, half.remedy) == (512, "ok", "smaller_batch")
    assert half.environment["remedied"]["failure_class"] == "out_of_memory"


def test_a_process_that_crashes_is_tried_again_and_says_so(world: World) -> None:
    with strike_first_worker(signal.SIGSEGV) as struck:
        summary = world.run(plan_cells([SPEC], ["onnxruntime"], [1], [16]))
    assert struck
    assert (summary.ok, summary.failed) == (1, 0)
    (result,) = world.events("ResultRecorded")
    assert result.remedy == "second_attempt"
    assert result.environment["remedied"]["failure_class"] == "crash"
    assert "SIGSEGV" in result.environment["remedied"]["reason"]


def test_without_fixes_a_process_that_crashes_ends_its_cell_and_the_run_goes_on(world: World) -> None:
    with strike_first_worker(signal.SIGSEGV):
        summary = world.run(plan_cells([SPEC], ["cpu", "onnxruntime"], [1], [16]), options=NO_FIX)
    assert (summary.ok, summary.failed) == (1, 1)
    found = by_hardware(world)
    assert (found["cpu"].failure_class, found["cpu"].remedy) == ("crash", None)
    assert found["onnxruntime"].status == "ok"


def test_an_operator_that_a_runtime_has_not_ends_its_cells_unless_another_graph_helps(world: World) -> None:
    graph = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 18]> g (int64[b, 16] input_ids, int64[b, 16] attention_mask)'
        " => (int64[b, 16] y) { y = NoSuchOperator (input_ids, attention_mask) }"
    )
    onnx.save(graph, Artifacts.of(SPEC, world.settings).graph("onnx", 16))
    cells = plan_cells([SPEC], ["cpu", "openvino", "onnxruntime"], [1], [16])
    assert world.run(cells, options=NO_FIX).failed == 2
    found = by_hardware(world)
    assert found["cpu"].status == "ok"
    for hardware in ("openvino", "onnxruntime"):
        assert found[hardware].failure_class == "unsupported_operator", found[hardware].reason
        assert "NoSuchOperator" in found[hardware].reason
    fixed = world.run(cells[1:])
    assert (fixed.ok, fixed.failed) == (2, 0)
    assert {result.remedy for result in fixed.results} == {"eager_attention"}
    assert all("NoSuchOperator" in result.environment["remedied"]["reason"] for result in fixed.results)


def test_a_graph_that_openvino_reads_wrongly_is_made_by_its_own_converter(tmp_path: Path, inventory: Inventory) -> None:
    # OpenVINO 2026.4 computes the Fourier transform of FNet wrongly from ONNX, without a word.
    world = World(tmp_path, inventory)
    summary = world.run(plan_cells([FNET], ["openvino"], [1], [16]))
    assert (summary.ok, summary.failed) == (1, 0), world.lines
    found = by_hardware(world)
    assert found["openvino"].remedy == "openvino_converter"
    assert found["openvino"].environment["remedied"]["failure_class"] == "wrong_output"
    assert all(v.passed and v.relative_error < 1e-5 for v in world.events("VerificationRecorded"))
    refresh(world.settings)
    assert Reader(world.settings).rows("SELECT remedy FROM results") == [{"remedy": "openvino_converter"}]
    states = Reader(world.settings).rows("SELECT DISTINCT state FROM compat_matrix")
    assert states == [{"state": "compatible"}]


def test_verifying_alone_records_verdicts_and_times_nothing(world: World) -> None:
    cells = plan_cells([SPEC], ["cpu", "onnxruntime"], [1, 2], [16])
    summary = world.run(cells, options=RunOptions("verify"))
    assert (summary.ok, summary.failed, summary.results) == (4, 0, [])
    assert world.events("ResultRecorded") == []
    assert all(v.passed and v.relative_error < 1e-5 for v in world.events("VerificationRecorded"))
    assert done_cells(world.log) == frozenset()
    Artifacts.of(SPEC, world.settings).graph("onnx", 16).write_bytes(b"no graph at all")
    assert world.run(cells[2:], options=RunOptions("verify", fix=False)).failed == 2
    broken = world.events("VerificationRecorded")[4:]
    assert [(v.hardware, v.passed, v.relative_error) for v in broken] == [("onnxruntime", False, None)] * 2
    assert all("Protobuf" in v.reason or "model" in v.reason for v in broken)


def test_measuring_alone_makes_no_reference_and_no_claim(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "accel_platform", "bench", "run"]
    options = ["--models", "bert-tiny", "--hardware", "onnxruntime", "--sequence-length", "16", "--batch-sizes", "1"]
    ways = ["--effort", "quick", "--benchmark-only", "--profile", "--home", str(tmp_path)]
    done = subprocess.run([*command, *options, *ways], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "MatMul" in done.stdout
    (trace,) = (tmp_path / "traces").glob("*/*.json")
    assert str(trace) in done.stdout
    assert any(event.get("cat") == "Node" for event in json.loads(trace.read_text()))
    assert [path.name for path in (tmp_path / "cache").rglob("*.npz")] == ["inputs-1x16.npz"]
    world = World(tmp_path, Inventory("", None, ()))  # type: ignore[arg-type]
    (result,) = world.events("ResultRecorded")
    assert (result.status, result.environment["verified"]) == ("ok", False)
    assert world.events("VerificationRecorded") == []
    assert done_cells(world.log) == frozenset(), "--missing measures it again"
    refresh(world.settings)
    assert Reader(world.settings).rows("SELECT state, reason FROM compat_matrix") == []


def most_workers_at_once(world: World, how: RunOptions) -> int:
    most, over = 0, threading.Event()

    def count() -> None:
        nonlocal most
        while not over.wait(0.02):
            # A child that starts another process looks like two for a moment.
            most = max(most, sum(worker.ppid() == os.getpid() for worker in workers(os.getpid())))

    counter = threading.Thread(target=count)
    counter.start()
    try:
        summary = world.run(plan_cells([SPEC], ["cpu", "openvino", "onnxruntime"], [1], [16]), options=how)
    finally:
        over.set()
        counter.join()
    assert (summary.ok, summary.failed) == (3, 0), world.lines
    return most


def test_side_by_side_is_for_devices_that_share_no_silicon(world: World) -> None:
    assert most_workers_at_once(world, RunOptions(parallel=True)) == 1, "all three run on this processor"
    # As if ONNX Runtime drove a device of its own.
    moved = [
        device.model_copy(update={"device_id": "gpu-1"}) if device.hardware == "onnxruntime" else device
        for device in world.inventory.devices
    ]
    world.inventory = replace(world.inventory, devices=tuple(moved))
    assert most_workers_at_once(world, RunOptions(parallel=True)) == 2
    assert len({result.device_id for result in world.events("ResultRecorded")}) == 2
