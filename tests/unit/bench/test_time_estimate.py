"""Remaining time of a run: estimates at first, then scaled by what finished cells really took."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accel_platform.bench.plan.plan import plan_cells
from accel_platform.bench.plan.time_estimate import RemainingTime, TimeEstimate
from accel_platform.workloads.model_catalog import resolve_model

CELLS = plan_cells([resolve_model("bert-tiny")], ["cpu", "openvino", "onnxruntime"], [1, 2])
ESTIMATES = {cell: TimeEstimate(10.0, "effort limits") for cell in CELLS}


def test_a_run_twice_as_fast_as_estimated_needs_half_the_rest() -> None:
    remaining = RemainingTime(ESTIMATES)
    assert remaining.after((), 0.0) == 60
    # The first group's time includes the preparation of models.
    assert remaining.after(CELLS[:2], 100.0) == 40
    assert remaining.after(CELLS[:4], 110.0) == pytest.approx(10)
    assert remaining.after(CELLS, 120.0) == 0


@given(st.lists(st.floats(0, 1e4), min_size=len(CELLS), max_size=len(CELLS)))
def test_it_is_never_negative_and_ends_at_zero(steps_s: list[float]) -> None:
    remaining, at_s = RemainingTime(ESTIMATES), 0.0
    for done, step_s in enumerate(steps_s, start=1):
        at_s += step_s
        left_s = remaining.after(CELLS[:done], at_s)
        assert left_s >= 0
    assert left_s == 0
