"""Worker process that writes a model's weights, graphs, inputs and float32 reference outputs.

It is separate so that torch's exporter affects neither the memory nor the load time of the measuring process.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accel_platform.atomic_write import make_directory
from accel_platform.bench.measure.failures import classify
from accel_platform.bench.prepare import decoder_export, quantization
from accel_platform.bench.prepare.artifacts import Artifacts, Exporter, Shape
from accel_platform.bench.prepare.aten_export import write_graph
from accel_platform.bench.prepare.description import is_described, write_description
from accel_platform.errors import storage_unavailable
from accel_platform.subprocesses.json_child import Message, serve
from accel_platform.workloads.model_catalog import ModelSpec
from accel_platform.workloads.sources import GRAPHS, is_sourced, save_source, source_file

if TYPE_CHECKING:
    import torch

    from accel_platform.backends.registry import Artifact
    from accel_platform.events.types import Mode
    from accel_platform.workloads.heads import Head

_SAME_ITEM = 1e-4
"""Relative error between batches of two sizes up to which an item's outputs are the same: sums are taken otherwise."""
_REFERENCE = "PyTorch, eager, float32, on the processor"
_REFERENCES = {
    "onnx": "ONNX Runtime without optimization, float32, on the processor",
    "openvino": "OpenVINO without reduced precision, on the processor",
}


def reference_of(spec: ModelSpec) -> str:
    """Return what computes the reference outputs of a model."""
    return _REFERENCES.get(spec.architecture, _REFERENCE)


def prepare_job(job: Message, send: Callable[[Message], None]) -> None:
    """Make the missing artifacts; send `prepared`, and `failed` for each artifact or shape that could not be made."""
    import torch

    torch.set_num_threads(job["threads"])
    spec = ModelSpec.of_job(job["model"])
    artifacts = Artifacts(Path(job["folder"]), job.get("exporter", "dynamo"))
    shapes: list[Shape] = [(batch, length) for batch, length in job["shapes"]]
    mode, head = job.get("mode", "inference"), job.get("head", "AutoModel")
    try:
        make_directory(artifacts.folder)
        if not is_described(spec, artifacts):
            # First, because a model too large for the memory may kill the process.
            write_description(spec, artifacts)
        model, drawn = _build(spec, head, artifacts)
    except Exception as error:  # noqa: BLE001 - a custom config may fail in any way
        failure_class, reason = _classify_failure(error, artifacts.folder)
        for kind in ("weights", *job["kinds"]):
            send({"kind": "failed", "artifact": kind, "failure_class": failure_class, "reason": reason})
        return

    # Export graphs first, because a reference too large for the memory may kill the process.
    for kind, length in _missing_graphs(job["kinds"], shapes, artifacts):
        with _report_failure(send, artifacts.folder, "not_exported", artifact=kind):
            _write_graph(model, spec, artifacts, kind, length)
    reference: bool = job.get("reference", True)
    for shape in shapes:
        path = artifacts.data(shape) if reference else artifacts.inputs(shape)
        if not path.exists():
            with _report_failure(send, artifacts.folder, "error", shape=shape):
                _write_data(_build_arrays(model, spec, shape, mode, head, reference=reference), path)
    send({"kind": "prepared", "drawn": drawn})


def _build(spec: ModelSpec, head: Head, artifacts: Artifacts) -> tuple[Any, tuple[str, ...]]:
    """Return the model and the names of its parameters that are random; write its weights unless they are there."""
    from accel_platform.workloads.build import build_with_gaps

    model: Any
    model, drawn = build_with_gaps(spec, head=head)
    if not artifacts.weights.exists():
        with _publish_folder(artifacts.weights) as part:
            _write_weights(model, spec, part)
    return model, drawn


