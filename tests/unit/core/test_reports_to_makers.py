"""Reports of libraries to their makers: none is sent, and no identifier of the user is stored."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

LIBRARIES = """
import sys

def refuse(event, arguments):
    if event == "socket.getaddrinfo":
        raise OSError(f"{arguments[0]} was looked up")

sys.addaudithook(refuse)
import accel_platform
import numpy, nncf, onnx, onnxruntime, onnxruntime_genai, openvino
from onnx import TensorProto, helper

values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy"]
graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "negate", values[:1], values[1:])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
onnx.save(model, sys.argv[1])
session = onnxruntime.InferenceSession(sys.argv[1])
assert session.run(None, {"x": numpy.float32([2])})[0] == -2
assert openvino.convert_model(sys.argv[1])
print(type(nncf.telemetry.telemetry).__name__)
"""


@pytest.mark.slow
def test_libraries_neither_report_nor_store_an_identifier(tmp_path: Path) -> None:
    """OpenVINO, NNCF and ONNX Runtime report by default, and store who reports in the home directory."""
    home = tmp_path / "home"
    home.mkdir()
    kept = {name: value for name, value in os.environ.items() if "TELEMETRY" not in name and not name.startswith("CI")}
    command = [sys.executable, "-c", LIBRARIES, str(tmp_path / "model.onnx")]
    run = subprocess.run(command, env={**kept, "HOME": str(home)}, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() != ["NNCFTelemetry"]
    assert [path for path in home.rglob("*") if path.is_file()] == []
