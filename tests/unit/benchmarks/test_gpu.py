"""Outputs of the GPU proof: kernels that the predictor reads, and predictions held against results."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from accel_platform.backends.probes import PROBES
from accel_platform.events import EventLog
from accel_platform.settings import Settings
from accel_platform.workloads.cost import cost_of
from accel_platform.workloads.operators import trace_module
from factories import event, result
from predictor.operators import kernels
from predictor.operators.kernels import load_kernels

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))

import gpu_campaign
import gpu_kernels
import gpu_predictions
import gpu_proof


def test_the_campaign_has_sixty_models_of_four_modalities_in_four_precisions() -> None:
    models = gpu_campaign.models()
    assert len({model.model_id for model in models}) == len(models) >= 60
    assert {model.modality for model in models} == {"text", "vision", "audio", "multimodal"}
    passes = gpu_campaign.passes("cuda")
    assert {one.precision for one in passes} == {"float32", "tf32", "float16", "bfloat16"}
    assert {one.hardware for one in passes} == {"cuda", "cuda:compile", "cuda:graph"}
    assert {one.hardware for one in gpu_campaign.passes("cpu")} == {"cpu", "cpu:compile"}


def test_the_campaigns_work_is_written_down_as_it_is_traced() -> None:
    models = gpu_campaign.models()
    assert all(gpu_campaign._flops(model) > 0 for model in models)
    for model in models[:4]:
        assert gpu_campaign._flops(model) == pytest.approx(cost_of(model, batch_size=1).flops, rel=1e-3)


def test_swept_kernels_have_the_shape_that_the_predictor_reads(tmp_path: Path) -> None:
    rows = []
    for operator, shape in gpu_kernels.shapes(0.02, share=0.02):
        call = gpu_kernels.operation(operator, shape, "float32", torch.device("cpu"))
        if call is not None:
            latency = gpu_kernels.time_ms(call, torch.device("cpu"), in_graph=False, seconds=0.001)
            dimensions = {name: shape.get(name) for name in gpu_kernels.DIMENSIONS}
            rows.append({"operator": operator, **dimensions, "latency_ms": latency})
    # The name of a device is needed to price them; the file is this test's alone.
    named = [{"device": "NVIDIA H100 SXM5 80GB", "precision": "float32", "framework": "pytorch", **row} for row in rows]
    gpu_kernels.write(named, tmp_path / "kernels.parquet")
    tables = load_kernels([tmp_path / "kernels.parquet"])
    kinds = {"linear", "batched_matmul", "convolution", "layer_norm", "softmax", "elementwise"}
    assert set(tables) == kinds, "attention in float32 is priced as its products"
    read = [row for row in rows if row["operator"] != "attention"]
    assert len(read) < len(rows)
    assert sum(len(table.roofline_ms) for table in tables.values()) == len(read)


def test_swept_convolutions_are_read_as_those_of_models_are_traced() -> None:
    drawn = [shape for operator, shape in gpu_kernels.shapes(1.0, share=0.2) if operator == "convolution"]
    assert {(shape.get("edges", 2), shape.get("groups", 1) > 1) for shape in drawn} == {
        (edges, grouped) for edges in (1, 2) for grouped in (False, True)
    }
    rows = pd.DataFrame([{name: shape.get(name) for name in gpu_kernels.DIMENSIONS} for shape in drawn])
    _, dimensions = kernels._convolution(rows.assign(b=2), "convolution")
    for shape, read in zip(drawn, dimensions, strict=True):
        one = torch.nn.Conv1d if shape.get("edges") == 1 else torch.nn.Conv2d
        channels, size = shape["input_channel"], shape["input_size"]
        with torch.device("meta"):
            layer = one(channels, shape["output_channel"], shape["kernel_size"], stride=shape["stride"],
                        padding=shape["padding"], groups=shape.get("groups", 1), bias=False)  # fmt: skip

        class Named(torch.nn.Module):
            def __init__(self, layer: torch.nn.Module = layer) -> None:
                super().__init__()
                self.layer = layer

            def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
                return {"out": self.layer(x)}

        place = (channels, *[size] * shape.get("edges", 2))

        def batch_of(items: int, place: tuple[int, ...] = place) -> dict[str, torch.Tensor]:
            return {"x": torch.empty(items, *place, device="meta")}

        profile = trace_module("one", Named(), batch_of)
        [traced] = [operator for operator in profile.of_two if operator.kind == "convolution"]
        assert tuple(read) == pytest.approx(traced.dimensions), shape


def test_the_same_shapes_are_drawn_each_time() -> None:
    assert list(gpu_kernels.shapes(1.0)) == list(gpu_kernels.shapes(1.0))


def test_errors_of_predictions_are_counted_against_results() -> None:
    row = {"model_id": "bert-base", "modality": "text", "precision": "float32", "sequence_length": "128",
           "latency_ms": "2.0", "low": "1.5", "high": "3.0"}  # fmt: skip
    predicted = [{**row, "batch_size": "1"}, {**row, "batch_size": "8"}, {**row, "batch_size": "32", "latency_ms": ""}]

    def measured(batch: int, ms: float, **fields: Any) -> Any:
        same = {"model_id": "bert-base", "hardware": "cuda", "precision": "float32", "sequence_length": 128}
        return result(**same, batch_size=batch, samples_ns=(round(ms * 1e6),) * 11, **fields)

    compared = gpu_predictions.compare(predicted, [measured(1, 1.6), measured(8, 4.0), measured(32, 1.0)])
    error = pytest.approx((0.25 + 0.5) / 2)
    assert compared["groups"]["all"] == {"cells": 2, "median_error": error, "inside_interval": 0.5}
    assert compared["worst"][0]["batch_size"] == "8"
    assert compared["left_out"] == {"not predicted": 1}


@pytest.mark.slow
def test_a_proof_goes_on_with_the_device_that_it_began_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # It looks at the device in a process that loads torch, and finds the same each time.
    asked, look = list[list[str]](), subprocess.run
    found = cache(lambda *command: look(command, capture_output=True, text=True, check=False))

    def look_once(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        asked.append(command)
        return found(*command)

    monkeypatch.setattr(subprocess, "run", look_once)

    def report(device: str) -> str:
        stages = {"contract": {"status": "fail"}, "memory": {"status": "pass", "machine": {"device": device}}}
        return json.dumps({"stages": stages})

    out, earlier, home = (tmp_path / name for name in ("out", "earlier", "home"))
    out.mkdir()
    earlier.mkdir()
    arguments = argparse.Namespace(out=out, earlier=earlier, home=home, hardware="cpu")
    gpu_proof._require_one_device(arguments)
    (out / gpu_proof.REPORT).write_text(report(str(PROBES["cpu"](None)["name"])))
    gpu_proof._require_one_device(arguments)
    (earlier / gpu_proof.REPORT).write_text(report("NVIDIA H200"))
    with pytest.raises(SystemExit, match="earlier holds results of NVIDIA H200"):
        gpu_proof._require_one_device(arguments)
    arguments.earlier = None
    EventLog.open(Settings(home=home)).append([event(result(hardware="cpu", device_name="NVIDIA L4"))])
    with pytest.raises(SystemExit, match="home holds results of NVIDIA L4"):
        gpu_proof._require_one_device(arguments)
    assert len(asked) == 4


def test_products_in_fp8_leave_out_only_what_the_device_refuses() -> None:
    made = gpu_kernels._scaled_product({"m": 17, "n": 32, "k": 16}, torch.device("cpu"))
    assert made is not None
    assert gpu_kernels._scaled_product({"m": 16, "n": 17, "k": 16}, torch.device("cpu")) is None