def _missing_graphs(
    kinds: Iterable[Artifact], shapes: Iterable[Shape], artifacts: Artifacts
) -> Iterator[tuple[Artifact, int | None]]:
    """Yield kind and length of each graph that is still missing when its turn comes."""
    lengths = list(dict.fromkeys(length for _, length in shapes))
    for kind in kinds:
        for length in lengths:
            if kind != "weights" and not artifacts.graph(kind, length).exists():
                yield kind, length


@contextmanager
def _report_failure(send: Callable[[Message], None], folder: Path, unclassified: str, **of: Any) -> Iterator[None]:
    """Send a failure of the block, which writes into `folder`, instead of raising it.

    `unclassified` is its class where the error tells none.
    """
    try:
        yield
    except Exception as error:  # noqa: BLE001 - whatever it trips over ends the cells that need it
        failure_class, reason = _classify_failure(error, folder, unclassified)
        send({"kind": "failed", **of, "failure_class": failure_class, "reason": reason})


def _classify_failure(error: Exception, folder: Path, unclassified: str = "error") -> tuple[str, str]:
    """Return failure class and reason of what writes into `folder`; `unclassified` where the error tells no class."""
    failure_class, reason = classify(error)
    if (no_storage := storage_unavailable(error, folder)) is not None:
        return failure_class, str(no_storage)
    return unclassified if failure_class == "error" else failure_class, reason


def _write_weights(model: Any, spec: ModelSpec, folder: Path) -> None:
    if is_sourced(spec):
        save_source(model, spec, folder)
        return
    model.save_pretrained(folder)
    if (attention := spec.config.get("attn_implementation")) is not None:
        # Add it to the file, because transformers reads it but does not write it.
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "attn_implementation": attention}))


def _build_arrays(
    model: Any, spec: ModelSpec, shape: Shape, mode: Mode, head: Head, *, reference: bool
) -> dict[str, Any]:
    """Return two inputs and the reference outputs of the first, named as in `Artifacts.data`."""
    from accel_platform.bench.measure import generation, training
    from accel_platform.workloads.inputs import describe_inputs, make_inputs

    batch_size, length = shape
    first, other = (make_inputs(spec, batch_size=batch_size, sequence_length=length, seed=seed) for seed in (0, 1))
    if mode == "generation":
        if head == "AutoModelForCausalLM" and length is not None:
            # Check the length with the new tokens, because they need positions too.
            describe_inputs(spec, batch_size=batch_size, sequence_length=length + generation.NEW_TOKENS)
        first, other = (generation.make_prompt(inputs, model.config) for inputs in (first, other))
        known = generation.compute_reference(model, first) if reference else {}
    elif mode == "training":
        first, other = (
            training.make_batch(model, inputs, head, seed=seed) for seed, inputs in enumerate((first, other))
        )
        step = training.first_step(model, training.to_device(model, first)) if reference else {}
        known = {f"reference/{name}": value for name, value in step.items()} | training.trainable_mask(model)
    else:
        known = _build_reference(model, first, batch_size) if reference else {}
    inputs = {f"input/{name}": array for name, array in first.items()}
    return {**inputs, **{f"other/{name}": array for name, array in other.items()}, **known}


def _build_reference(model: Any, inputs: dict[str, Any], batch_size: int) -> dict[str, Any]:
    """Return the reference outputs of a pass; of a large batch those of some items alone, with their indices.

    A large batch is computed whole where an output of one item depends on others, such as likeness of texts and images.
    """
    from accel_platform.bench.measure.verification import spread_items
    from accel_platform.workloads.build import outputs_of

    items = spread_items(batch_size)
    if items is not None and all(len(array) == batch_size for array in inputs.values()):
        some, fewer = (
            outputs_of(model, {name: array[of] for name, array in inputs.items()}) for of in (items, items[:2])
        )
        if all(_is_of_items(fewer[name], values, len(items)) for name, values in some.items()):
            return {"items/compared": items, **{f"reference/{name}": value for name, value in some.items()}}
    return {f"reference/{name}": value for name, value in outputs_of(model, inputs).items()}


