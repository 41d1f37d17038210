"""Export of a model as a graph of ATen operators, for runtimes that translate it themselves.

`graph.json` lists the operators in order of execution, decomposed to torch's core set. `tensors.safetensors` holds
parameters, buffers and constants, each once. Neither needs torch to be read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

GRAPH = "graph.json"
TENSORS = "tensors.safetensors"

_PLACEMENT_ARGUMENTS = frozenset({"device", "layout", "memory_format", "pin_memory", "non_blocking"})
"""Arguments on how torch stores a tensor, which do not affect its values."""
_CHECK_OPERATORS = ("aten._assert", "aten.sym_constrain")
"""Operators that only check what the exporter assumed."""


def write_graph(
    model: torch.nn.Module, arguments: Mapping[str, torch.Tensor], outputs: list[str], folder: Path
) -> None:
    """Export `model`, which takes the arguments by position, for any batch size, into an existing folder.

    Raises whatever torch.export does for a model whose graph depends on values.
    """
    import torch
    from safetensors.numpy import save_file

    batch = torch.export.Dim("batch", min=1, max=4096)
    shapes = {"values": tuple({0: batch} for _ in arguments)}
    table = torch.export.default_decompositions()
    # Keep attention whole, as every runtime has it: decomposed, it adds checks for fully masked rows.
    del table[torch.ops.aten.scaled_dot_product_attention.default]
    program = torch.export.export(model, tuple(arguments.values()), dynamic_shapes=shapes, strict=False)
    program = program.run_decompositions(table)

    kinds = torch.export.graph_signature.InputKind
    stored: dict[tuple[Any, ...], str] = {}
    tensors, bound, inputs = {}, {}, []
    for item in program.graph_signature.input_specs:
        if item.kind == kinds.USER_INPUT:
            inputs.append(item.arg.name)
            continue
        assert item.target is not None
        value = program.state_dict.get(item.target)
        value = program.constants[item.target] if value is None else value
        # Store tied weights once, because they are one tensor under several names.
        same = (value.data_ptr(), value.dtype, tuple(value.shape), value.stride())
        bound[item.arg.name] = stored.setdefault(same, item.target)
        tensors[stored[same]] = value.detach().contiguous().numpy()

    nodes = []
    results: list[Any] = []
    for node in program.graph.nodes:
        if node.op == "output":
            results = _to_json(node.args[0])
        elif node.op == "call_function" and not (name := _operator_name(node.target)).startswith(_CHECK_OPERATORS):
            kwargs = {key: _to_json(value) for key, value in node.kwargs.items() if key not in _PLACEMENT_ARGUMENTS}
            nodes.append({"name": node.name, "op": name, "args": _to_json(node.args), "kwargs": kwargs})
    graph = {
        "inputs": dict(zip(arguments, inputs, strict=True)),
        "tensors": bound,
        "nodes": nodes,
        "outputs": dict(zip(outputs, results, strict=True)),
    }
    (folder / GRAPH).write_text(json.dumps(graph), encoding="utf-8")
    save_file(tensors, folder / TENSORS)


def _operator_name(target: Any) -> str:
    """Return a name such as `aten.add.Tensor`, or `operator.mul` for arithmetic on sizes."""
    import torch

    if isinstance(target, torch._ops.OpOverload):
        return str(target)
    return f"{target.__module__.lstrip('_')}.{target.__name__}"


def _to_json(value: Any) -> Any:
    """Return an argument as JSON: another node as `{"node": name}`, a dtype as `{"dtype": name}`."""
    import torch

    if isinstance(value, torch.fx.Node):
        return {"node": value.name}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    if isinstance(value, list | tuple):
        return [_to_json(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"the graph holds an argument of type {type(value).__name__}, which has no form in JSON")
