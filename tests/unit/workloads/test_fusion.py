"""Data flow: what operators move one by one, and when a compiler fuses them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from accel_platform.workloads.operators import MOVING, OperatorProfile, profile_from_json, profile_to_json, trace_module

PIXELS = 32 * 32


def _profile(*layers: torch.nn.Module) -> OperatorProfile:
    with torch.device("meta"):
        module = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 1), *layers).eval()

    def batch_of(items: int) -> dict[str, Any]:
        return {"input": torch.empty(items, 3, 32, 32, device="meta")}

    return trace_module("net", module.to("meta"), batch_of)


def test_a_chain_between_products_reads_and_writes_once() -> None:
    layers = [torch.nn.Sigmoid(), torch.nn.Tanh(), torch.nn.SiLU()]
    profile = _profile(*layers, torch.nn.Conv2d(8, 8, 1))
    moved = sum(op.moved * op.count for op in profile.of_two if op.kind in MOVING)
    assert moved == 3 * 2 * (2 * 8 * PIXELS)
    assert profile.fused_share == pytest.approx(1 / 3)


def test_products_alone_move_nothing_between_them() -> None:
    assert _profile(torch.nn.Conv2d(8, 8, 1)).fused_share == 1.0


def test_a_residual_is_read_again() -> None:
    class Residual(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Conv2d(8, 8, 1)

        def forward(self, x: Any) -> Any:
            return torch.relu(self.inner(torch.sigmoid(x)) + x)

    profile = _profile(Residual(), torch.nn.Conv2d(8, 8, 1))
    # One by one: sigmoid 2, sum 3, relu 2. Fused: sigmoid 2, then both are read and one is written.
    assert profile.fused_share == pytest.approx(5 / 7)


@given(st.lists(st.sampled_from(["conv", "norm", "sigmoid", "relu"]), max_size=6))
def test_fused_operators_move_no_more_than_one_by_one(kinds: list[str]) -> None:
    made = {
        "conv": lambda: torch.nn.Conv2d(8, 8, 1),
        "norm": lambda: torch.nn.BatchNorm2d(8),
        "sigmoid": torch.nn.Sigmoid,
        "relu": lambda: torch.nn.ReLU(inplace=True),
    }
    profile = _profile(*(made[kind]() for kind in kinds), torch.nn.Conv2d(8, 8, 1))
    assert profile.fused_share is not None
    assert 0 < profile.fused_share <= 1
    assert profile_from_json(profile_to_json(profile)) == profile