def _is_of_items(first_two: Any, values: Any, batch_size: int) -> bool:
    """Return whether an output has a row per item of a batch, and the same for its first two items alone."""
    from accel_platform.bench.measure.verification import relative_rms

    rows = values.shape[1:]
    if values.shape != (batch_size, *rows) or first_two.shape != (2, *rows):
        return False
    return relative_rms(first_two, values[:2]) < _SAME_ITEM


def _write_data(arrays: dict[str, Any], path: Path) -> None:
    import numpy as np

    part = path.with_name(f".{path.stem}-{os.getpid()}.npz")
    np.savez(part, allow_pickle=False, **arrays)
    part.replace(path)


def _write_graph(model: Any, spec: ModelSpec, artifacts: Artifacts, kind: Artifact, length: int | None) -> None:
    """Write the graph of an artifact, and the plain graph that a quantized one is made of."""
    with _disable_transformers_checks():
        if "decoder" in kind:
            _write_decoder(model, artifacts, kind)
        elif kind.startswith("onnx-int8"):
            _write_quantized(model, spec, artifacts, kind, length)
        else:
            write = _write_aten if kind == "aten" else _WRITERS[artifacts.exporter]
            with _publish_folder(artifacts.graph_folder(kind, length)) as part:
                write(model, spec, length, part)


def _write_quantized(model: Any, spec: ModelSpec, artifacts: Artifacts, kind: Artifact, length: int | None) -> None:
    plain = Artifacts(artifacts.folder).graph("onnx", length)
    if not plain.exists():
        with _publish_folder(plain.parent) as part:
            _write_onnx(model, spec, length, part)
    with _publish_folder(artifacts.graph_folder(kind, length)) as part:
        if kind == "onnx-int8-dynamic":
            quantization.quantize_dynamic_ranges(plain, part)
        else:
            quantization.quantize_static_ranges(plain, spec, length, part)


def _write_decoder(model: Any, artifacts: Artifacts, kind: Artifact) -> None:
    _, _, quantized = kind.partition("decoder-")
    with _publish_folder(artifacts.graph_folder(kind, None)) as part:
        if kind.startswith("onnx"):
            decoder_export.write_onnx_decoder(model, artifacts.weights, quantized or "float32", part)
        elif quantized:
            plain = artifacts.graph("openvino-decoder", None)
            if not plain.exists():
                _write_decoder(model, artifacts, "openvino-decoder")
            decoder_export.compress_openvino_decoder(plain, quantized, part)
        else:
            decoder_export.write_openvino_decoder(model, part)


def _write_onnx(model: Any, spec: ModelSpec, length: int | None, folder: Path) -> None:
    if spec.architecture == "onnx":
        _copy_onnx(source_file(spec), folder / "model.onnx")
        return
    if not _export_onnx(model, spec, length, folder / "model.onnx", batch=2):
        # Code that loops over the items of a batch gives a graph of one batch size. Export it for one item, the usual
        # size; runtimes reject other sizes themselves.
        _export_onnx(model, spec, length, folder / "model.onnx", batch=1)


def _copy_onnx(source: Path, path: Path) -> None:
    """Copy a graph with its weights beside it, wherever they lay."""
    import onnx

    onnx.save_model(onnx.load(source), path, save_as_external_data=True, location=f"{path.name}.data")


def _export_onnx(model: Any, spec: ModelSpec, length: int | None, path: Path, *, batch: int) -> bool:
    """Export with an example of this batch size, and return whether the graph takes every batch size. One of 1 takes 1
    only."""
    import torch

    positional, arguments, names = _positional_model(model, spec, length, batch)
    any_batch = torch.export.Dim("batch", min=1, max=4096)
    with torch.no_grad():
        program = torch.onnx.export(
            positional,
            tuple(arguments.values()),
            path,
            input_names=list(arguments),
            output_names=names,
            dynamic_shapes=None if batch == 1 else {"values": tuple({0: any_batch} for _ in arguments)},
            dynamo=True,
            external_data=True,
            verbose=False,
        )
    assert program is not None, "the exporter that follows the code returns what it wrote"
    shapes = [given.shape for given in program.model.graph.inputs]
    return not any(shape is not None and isinstance(shape[0], int) for shape in shapes)


