"""Operators of a model: what one forward pass computes, with shapes, traced on the meta device.

Add a kind of operator here, and to `predictor/operators/features.py`, which says what limits it.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any, Literal

from accel_platform.errors import InvalidInput
from accel_platform.workloads.cost import meta_inputs, meta_model, parameters_of
from accel_platform.workloads.fusion import DataFlow, held_numbers, tensors_in
from accel_platform.workloads.heads import Head
from accel_platform.workloads.inputs import InputSpec, describe_inputs
from accel_platform.workloads.model_catalog import ModelSpec
from accel_platform.workloads.repetition import one_pass_each, passes
from accel_platform.workloads.sources import GRAPHS, source_file

OperatorKind = Literal[
    "linear", "batched_matmul", "convolution", "attention", "softmax", "layer_norm", "elementwise", "embedding"
]
DIMENSIONS: dict[OperatorKind, tuple[str, ...]] = {
    "linear": ("m", "n", "k"),
    "batched_matmul": ("b", "m", "n", "k"),
    "convolution": ("b", "pixels", "n", "k", "groups", "taps", "read", "written"),
    "attention": ("b", "heads", "kv_heads", "m", "n", "k", "v", "pairs"),
    "softmax": ("rows", "width"),
    "layer_norm": ("rows", "width"),
    "elementwise": ("read", "written", "slow"),
    "embedding": ("rows", "width"),
}
"""Names of the dimensions of each kind, in order.

