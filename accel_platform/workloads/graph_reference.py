"""Reference outputs of a graph file: ONNX Runtime without optimization, or OpenVINO on the processor in full precision.

The measured graph is optimized, so an optimizer's error shows. An OpenVINO file has no second reader.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch


class GraphReference(torch.nn.Module):
    """A graph that computes on the processor, for reference outputs alone."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self._run = _openvino(path) if path.suffix == ".xml" else _onnxruntime(path)

    def forward(self, *values: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the outputs by name, of inputs in the file's order."""
        return {name: torch.from_numpy(array) for name, array in self._run([value.numpy() for value in values]).items()}


def _onnxruntime(path: Path) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [port.name for port in session.get_inputs()]
    outputs = [port.name for port in session.get_outputs()]

    def run(arrays: list[Any]) -> dict[str, Any]:
        return dict(zip(outputs, session.run(outputs, dict(zip(names, arrays, strict=True))), strict=True))

    return run


def _openvino(path: Path) -> Any:
    import openvino

    compiled = openvino.Core().compile_model(
        path, "CPU", {"INFERENCE_PRECISION_HINT": "f32", "EXECUTION_MODE_HINT": "ACCURACY"}
    )

    def run(arrays: list[Any]) -> dict[str, Any]:
        return {port.get_any_name(): array.copy() for port, array in compiled(arrays).items()}

    return run
