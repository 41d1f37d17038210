"""Every fake, planted in a real backend: the measuring process and the record find it, and say by what."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import openvino
import pytest

from accel_platform.backends import onnxruntime as onnxruntime_backend
from accel_platform.backends import openvino as openvino_backend
from accel_platform.backends import pytorch as pytorch_backend
from accel_platform.backends.base import Confirmation, Placement
from accel_platform.backends.detect import Inventory
from accel_platform.backends.registry import runtime_for
from accel_platform.bench.measure import worker
from accel_platform.bench.plan.plan import Cell
from accel_platform.bench.plan.run_options import EFFORTS
from accel_platform.bench.prepare.artifacts import Artifacts
from accel_platform.bench.run.recorder import CellFailure, Recorder, RunContext, RunSummary
from accel_platform.bench.run.worker_pool import MeasuredCell
from accel_platform.events import EventLog
from accel_platform.events.types import DeviceObserved, HostObserved, ResultRecorded
from accel_platform.settings import Settings
from accel_platform.warehouse.publish import refresh
from accel_platform.warehouse.reader import Reader
from accel_platform.workloads.model_catalog import resolve_model

SPEC = resolve_model("bert-tiny")
SHAPE = (1, 16)
SAMPLING = replace(EFFORTS["quick"].sampling, min_time_s=0.05, max_time_s=0.3, warmup_max_s=0.1)
MODULES = {"cpu": "pytorch", "openvino": "openvino", "onnxruntime": "onnxruntime"}


class Bench:
    """A run whose children work in this process, so that their backend can be another."""

    def __init__(self, prepared: Artifacts, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
        self.prepared, self.monkeypatch = prepared, monkeypatch
        self.settings, self.log, self.summary = settings, EventLog.open(settings), RunSummary()
        host = HostObserved(hostname="h", os="o", cpu_model="c", cpu_cores_logical=2, memory_mib=1)
        devices = [
            DeviceObserved.model_validate(
                {"hardware": name, "backend": module, "available": True, "device_id": "cpu-1", "name": "a processor"}
            )
            for name, module in MODULES.items()
        ]
        inventory = Inventory("host", host, tuple(devices))
        effort = replace(EFFORTS["quick"], sampling=SAMPLING)
        self.recorder = Recorder(RunContext(settings, self.log, inventory, effort, threads=1), "run", self.summary)

    def measure(self, hardware: str, backend: type | None = None, change: Callable[[Any], None] | None = None) -> Any:
        """What becomes of a cell that this backend measures; `change` is made to what the child says."""
        if backend is not None:
            module, _, name = runtime_for(hardware).entry_point.partition(":")
            self.monkeypatch.setattr(f"accel_platform.backends.{module}.{name}", backend)
        job = {
            "hardware": hardware,
            "mode": "inference",
            "precision": "float32",
            "threads": 1,
            "processes": 1,
            "energy": None,
            "artifact": str(self.prepared.artifact("weights" if hardware == "cpu" else "onnx", 16)),
            "sampling": asdict(SAMPLING),
            "work": "all",
            "cells": [str(self.prepared.data(SHAPE))],
            "traces": [],
        }
        said: list[dict[str, Any]] = []
        worker.measure_job(job, said.append)
        loaded, answer = said
        assert answer["kind"] == "measured", answer
        if change is not None:
            change(answer)
        return self.recorder.record_outcome(MeasuredCell(Cell(SPEC, hardware, *SHAPE), answer, loaded))


@pytest.fixture
def bench(prepared: Artifacts, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(prepared, settings, monkeypatch)


def refused(outcome: CellFailure | None, failure_class: str, words: str) -> None:
    assert outcome is not None
    assert outcome.cause.failure_class == failure_class
    assert words in outcome.cause.reason
    result = next(payload for payload in outcome.payloads if isinstance(payload, ResultRecorded))
    assert (result.status, result.failure_class, result.reason) == ("failed", failure_class, outcome.cause.reason)


@pytest.mark.parametrize("hardware", MODULES)
def test_an_honest_backend_is_believed(bench: Bench, hardware: str) -> None:
    assert bench.measure(hardware) is None
    (result,) = bench.summary.results
    assert result.status == "ok"
    assert result.environment["device_confirmed"]
    assert result.environment["verified"]


class Constant(onnxruntime_backend.OnnxRuntimeBackend):
    def outputs(self) -> Any:
        return {name: np.ones_like(values) for name, values in super().outputs().items()}


class Blind(pytorch_backend.PyTorchBackend):
    """It runs the model once, and answers with that ever after."""

    def run(self) -> None:
        if self._last is None:
            super().run()


class Fallen(pytorch_backend.PyTorchBackend):
    """It was asked for an accelerator, found none, and works on the processor without a word."""

    def __init__(self, *, device: str, threads: int) -> None:
        super().__init__(device=device, threads=threads)
        self._asked = "cuda"

    def confirm(self) -> Confirmation:
        return replace(super().confirm(), asked=self._asked)


class FallenGraph(openvino_backend.OpenVINOBackend):
    """It compiles for the processor, and calls that GPU."""

    def __init__(self, *, device: str, threads: int) -> None:
        super().__init__(device="CPU", threads=threads)

    def confirm(self) -> Confirmation:
        return replace(super().confirm(), asked="GPU")


class FallenSession(onnxruntime_backend.OnnxRuntimeBackend):
    """It names a provider that its session does not have."""

    def confirm(self) -> Confirmation:
        return replace(super().confirm(), asked="CUDAExecutionProvider")

    def placement(self) -> Placement:
        self.provider = "CUDAExecutionProvider"
        return super().placement()


def test_constant_outputs_are_refused(bench: Bench) -> None:
    refused(bench.measure("onnxruntime", Constant), "wrong_output", "one constant")


def test_outputs_that_do_not_follow_the_input_are_refused(bench: Bench) -> None:
    refused(bench.measure("cpu", Blind), "wrong_output", "do not depend on the input")


def test_a_model_on_another_device_than_its_label_is_refused(bench: Bench) -> None:
    refused(bench.measure("cpu", Fallen), "device_not_confirmed", "cuda was asked for, and the runtime says")


def test_a_graph_on_another_device_than_its_label_is_refused(bench: Bench) -> None:
    assert "GPU" not in openvino.Core().available_devices
    refused(bench.measure("openvino", FallenGraph), "device_not_confirmed", "ran on CPU")


def test_a_session_without_the_provider_of_its_label_is_refused(bench: Bench) -> None:
    refused(bench.measure("onnxruntime", FallenSession), "device_not_confirmed", "ran on CPUExecutionProvider")


def test_operators_all_left_elsewhere_are_evidence_enough(bench: Bench) -> None:
    def silent(answer: Any) -> None:
        answer["confirmed"] = None

    refused(bench.measure("onnxruntime", FallenSession, silent), "device_not_confirmed", "every operator")


def test_samples_without_spread_are_refused(bench: Bench) -> None:
    def still(answer: Any) -> None:
        answer["samples_ns"] = (1_500_000,) * 40

    refused(bench.measure("cpu", change=still), "fake", "very same 1.5 ms")


@pytest.mark.slow
def test_the_same_timings_on_two_hardware_take_both_out_of_use(bench: Bench, settings: Settings) -> None:
    assert bench.measure("onnxruntime") is None
    (honest,) = bench.summary.results

    def copy(answer: Any) -> None:
        answer["samples_ns"] = tuple(round(1.25 * sample) for sample in honest.samples_ns)

    outcome = bench.measure("openvino", change=copy)
    refused(outcome, "fake", "as on onnxruntime: every one of")
    bench.recorder.record_failure(outcome)
    bench.recorder.flush()
    assert [result.status for result in bench.summary.results] == ["failed", "failed"]
    assert (bench.summary.ok, bench.summary.failed) == (0, 2)
    refresh(settings)
    reader = Reader(settings)
    assert reader.rows("SELECT state FROM compat_matrix") == [{"state": "failed"}] * 2
    stored = reader.rows("SELECT hardware, status FROM results ORDER BY hardware")
    assert stored == [{"hardware": "onnxruntime", "status": "ok"}, {"hardware": "openvino", "status": "failed"}]
    assert reader.rows("SELECT count(*) AS n FROM usable_results") == [{"n": 0}]
