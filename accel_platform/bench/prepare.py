"""The preparing child: writes a model's weights, graphs, inputs and float32 reference outputs. Nothing is timed.

It is a process of its own so that torch's exporter is neither in the measuring process's memory nor in its load time.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accel_platform.bench import quantise
from accel_platform.bench.artefacts import Artefacts, Shape
from accel_platform.bench.aten import write_graph
from accel_platform.bench.failures import classify
from accel_platform.bench.process import Message, serve
from accel_platform.workloads.families import ModelSpec

if TYPE_CHECKING:
    import torch

    from accel_platform.backends.registry import Artefact

REFERENCE = "PyTorch, eager, float32, on the processor"


def prepare(job: Message, send: Callable[[Message], None]) -> None:
    """Make what is missing; says `prepared`, or `failed` with the artefact that could not be made."""
    import torch

    from accel_platform.workloads.build import build_model

    torch.set_num_threads(job["threads"])
    spec = ModelSpec(**job["model"])
    artefacts = Artefacts(Path(job["folder"]))
    shapes: list[Shape] = [(batch, length) for batch, length in job["shapes"]]
    artefacts.folder.mkdir(parents=True, exist_ok=True)
    model: Any = build_model(spec)
    if not artefacts.weights.exists():
        with _published(artefacts.weights) as part:
            model.save_pretrained(part)
    for shape in shapes:
        if not artefacts.data(shape).exists():
            _write_data(model, spec, shape, artefacts.data(shape))
    writers: dict[Artefact, Callable[[Path], None]]
    for length in dict.fromkeys(length for _, length in shapes):
        plain = artefacts.graph("onnx", length)
        # In this order: a quantised graph is made of the plain one.
        writers = {
            "onnx": partial(_write_onnx, model, spec, length),
            "onnx-int8-dynamic": partial(quantise.dynamic, plain),
            "onnx-int8-static": partial(quantise.static, plain, spec, length),
            "aten": partial(_write_aten, model, spec, length),
        }
        broken: dict[Artefact, tuple[str, str]] = {}
        for kind, write in writers.items():
            quantised = kind.startswith("onnx-")
            wanted = kind in job["kinds"] or (kind == "onnx" and any(k.startswith("onnx-") for k in job["kinds"]))
            if not wanted or artefacts.graph(kind, length).exists():
                continue
            try:
                if not (quantised and "onnx" in broken):
                    with _published(artefacts.graph_folder(kind, length)) as part:
                        write(part)
                    continue
                failure_class, reason = broken["onnx"]
            except Exception as error:  # noqa: BLE001 - whatever the exporter trips over ends the cells that need it
                failure_class, reason = broken[kind] = classify(error)
            send({"kind": "failed", "artefact": kind, "failure_class": failure_class, "reason": reason})
    send({"kind": "prepared"})


def _write_data(model: Any, spec: ModelSpec, shape: Shape, path: Path) -> None:
    import numpy as np
    import torch

    from accel_platform.workloads.build import tensors_of
    from accel_platform.workloads.inputs import make_inputs

    batch_size, length = shape
    first, other = (make_inputs(spec, batch_size=batch_size, sequence_length=length, seed=seed) for seed in (0, 1))
    with torch.inference_mode():
        output = tensors_of(model(**{name: torch.from_numpy(array) for name, array in first.items()}))
    arrays = {f"input/{name}": array for name, array in first.items()}
    arrays |= {f"other/{name}": array for name, array in other.items()}
    arrays |= {f"reference/{name}": value.numpy() for name, value in output.items()}
    part = path.with_name(f".{path.stem}-{os.getpid()}.npz")
    np.savez(part, allow_pickle=False, **arrays)
    part.replace(path)


def _write_onnx(model: Any, spec: ModelSpec, length: int | None, folder: Path) -> None:
    import torch

    positional, arguments, names = _positional(model, spec, length)
    batch = torch.export.Dim("batch", min=1, max=4096)
    with torch.no_grad():
        torch.onnx.export(
            positional,
            tuple(arguments.values()),
            folder / "model.onnx",
            input_names=list(arguments),
            output_names=names,
            dynamic_shapes={"values": tuple({0: batch} for _ in arguments)},
            dynamo=True,
            external_data=True,
            verbose=False,
        )


def _write_aten(model: Any, spec: ModelSpec, length: int | None, folder: Path) -> None:
    import torch

    positional, arguments, names = _positional(model, spec, length)
    with torch.no_grad():
        write_graph(positional, arguments, names, folder)


def _positional(
    model: Any, spec: ModelSpec, length: int | None
) -> tuple[torch.nn.Module, dict[str, torch.Tensor], list[str]]:
    """The model with positional inputs and a plain tuple of tensors, as graphs have; example inputs; output names."""
    import torch

    from accel_platform.workloads.build import tensors_of
    from accel_platform.workloads.inputs import make_inputs

    # Two items: a batch of one would be taken for a constant.
    example = make_inputs(spec, batch_size=2, sequence_length=length)
    arguments = {name: torch.from_numpy(array) for name, array in example.items()}

    class Positional(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *values: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return tuple(tensors_of(self.model(**dict(zip(arguments, values, strict=True)))).values())

    with torch.no_grad():
        names = list(tensors_of(model(**arguments)))
    return Positional().eval(), arguments, names


@contextmanager
def _published(folder: Path) -> Iterator[Path]:
    """A folder to write into, which gets its name only once it is whole; a killed child leaves no half of one."""
    part = folder.with_name(f".{folder.name}-{os.getpid()}")
    part.mkdir()
    try:
        yield part
        part.rename(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


if __name__ == "__main__":
    serve(prepare)
