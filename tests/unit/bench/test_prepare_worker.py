"""Order and surroundings of the graphs that a preparing worker writes, with stand-ins for the exporters."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from accel_platform.backends.registry import Artifact
from accel_platform.bench.prepare import decoder_export, quantization, worker
from accel_platform.bench.prepare.artifacts import Artifacts
from accel_platform.errors import storage_errno
from accel_platform.workloads.model_catalog import resolve_model
from faults import no_room

SPEC = resolve_model("gpt2-tiny")
SWITCH = "TRANSFORMERS_DISABLE_TORCH_CHECK"


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of the graphs that are written, in order; none is with the models' own checks."""
    names: list[str] = []

    def stand_in(name: str, file: str, folder_at: int) -> Callable[..., None]:
        def write(*arguments: Any) -> None:
            assert os.environ[SWITCH] == "1", name
            names.append(name)
            (arguments[folder_at] / file).touch()

        return write

    name = "openvino_model.xml"
    monkeypatch.setattr(decoder_export, "write_openvino_decoder", stand_in("plain decoder", name, 1))
    monkeypatch.setattr(decoder_export, "compress_openvino_decoder", stand_in("quantized decoder", name, 2))
    monkeypatch.setattr(worker, "_write_onnx", stand_in("plain graph", "model.onnx", 3))
    monkeypatch.setattr(quantization, "quantize_dynamic_ranges", stand_in("quantized graph", "model.onnx", 1))
    return names


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("openvino-decoder-int8", ["plain decoder", "quantized decoder"]),
        ("onnx-int8-dynamic", ["plain graph", "quantized graph"]),
    ],
)
def test_a_quantized_graph_alone_is_made_of_a_plain_one_without_checks(
    kind: Artifact, expected: list[str], written: list[str], tmp_path: Path
) -> None:
    artifacts = Artifacts(tmp_path)
    worker._write_graph(None, SPEC, artifacts, kind, 16)
    assert written == expected
    assert artifacts.graph(kind, 16).exists()
    assert SWITCH not in os.environ


def test_a_full_disk_is_no_failure_of_the_export(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(*_: Any) -> None:
        raise OSError("problem writing element 54272 to file")

    monkeypatch.setattr(worker, "_write_graph", full)
    sent: list[Any] = []
    job = {"model": asdict(resolve_model("bert-tiny")), "folder": str(tmp_path / "prepared"), "threads": 1}
    worker.prepare_job({**job, "shapes": [(1, 8)], "kinds": ["onnx"], "reference": False}, sent.append)
    [failed] = [message for message in sent if message["kind"] == "failed"]
    assert failed["failure_class"] == "error"
    assert (
        failed["reason"]
        == f"{tmp_path / 'prepared'} cannot be used: the disk is full. Free some space there and try again."
    )


def test_weights_that_find_no_room_say_so(tmp_path: Path) -> None:
    sent: list[Any] = []
    folder = tmp_path / "prepared"
    job = {"model": asdict(resolve_model("bert-tiny")), "folder": str(folder), "threads": 1}
    with no_room(100_000):
        worker.prepare_job({**job, "shapes": [(1, 8)], "kinds": ["onnx"]}, sent.append)
    assert {message["artifact"] for message in sent} == {"weights", "onnx"}
    limits = f"{folder} cannot be used: this system limits how large a file may become. Raise the limit (`ulimit -f`)."
    assert {(message["failure_class"], message["reason"]) for message in sent} == {("error", limits)}


def test_no_room_is_known_by_the_words_of_torch(tmp_path: Path) -> None:
    with no_room(100_000), pytest.raises(RuntimeError) as failed:
        torch.save({"weight": torch.zeros(100_000)}, tmp_path / "state.pt")
    assert storage_errno(failed.value) == errno.ENOSPC