A product is (m x k) by (k x n). A convolution of b images puts out `pixels` of n channels per group, each of k products
over `taps` positions; `read` and `written` count numbers. Attention has queries of length m, keys of length n, heads of
width k and values of width v, and meets `pairs` of a query and a key per head. `rows` are normalized or looked up one
by one. An element-wise operator is `slow`, 1 or 0, if it computes one of SLOW_FUNCTIONS.
"""
MOVING: frozenset[OperatorKind] = frozenset(("elementwise", "softmax", "layer_norm", "embedding"))
"""Kinds that move numbers; all others compute products."""
_ROWWISE: dict[str, OperatorKind] = {
    **dict.fromkeys(("native_layer_norm", "native_group_norm", "_fused_rms_norm"), "layer_norm"),
    **dict.fromkeys(("_softmax", "_log_softmax"), "softmax"),
    "embedding": "embedding",
}
_PRODUCTS = ("mm", "addmm")
_BATCHED_PRODUCTS = ("bmm", "baddbmm")
_ALLOCATIONS = frozenset(
    "empty empty_like empty_strided new_empty new_empty_strided _local_scalar_dense detach".split()  # noqa: SIM905
)
SLOW_FUNCTIONS = frozenset(
    "div erf exp gelu log pow reciprocal rsqrt sigmoid silu sin cos sqrt tanh softplus".split()  # noqa: SIM905
)
"""Element-wise operators that take more than one instruction on each number."""


@dataclass(frozen=True)
class Operator:
    """One operator with its dimensions, and how often the model computes it."""

    kind: OperatorKind
    name: str
    """Name of the torch operator, or `attention`."""
    dimensions: tuple[float, ...]
    """In the order of `DIMENSIONS[kind]`."""
    count: int = 1

    @property
    def flops(self) -> float:
        """FLOPs of products and attention, 2 per multiply-add; 0 for others."""
        size = dict(zip(DIMENSIONS[self.kind], self.dimensions, strict=True))
        if self.kind == "attention":
            return 2 * size["b"] * size["heads"] * size["pairs"] * (size["k"] + size["v"])
        if self.kind == "convolution":
            return 2 * size["b"] * size["groups"] * size["pixels"] * size["n"] * size["k"]
        return 2 * math.prod(self.dimensions) if self.kind in ("linear", "batched_matmul") else 0.0

    @property
    def written(self) -> float:
        """Numbers that it puts out."""
        size = dict(zip(DIMENSIONS[self.kind], self.dimensions, strict=True))
        if "written" in size:
            return size["written"]
        if self.kind == "attention":
            return size["b"] * size["heads"] * size["m"] * size["v"]
        if self.kind in ("linear", "batched_matmul"):
            return math.prod(self.dimensions[:-1])
        return math.prod(self.dimensions)

    @property
    def moved(self) -> float:
        """Numbers that it reads, weights included, and puts out."""
        size = dict(zip(DIMENSIONS[self.kind], self.dimensions, strict=True))
        if "read" in size:
            return size["read"] + size["written"]
        if self.kind == "attention":
            reads = size["heads"] * size["m"] * size["k"] + size["kv_heads"] * size["n"] * (size["k"] + size["v"])
            return size["b"] * reads + self.written
        if self.kind in ("linear", "batched_matmul"):
            copies = size.get("b", 1.0)
            return copies * (size["m"] * size["k"] + size["k"] * size["n"]) + self.written
        return 2 * self.written


@dataclass(frozen=True)
class OperatorProfile:
    """Operators of a model by batch size: traced at two items and at three, because every dimension is linear in it.

    Not at one, because torch copies less where a dimension is 1.
    """

    of_two: tuple[Operator, ...]
    of_three: tuple[Operator, ...]
    """The same operators in the same order; counts are those of `of_two`."""
    parameters: float
    fused_share: float | None = None
    """Share of the numbers moved between products that is moved when a compiler fuses operators (`DataFlow`). None for
    graph files, and where an older version recorded the profile."""

    def at(self, batch_size: int) -> tuple[Operator, ...]:
        """Return the operators of a batch."""
        return tuple(
            replace(
                two,
                # A dimension that grows faster than the batch would be negative for one item.
                dimensions=tuple(
                    max(min(a, 1.0), a + (b - a) * (batch_size - 2))
                    for a, b in zip(two.dimensions, three.dimensions, strict=True)
                ),
            )
            for two, three in zip(self.of_two, self.of_three, strict=True)
        )

    def least_numbers_per_item(self) -> float:
        """Return the numbers that one operator holds at once for each item of a batch: those of the largest.

        It is a lower bound for every runtime on GPUs and CPUs. Weights are not counted, because they do not grow with
        the batch. Attention and operators that move numbers count nothing, because runtimes fuse them and work in
        place.
        """
        return max(map(_held_per_item, self.of_two, self.of_three), default=0.0)


def _held_per_item(two: Operator, three: Operator) -> float:
    """Return the numbers that an operator holds for each item; 0 where none have to be."""
    if two.kind == "linear":
        return three.moved - two.moved
    if two.kind != "convolution":
        return 0.0
    of_two, of_three = (dict(zip(DIMENSIONS[two.kind], op.dimensions, strict=True)) for op in (two, three))
    # The smaller side of one, because a depthwise convolution may be fused to the other, in which case nothing is sure.
    smaller = min(of_three[side] - of_two[side] for side in ("read", "written"))
    return smaller if of_two["groups"] == 1 else 0.0


def profile_to_json(profile: OperatorProfile) -> str:
    """Return the profile as JSON, which `profile_from_json` reads."""
    return json.dumps(
        {
            "of_two": [astuple(operator) for operator in profile.of_two],
            "of_three": [astuple(operator) for operator in profile.of_three],
            "parameters": profile.parameters,
            "fused_share": profile.fused_share,
        }
    )


def profile_from_json(text: str) -> OperatorProfile:
    """Return the profile that `profile_to_json` wrote."""
    stored = json.loads(text)
    two, three = (
        tuple(Operator(kind, name, tuple(dimensions), count) for kind, name, dimensions, count in stored[name_])
        for name_ in ("of_two", "of_three")
    )
    return OperatorProfile(two, three, stored["parameters"], stored.get("fused_share"))


def trace_operators(
    spec: ModelSpec,
    *,
    sequence_length: int | None = None,
    audio_seconds: float | None = None,
    head: Head = "AutoModel",
) -> OperatorProfile:
    """Return the operators of one forward pass, without weights or a device; it takes a second or two.

    Attention is one operator where the model's config leaves its implementation open, as runtimes compute it; with
    `attn_implementation: eager` it is traced operator by operator. Raises InvalidInput for a length that the model
    cannot take, or a model that does other things for three items than for two.
    """

    def trace(size: int) -> _Trace:
        inputs = describe_inputs(spec, batch_size=size, sequence_length=sequence_length, audio_seconds=audio_seconds)
        return _operators_and_flow(spec, inputs, head)

    return _profile(spec.model_id, trace, float(parameters_of(spec, head)))


def trace_module(name: str, module: Any, batch_of: Callable[[int], dict[str, Any]]) -> OperatorProfile:
    """Return the operators of a PyTorch module on the meta device; `batch_of` makes its inputs for so many items.

    Raises InvalidInput for a module that does other things for three items than for two.
    """
    parameters = float(sum(parameter.numel() for parameter in module.parameters()))
    return _profile(name, lambda size: _trace(module, batch_of(size)), parameters)


_Trace = tuple[tuple[Operator, ...], float | None]
"""Operators of one pass, and the share of moved numbers that is moved when they are fused."""


def _profile(name: str, trace: Callable[[int], _Trace], parameters: float) -> OperatorProfile:
    (two, fused_share), (three, _) = trace(2), trace(3)
    if not _are_alike(two, three):
        # Some models keep what their first pass computes for all others, such as the coordinates of patches.
        two, fused_share = trace(2)
    if not _are_alike(two, three):
        # LLaVA-NeXT puts the tiles of each image together on its own.
        two, three = _joined_over_items(two, three)
    if not _are_alike(two, three):
        raise InvalidInput(f"{name} computes other operators for three items than for two.")
    counts: Counter[tuple[Operator, Operator]] = Counter()
    for pair in zip(two, three, strict=True):
        of_two, of_three = (replace(operator, count=1) for operator in pair)
        counts[of_two, of_three] += pair[0].count
    two, three = tuple(replace(op, count=n) for (op, _), n in counts.items()), tuple(op for _, op in counts)
    return OperatorProfile(two, three, parameters, fused_share)


def _joined_over_items(
    two: tuple[Operator, ...], three: tuple[Operator, ...]
) -> tuple[tuple[Operator, ...], tuple[Operator, ...]]:
    """Return the operators with those that only move numbers and run once or more per item joined to one for all."""
    of_two, of_three = Counter(two), Counter(three)
    per_item = {op for op, n in of_two.items() if op.kind == "elementwise" and 3 * n == 2 * of_three[op]}

    def join(operators: tuple[Operator, ...], counts: Counter[Operator]) -> tuple[Operator, ...]:
        joined = dict.fromkeys(op for op in operators if op in per_item)
        # The last dimension says whether it is slow.
        wide = {op: tuple(size * counts[op] for size in op.dimensions[:-1]) + op.dimensions[-1:] for op in joined}
        return tuple(replace(op, dimensions=wide[op]) for op in joined) + tuple(
            op for op in operators if op not in per_item
        )

    return join(two, of_two), join(three, of_three)


def _are_alike(two: Sequence[Operator], three: Sequence[Operator]) -> bool:
    return [operator.name for operator in two] == [operator.name for operator in three]


def operators_of(spec: ModelSpec, inputs: tuple[InputSpec, ...]) -> tuple[Operator, ...]:
    """Return the operators of one forward pass with these inputs, in order of execution."""
    return _operators_and_flow(spec, inputs, "AutoModel")[0]


def _operators_and_flow(spec: ModelSpec, inputs: tuple[InputSpec, ...], head: Head) -> _Trace:
    if spec.architecture in GRAPHS:
        from accel_platform.workloads.graph_operators import graph_operators

        return graph_operators(source_file(spec), inputs), None
    return _trace(meta_model(spec, head), meta_inputs(inputs))


def _trace(model: Any, inputs: dict[str, Any]) -> _Trace:
    from accel_platform.workloads.meta_trace import ComputedOperators, FusedOperators, trace

    recorder = _Recorder()
    fused = FusedOperators(recorder.add_attention, recorder.add_product_by_experts)
    trace(model, inputs, one_pass_each(), ComputedOperators(recorder.add), fused)
    return tuple(recorder.operators), recorder.flow.fused_share()


class _Recorder:
    """Operators of a trace in order of execution, and the data flow between them."""

    def __init__(self) -> None:
        self.operators: list[Operator] = []
        self.flow = DataFlow()

    def add(self, name: str, args: Any, kwargs: dict[str, Any], out: Any) -> None:
        operator = _operator(name, args, kwargs, out)
        if operator is not None:
            inputs = tensors_in((*args, *kwargs.values()))
            self._record(operator, inputs, tensors_in((out,)))

    def add_attention(self, query: Any, key: Any, value: Any, causal: bool) -> Any:
        length, earlier, heads = query.shape[-2], key.shape[-2], query.shape[-3]
        pairs = length * (length + 1) / 2 if causal else length * earlier
        dimensions = (
            math.prod(query.shape[:-3]), heads, key.shape[-3], length, earlier, query.shape[-1], value.shape[-1], pairs,
        )  # fmt: skip
        # Runtimes write it as (batch, length, heads, width), so that what follows copies nothing.
        out = query.new_empty((*query.shape[:-3], length, heads, value.shape[-1]))
        self._record(Operator("attention", "attention", dimensions), [query, key, value], [out])
        return out.transpose(-2, -3)

    def add_product_by_experts(self, tokens: Any, weights: Any, out: Any) -> None:
        experts, depth, width = weights.shape[0], weights.shape[-2], weights.shape[-1]
        dimensions = (experts, tokens.shape[0] / experts, width, depth)
        self._record(Operator("batched_matmul", "grouped_mm", dimensions), [tokens, weights], [out])

    def _record(self, operator: Operator, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        self.operators.append(replace(operator, count=passes()))
        self.flow.add(inputs, outputs, moves=operator.kind in MOVING)


def _operator(name: str, args: Sequence[Any], kwargs: dict[str, Any], out: Any) -> Operator | None:
    """Return an ATen call as an operator; None for one that moves no numbers."""
    if name in _PRODUCTS:
        left, right = args[-2:]
        return Operator("linear", name, (left.shape[0], right.shape[1], left.shape[1]))
    if name in _BATCHED_PRODUCTS:
        left, right = args[-2:]
        return Operator("batched_matmul", name, (left.shape[0], left.shape[1], right.shape[2], left.shape[2]))
    outputs = tensors_in((out,))
    written = sum(tensor.numel() for tensor in outputs)
    if name in _ALLOCATIONS or not written:
        return None
    if name == "convolution":
        return _convolution(args, outputs[0])
    width = outputs[0].shape[-1] if outputs[0].shape else 1
    if name == "native_group_norm":
        width = math.prod(outputs[0].shape[1:]) / args[-2]
    kind = _ROWWISE.get(name)
    if kind is not None:
        return Operator(kind, name, (outputs[0].numel() / width, width))
    # A broadcast tensor is read once, so it counts the numbers it holds and not those it is expanded to.
    read = sum(map(held_numbers, tensors_in((*args, *kwargs.values()))))
    return Operator("elementwise", name, (max(read, 1), written, float(name.rstrip("_") in SLOW_FUNCTIONS)))


def _convolution(args: Sequence[Any], output: Any) -> Operator:
    image, weight = args[:2]
    transposed, groups, taps = bool(args[6]), int(args[8]), math.prod(weight.shape[2:])
    if transposed:
        # It does for each pixel it reads what another one does for each that it writes.
        pixels, n, k = math.prod(image.shape[2:]), math.prod(weight.shape[1:]), weight.shape[0] // groups
    else:
        pixels, n, k = math.prod(output.shape[2:]), weight.shape[0] // groups, math.prod(weight.shape[1:])
    read = image.numel() + weight.numel()
    return Operator("convolution", "convolution", (image.shape[0], pixels, n, k, groups, taps, read, output.numel()))
