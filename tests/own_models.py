"""One small model in every form that a user may have it in."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from accel_platform.workloads.build import build_model
from accel_platform.workloads.sources import spec_of_source

IMAGE = {"x": "3x32x32"}
CODE = """
import torch
from torch import nn
from beside import WIDTH

print("a module may print")

class Net(nn.Module):
    def __init__(self, width=WIDTH):
        super().__init__()
        self.filter, self.classes = nn.Conv2d(3, width, 3, stride=2), nn.Linear(width, 10)

    def forward(self, x):
        return self.classes(torch.relu(self.filter(x)).mean((2, 3)))

class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.out = nn.Embedding(100, 16), nn.Linear(16, 4)

    def forward(self, ids, mask):
        return {"scores": self.out(self.table(ids) * mask.unsqueeze(-1)), "parts": (ids.float(), [mask.float()])}

def wide():
    return Net(width=48)

def ends():
    raise SystemExit("no weights here")

def other():
    return 3
"""


def write_forms(folder: Path) -> Path:
    """Write the model as code, TorchScript, exported program, ONNX and OpenVINO file, and return the folder."""
    import openvino
    import torch

    (folder / "net.py").write_text(CODE)
    (folder / "beside.py").write_text("WIDTH = 32\n")
    model: Any = build_model(spec_of_source("net.py:Net", folder=folder, inputs=IMAGE)).body
    example = torch.zeros(2, 3, 32, 32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, of what it has superseded
        torch.jit.script(model).save(str(folder / "script.pt"))
        batch = torch.export.Dim("batch", min=1, max=64)
        torch.export.save(torch.export.export(model, (example,), dynamic_shapes=({0: batch},)), folder / "program.pt2")
        names: dict[str, Any] = {"input_names": ["x"], "output_names": ["y"]}
        sizes = {"x": {0: "batch"}, "y": {0: "batch"}}
        torch.onnx.export(model, (example,), folder / "graph.onnx", **names, dynamic_axes=sizes, dynamo=False)
    openvino.save_model(openvino.convert_model(folder / "graph.onnx"), folder / "ir.xml", compress_to_fp16=False)
    return folder
