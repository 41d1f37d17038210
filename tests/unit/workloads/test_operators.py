"""Operators of models, traced on the meta device."""

from __future__ import annotations

import math

import pytest
import torch

from accel_platform.workloads.cost import cost_of
from accel_platform.workloads.model_catalog import ModelSpec, resolve_model
from accel_platform.workloads.operators import DIMENSIONS, Operator, OperatorProfile, trace_module, trace_operators

SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}


def _flops(operator: Operator) -> float:
    d = operator.dimensions
    each = {
        "linear": lambda: 2 * d[0] * d[1] * d[2],
        "batched_matmul": lambda: 2 * d[0] * d[1] * d[2] * d[3],
        "convolution": lambda: 2 * d[0] * d[1] * d[2] * d[3] * d[4],
        "attention": lambda: 2 * d[0] * d[1] * d[3] * d[4] * (d[5] + d[6]),
    }.get(operator.kind)
    return 0.0 if each is None else operator.count * each()


@pytest.mark.parametrize("name", ["bert-base", "resnet-50", "whisper-base", "t5-small"])
def test_products_of_the_operators_are_the_cost_of_the_model(name: str) -> None:
    spec = resolve_model(name)
    profile = trace_operators(spec)
    assert {len(op.dimensions) == len(DIMENSIONS[op.kind]) for op in profile.of_two} == {True}
    for batch_size in (1, 5):
        traced = sum(map(_flops, profile.at(batch_size)))
        assert traced == pytest.approx(cost_of(spec, batch_size=batch_size).flops, rel=1e-9)


def test_eager_attention_is_traced_in_parts_and_fused_attention_as_one_operator() -> None:
    fused = ModelSpec("tiny", "bert", "bert", "text", config=SMALL, sequence_length=16)
    eager = ModelSpec(
        "tiny", "bert", "bert", "text", config={**SMALL, "attn_implementation": "eager"}, sequence_length=16
    )
    kinds = {op.kind for op in trace_operators(eager).of_two}
    assert {"batched_matmul", "softmax"} <= kinds
    assert "attention" not in kinds
    [attention] = [op for op in trace_operators(fused).of_two if op.kind == "attention"]
    assert attention.count == 2
    assert attention.dimensions == (2, 4, 4, 16, 16, 16, 16, 256)


def test_causal_attention_meets_half_of_the_pairs() -> None:
    config = {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 128}
    profile = trace_operators(ModelSpec("tiny", "gpt2", "gpt2", "text", config=config, sequence_length=16))
    pairs = {op.dimensions[-1] for op in profile.of_two if op.kind == "attention"}
    assert pairs <= {16 * 17 / 2, 256.0}


def test_dimensions_scale_with_the_batch() -> None:
    profile = trace_operators(resolve_model("bert-base"), sequence_length=32)
    rows = {op.dimensions[0] for op in profile.at(8) if op.kind == "linear" and op.dimensions[2] == 3072}
    assert rows == {8 * 32}
    assert all(math.isfinite(n) for op in profile.at(1) for n in op.dimensions)


def _least_numbers(*operators: tuple[Operator, Operator]) -> float:
    two, three = zip(*operators, strict=True)
    return OperatorProfile(two, three, 0.0).least_numbers_per_item()


def _linear(rows: float) -> Operator:
    return Operator("linear", "addmm", (rows, 3072, 768))


def _convolution(items: int, groups: int) -> Operator:
    weights, read, written = 1_000, items * 50, items * 400
    return Operator("convolution", "convolution", (items, 100, 4, 9, groups, 9, read + weights, written))


def test_what_only_a_first_pass_computes_is_not_counted() -> None:
    class KeepsCoordinates(torch.nn.Module):
        kept: torch.Tensor | None = None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.kept is None:
                self.kept = torch.arange(8.0).sin().cos()
            return x * self.kept

    profile = trace_module("keeps", KeepsCoordinates(), lambda size: {"x": torch.empty(size, 8, device="meta")})
    assert [operator.name for operator in profile.of_two] == ["mul"]


def test_a_product_holds_its_inputs_and_outputs_and_no_weights_by_item() -> None:
    assert _least_numbers((_linear(2 * 128), _linear(3 * 128))) == 128 * (768 + 3072)


def test_the_largest_operator_counts() -> None:
    assert _least_numbers((_linear(2), _linear(3)), (_linear(20), _linear(30)), (_linear(4), _linear(6))) == 38_400


def test_of_a_convolution_the_smaller_side_counts() -> None:
    assert _least_numbers((_convolution(2, 1), _convolution(3, 1))) == 50
    assert _least_numbers((_convolution(2, 4), _convolution(3, 4))) == 0


def test_what_runtimes_fuse_and_what_does_not_grow_is_not_counted() -> None:
    rise = [Operator("elementwise", "relu", (n * 1e6, n * 1e6, 0.0)) for n in (2, 3)]
    scores = [Operator("batched_matmul", "bmm", (n, 512.0, 512.0, 64.0)) for n in (2, 3)]
    assert _least_numbers((rise[0], rise[1]), (scores[0], scores[1]), (_linear(7), _linear(7))) == 0
    assert OperatorProfile((), (), 0.0).least_numbers_per_item() == 0