def _write_traced(model: Any, spec: ModelSpec, length: int | None, folder: Path) -> None:
    """Export by tracing one pass, for models that torch.export cannot follow."""
    import torch

    positional, arguments, names = _positional_model(model, spec, length)
    with torch.no_grad():
        torch.onnx.export(
            # A script inside another module cannot be traced.
            model.body if spec.architecture == "torchscript" else positional,
            tuple(arguments.values()),
            str(folder / "model.onnx"),
            input_names=list(arguments),
            output_names=names,
            dynamic_axes={name: {0: "batch"} for name in (*arguments, *names)},
            dynamo=False,
            verbose=False,
        )


def _write_openvino(model: Any, spec: ModelSpec, length: int | None, folder: Path) -> None:
    """Convert the model from PyTorch by OpenVINO's converter, without ONNX in between."""
    import openvino
    import torch

    if spec.architecture in GRAPHS:
        openvino.save_model(openvino.Core().read_model(source_file(spec)), folder / "model.xml", compress_to_fp16=False)
        return
    positional, arguments, names = _positional_model(model, spec, length)
    with torch.no_grad():
        converted = openvino.convert_model(positional, example_input=tuple(arguments.values()))
    for ports, given in ((converted.inputs, list(arguments)), (converted.outputs, names)):
        for port, name in zip(ports, given, strict=True):
            port.get_tensor().set_names({name})
    openvino.save_model(converted, folder / "model.xml", compress_to_fp16=False)


def _write_aten(model: Any, spec: ModelSpec, length: int | None, folder: Path) -> None:
    import torch

    positional, arguments, names = _positional_model(model, spec, length)
    with torch.no_grad():
        write_graph(positional, arguments, names, folder)


_WRITERS: dict[Exporter, Callable[..., None]] = {
    "dynamo": _write_onnx,
    "torchscript": _write_traced,
    "openvino": _write_openvino,
}


def _positional_model(
    model: Any, spec: ModelSpec, length: int | None, batch: int = 2
) -> tuple[torch.nn.Module, dict[str, torch.Tensor], list[str]]:
    """Return the model with positional inputs and a tuple of tensors as output, example inputs, and output names."""
    import torch

    from accel_platform.workloads.build import tensors_of
    from accel_platform.workloads.inputs import describe_inputs, make_inputs

    # Use two items where possible, because a batch of one would become a constant.
    example = make_inputs(spec, batch_size=batch, sequence_length=length)
    described = describe_inputs(spec, batch_size=batch, sequence_length=length)
    # Inputs that determine shapes have to be constants in a graph.
    sizes = {item.name: example.pop(item.name).tolist() for item in described if item.kind == "size"}
    arguments = {name: torch.from_numpy(array) for name, array in example.items()}

    class Positional(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *values: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return tuple(tensors_of(self.model(**dict(zip(arguments, values, strict=True)), **sizes)).values())

    with torch.no_grad():
        names = list(tensors_of(model(**arguments, **sizes)))
    return Positional().eval(), arguments, names


@contextmanager
def _disable_transformers_checks() -> Iterator[None]:
    """Disable transformers' input checks, because no runtime has their operators."""
    os.environ["TRANSFORMERS_DISABLE_TORCH_CHECK"] = "1"
    try:
        yield
    finally:
        del os.environ["TRANSFORMERS_DISABLE_TORCH_CHECK"]


@contextmanager
def _publish_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder that is renamed once complete, so that a killed worker leaves no partial folder."""
    part = folder.with_name(f".{folder.name}-{os.getpid()}")
    part.mkdir()
    try:
        yield part
        part.rename(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


if __name__ == "__main__":
    serve(prepare_job)
