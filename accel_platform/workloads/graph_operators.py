"""Operators and cost of a graph file (ONNX or OpenVINO), from the shapes that OpenVINO infers; nothing is run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from accel_platform.errors import InvalidInput, one_line
from accel_platform.workloads.inputs import InputSpec
from accel_platform.workloads.operators import Operator, OperatorKind

_MOVES_NOTHING = frozenset(
    "Assign Constant Convert Parameter ReadValue Reshape Result Squeeze Unsqueeze".split()  # noqa: SIM905
)
_SLOW = frozenset(
    "Divide Erf Exp Gelu Log Power Sigmoid Sin Cos Sqrt SoftPlus Swish Tanh HSwish Mish".split()  # noqa: SIM905
)
"""Element-wise operators that take more than one instruction on each number."""
_ROWWISE: dict[str, OperatorKind] = {"Softmax": "softmax", "LogSoftmax": "softmax", "MVN": "layer_norm"}


def graph_operators(path: Path, inputs: Sequence[InputSpec]) -> tuple[Operator, ...]:
    """Return the operators of one forward pass with these inputs, in order of execution.

    Raises InvalidInput for a graph that does not take them, or whose shapes depend on values.
    """
    operators = []
    constant: set[str] = set()
    layers: set[str] = set()
    for node in _read_with_shapes(path, inputs).get_ordered_ops():
        kind, name = node.get_type_name(), node.get_name()
        sources = [port.get_source_output().get_node().get_name() for port in node.inputs()]
        fixed = [source in constant for source in sources]
        if kind in ("Constant", "ShapeOf") or (sources and all(fixed)):
            # Runtimes compute once what depends on constants and shapes alone.
            constant.add(name)
        elif kind == "Add" and any(fixed) and layers.intersection(sources):
            # A bias is part of its layer, as in torch.
            continue
        elif kind not in _MOVES_NOTHING and any(port.get_element_type().is_real() for port in node.outputs()):
            operators.append(_operator(kind, node, fixed))
            if kind == "MatMul" or "Convolution" in kind:
                layers.add(name)
    return tuple(operators)


def graph_parameters(path: Path) -> int:
    """Return how many floating-point numbers the file holds in arrays; single ones belong to operators."""
    constants = (node for node in _read(path).get_ordered_ops() if node.get_type_name() == "Constant")
    sizes = (math.prod(node.get_output_shape(0)) for node in constants if node.get_output_element_type(0).is_real())
    return sum(size for size in sizes if size > 1)


def _read(path: Path) -> Any:
    import openvino

    try:
        # The converter folds what an ONNX file spells out, such as a factor of 1; it takes no files of its own.
        return openvino.Core().read_model(path) if path.suffix == ".xml" else openvino.convert_model(path)
    except RuntimeError as error:
        raise InvalidInput(f"OpenVINO does not read {path}: {one_line(error)}") from error


def _read_with_shapes(path: Path, inputs: Sequence[InputSpec]) -> Any:
    model = _read(path)
    try:
        model.reshape({item.name: list(item.shape) for item in inputs})
    except RuntimeError as error:
        raise InvalidInput(f"{path} does not take these shapes: {one_line(error)}") from error
    if model.is_dynamic():
        raise InvalidInput(f"The shapes in {path} depend on values.")
    return model


def _operator(kind: str, node: Any, fixed: list[bool]) -> Operator:
    """Return a node as an operator; `fixed` tells which of its inputs are constants."""
    shapes = [tuple(port.get_shape()) for port in node.inputs()]
    out = tuple(node.get_output_shape(0))
    written = sum(math.prod(port.get_shape()) for port in node.outputs())
    if kind == "MatMul":
        k = shapes[0][-2 if node.get_attributes()["transpose_a"] else -1]
        if any(of and len(shape) == 2 for of, shape in zip(fixed, shapes, strict=True)):
            return Operator("linear", kind, (math.prod(out[:-1]), out[-1], k))
        return Operator("batched_matmul", kind, (math.prod(out[:-2]), *(1, *out)[-2:], k))
    if "Convolution" in kind:
        return _convolution(kind, shapes, out)
    if kind == "ScaledDotProductAttention":
        return _attention(shapes, causal=node.get_attributes()["causal"])
    rowwise = "embedding" if kind == "Gather" and fixed[0] and len(shapes[0]) == 2 else _ROWWISE.get(kind)
    if rowwise is not None:
        return Operator(rowwise, kind, (written / out[-1], out[-1]))
    return Operator("elementwise", kind, (max(sum(map(math.prod, shapes)), 1), written, float(kind in _SLOW)))


def _attention(shapes: list[tuple[int, ...]], *, causal: bool) -> Operator:
    query, key, value = shapes[:3]
    length = query[-2]
    heads = (query[-3], key[-3]) if len(query) > 3 else (1, 1)
    pairs = length * (length + 1) / 2 if causal else length * key[-2]
    sizes = (math.prod(query[:-3]), *heads, length, key[-2], query[-1], value[-1], pairs)
    return Operator("attention", "attention", sizes)


def _convolution(kind: str, shapes: list[tuple[int, ...]], out: tuple[int, ...]) -> Operator:
    image, weight = shapes[:2]
    # A group stands before the channels: of outputs and inputs, the other way round where it is transposed.
    groups = weight[0] if kind.startswith("Group") else 1
    first, second, *taps = weight[1:] if kind.startswith("Group") else weight
    transposed = "Backprop" in kind
    pixels = math.prod((image if transposed else out)[2:])
    # A transposed one does for each pixel it reads what another one does for each that it writes.
    n, k = (second * math.prod(taps), first) if transposed else (first, second * math.prod(taps))
    read = math.prod(image) + math.prod(weight)
    return Operator("convolution", kind, (image[0], pixels, n, k, groups, math.prod(taps), read, math.prod(out)))
