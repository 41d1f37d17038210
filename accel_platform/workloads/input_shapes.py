"""Shapes of a model's inputs as users write them, and as graph files state them.

`3x224x224` is one item of numbers, `length:tokens:30522` token ids below 30522 at the sequence length, `length:mask`
ones. The batch comes first and is not written.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

from accel_platform.errors import InvalidInput, one_line

InputKind = Literal["tokens", "mask", "signal"]
_SHAPE = re.compile(r"(?P<dims>(\d+|length)(x(\d+|length))*)(:(?P<kind>tokens|mask)(:(?P<vocabulary>\d+))?)?")
_FLOAT, _INT64 = 1, 7
"""Element types in ONNX's numbering."""
_UNKNOWN_VOCABULARY = 1000
"""Ids that stay below every vocabulary seen, where a graph does not say how many it knows."""


@dataclass(frozen=True)
class InputShape:
    """Shape and kind of one item of an input."""

    dimensions: tuple[int | Literal["length"], ...]
    kind: InputKind
    vocabulary: int = 0
    """Token ids are below it."""

    def at(self, length: int | None) -> tuple[int, ...]:
        """Return the dimensions at a sequence length."""
        return tuple(cast("int", length if size == "length" else size) for size in self.dimensions)


def parse_shape(name: str, text: str) -> InputShape:
    """Return the shape written as `3x224x224`, `length:tokens:30522` or `length:mask`. Raises InvalidInput."""
    found = _SHAPE.fullmatch(text.strip())
    kind = found["kind"] if found else None
    if found is None or (kind == "tokens") != bool(found["vocabulary"]):
        raise InvalidInput(
            f"{text!r} is no shape for the input {name}: write one item without the batch, such as 3x224x224, "
            "length:tokens:30522 (ids below 30522) or length:mask."
        )
    dimensions = tuple("length" if size == "length" else int(size) for size in found["dims"].split("x"))
    vocabulary = int(found["vocabulary"] or 0)
    if 0 in dimensions or (kind == "tokens" and vocabulary < 2):
        raise InvalidInput(f"{text!r} leaves no room for the input {name}: every size is at least 1, a vocabulary 2.")
    return InputShape(
        cast("tuple[int | Literal['length'], ...]", dimensions), cast("InputKind", kind or "signal"), vocabulary
    )


def shapes_of_graph(path: Path, kind: str) -> dict[str, str] | None:
    """Return the shapes that an ONNX or OpenVINO file states, as users write them; None for another kind of file.

    The first dimension is the batch; others without a fixed size are the sequence length. Whole numbers are token ids,
    or ones where the name speaks of a mask. Raises InvalidInput for a file that cannot be read, or other types.
    """
    if kind == "onnx":
        return {name: _shape_text(path, name, sizes, whole) for name, sizes, whole in _onnx_inputs(path)}
    if kind == "openvino":
        return {name: _shape_text(path, name, sizes, whole) for name, sizes, whole in _openvino_inputs(path)}
    return None


def _shape_text(path: Path, name: str, sizes: list[int | None], whole: bool | None) -> str:
    if whole is None or not sizes[1:]:
        raise InvalidInput(f"{path}: its input {name} is neither float32 nor int64 with a batch: export it with these.")
    item = "x".join("length" if size is None else str(size) for size in sizes[1:])
    if not whole:
        return item
    return f"{item}:mask" if "mask" in name else f"{item}:tokens:{2 if 'type' in name else _UNKNOWN_VOCABULARY}"


def _onnx_inputs(path: Path) -> list[tuple[str, list[int | None], bool | None]]:
    import onnx

    try:
        graph = onnx.load(path, load_external_data=False).graph
    except Exception as error:  # protobuf raises what it likes
        raise InvalidInput(f"{path} is no ONNX file: {one_line(error)}") from error
    stored = {tensor.name for tensor in graph.initializer}
    found = []
    for port in graph.input:
        if port.name not in stored:
            tensor = port.type.tensor_type
            sizes = [size.dim_value if size.HasField("dim_value") else None for size in tensor.shape.dim]
            found.append((port.name, sizes, {_FLOAT: False, _INT64: True}.get(tensor.elem_type)))
    return found


def _openvino_inputs(path: Path) -> list[tuple[str, list[int | None], bool | None]]:
    import openvino

    try:
        model = openvino.Core().read_model(path)
    except RuntimeError as error:
        raise InvalidInput(f"{path} is no OpenVINO model: {one_line(error)}") from error
    types = {"f32": False, "i64": True}
    return [
        (
            port.get_any_name(),
            [size.get_length() if size.is_static else None for size in port.get_partial_shape()],
            types.get(port.get_element_type().get_type_name()),
        )
        for port in model.inputs
    ]
