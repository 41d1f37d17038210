"""Order of devices: a device with more of everything is not predicted to be slower."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor.serving.device_order import between, in_order, no_better

CHAIN = np.array([[False, True, True], [False, False, True], [False, False, False]])
"""Three devices, each no better than the next."""
FORK = np.array([[False, True, True], [False, False, False], [False, False, False]])
"""One device that is no better than either of two others."""


def ordered(logs: list[float], order: np.ndarray = CHAIN, weights: list[float] | None = None) -> list[float]:
    moved = in_order(np.array([logs]), np.array([weights or [1.0] * len(logs)]), order[None])
    return [round(float(log), 6) for log in moved[0]]


def test_times_in_order_stay_and_others_meet_at_their_weighted_mean() -> None:
    assert ordered([3.0, 2.0, 1.0]) == [3.0, 2.0, 1.0]
    assert ordered([3.0, 1.0, 2.0]) == [3.0, 1.5, 1.5]
    assert ordered([1.0, 3.0, 2.0]) == [2.0, 2.0, 2.0]
    assert ordered([3.0, 1.0, 2.0], weights=[1.0, 3.0, 1.0]) == [3.0, 1.25, 1.25]
    # Devices of which neither is better than the other may be in any order.
    assert ordered([3.0, 1.0, 2.0], FORK) == [3.0, 1.0, 2.0]
    assert ordered([1.0, 1.0, 2.0], FORK) == [1.5, 1.0, 1.5]


def test_loads_of_different_orders_are_moved_each_in_its_own() -> None:
    logs = np.array([[3.0, 1.0, 2.0]] * 3)
    moved = in_order(logs, np.ones_like(logs), np.array([CHAIN, FORK, np.zeros_like(CHAIN)]))
    assert moved.tolist() == [[3.0, 1.5, 1.5], [3.0, 1.0, 2.0], [3.0, 1.0, 2.0]]


numbers = st.lists(st.floats(-3, 3), min_size=3, max_size=3)


@given(numbers, st.lists(st.floats(0.1, 10), min_size=3, max_size=3), st.sampled_from([CHAIN, FORK]))
def test_moved_times_are_in_order_and_keep_their_mean(
    logs: list[float], weights: list[float], order: np.ndarray
) -> None:
    [moved] = in_order(np.array([logs]), np.array([weights]), order[None])
    for worse, better in np.argwhere(order):
        assert moved[worse] >= moved[better] - 1e-9
    assert np.dot(moved, weights) == pytest.approx(np.dot(logs, weights), abs=1e-6)
    assert np.min(logs) - 1e-9 <= np.min(moved) <= np.max(moved) <= np.max(logs) + 1e-9


def test_a_device_that_nobody_measured_lies_between_worse_and_better_ones() -> None:
    others, yes, no = np.array([[2.0, 1.0]]), np.array([[True, False]]), np.array([[False, True]])
    assert [between(np.array([log]), others, yes, no)[0] for log in (3.0, 1.5, 0.5)] == [2.0, 1.5, 1.0]
    neither = np.zeros((1, 2), dtype=bool)
    assert between(np.array([3.0]), others, neither, neither)[0] == 3.0


def test_a_device_is_better_with_as_much_of_all_and_more_of_one() -> None:
    less, more, other = np.array([1.0, 1.0]), np.array([1.0, 2.0]), np.array([2.0, 0.5])
    assert no_better(less, more)
    assert not no_better(more, less)
    assert not no_better(less, less)
    assert not no_better(less, other)
    assert not no_better(other, less)
