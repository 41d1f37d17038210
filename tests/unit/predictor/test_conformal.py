"""Conformal calibration: it keeps its promise on groups it has not seen, and promises no more than it can."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from predictor.calibration.conformal import calibrate, calibrate_worst_group
from predictor.schemas.responses import Interval

sizes = st.floats(0, 50)


def _grouped(rng: np.random.Generator, groups: int) -> tuple[np.ndarray, list[int]]:
    """Return errors of a model that does not know what each group has in common."""
    counts = rng.integers(1, 15, size=groups)
    shared = np.repeat(rng.normal(0, 0.5, size=groups), counts)
    return np.abs(shared + rng.normal(0, 0.1, size=len(shared))), np.repeat(np.arange(groups), counts).tolist()


def test_covers_unseen_groups_where_a_calibration_on_rows_would_not() -> None:
    rng = np.random.default_rng(7)
    shares = []
    for _ in range(300):
        calibration = calibrate(*_grouped(rng, groups=25))
        assert calibration.level == 0.9
        shares.append(np.mean(_grouped(rng, groups=1)[0] <= calibration.half_width))
    # 300 trials: the standard error of the mean is below 0.02.
    assert 0.87 <= np.mean(shares) <= 0.97


@pytest.mark.parametrize("groups", [3, 4, 6])
def test_few_groups_lower_the_level_and_it_holds(groups: int) -> None:
    rng = np.random.default_rng(groups)
    shares = []
    for _ in range(400):
        calibration = calibrate(*_grouped(rng, groups))
        assert groups / (groups + 1) - 0.001 < calibration.level <= groups / (groups + 1)
        shares.append(np.mean(_grouped(rng, groups=1)[0] <= calibration.half_width))
    assert np.mean(shares) >= groups / (groups + 1) - 0.05


@pytest.mark.parametrize("devices", [2, 3, 6])
def test_the_worst_of_few_devices_holds_its_lower_level(devices: int) -> None:
    rng = np.random.default_rng(devices)
    shares = []
    for _ in range(400):
        calibration = calibrate_worst_group(*_grouped(rng, devices))
        assert calibration.level == pytest.approx(0.9 * devices / (devices + 1), abs=0.001)
        shares.append(np.mean(_grouped(rng, groups=1)[0] <= calibration.half_width))
    assert np.mean(shares) >= 0.9 * devices / (devices + 1) - 0.05


def test_levels_are_stated_in_thousandths_and_promise_no_more_than_they_can() -> None:
    worst = calibrate_worst_group(np.arange(9.0), range(9))
    assert worst.level == Interval(p50=1.0, low=1.0, high=1.0, level=0.9 * 9 / 10).level == 0.81
    assert Interval(p50=1.0, low=1.0, high=1.0, level=2 / 3).level == 0.666
    assert calibrate(np.arange(5.0), range(5)).level == 0.833


def test_few_groups_that_are_alike_inside_are_not_given_twice_the_width() -> None:
    rng = np.random.default_rng(3)
    shares = []
    for _ in range(300):
        errors = np.abs(rng.standard_t(3, size=200))
        shares.append(np.mean(np.abs(rng.standard_t(3, size=200)) <= calibrate(errors, [*range(10)] * 20).half_width))
    assert 0.89 <= np.mean(shares) <= 0.95


def test_of_two_methods_the_narrower_interval_is_not_chosen() -> None:
    """Choosing the smaller of two widths by what came out holds less often than either: see where they disagree."""
    rng = np.random.default_rng(0)
    wider = 0
    for _ in range(200):
        members = rng.integers(1, 12, size=rng.integers(10, 20))
        groups = np.repeat(np.arange(len(members)), members)
        errors = np.abs(rng.normal(size=len(groups))) * np.exp(rng.normal(size=len(members)))[groups]
        order = np.argsort(errors)
        weights = 1 / ((len(members) + 1) * members[groups[order]])
        by_weights = errors[order][min(np.searchsorted(np.cumsum(weights), 0.9 - 1e-9), len(errors) - 1)]
        wider += calibrate(errors, groups.tolist()).half_width > by_weights
    assert wider > 5


def test_a_large_group_weighs_no_more_than_a_small_one() -> None:
    errors = np.array([0.0] * 1000 + [3.0, 4.0, 5.0])
    calibration = calibrate(errors, [0] * 1000 + [1, 2, 3], level=0.5)
    # The large group is a fifth of five groups (one to come): the level of a half is reached only within the others.
    assert calibration.half_width == 4.0


def test_too_few_groups_promise_nothing() -> None:
    with pytest.raises(ValueError, match="too few groups to calibrate: 2"):
        calibrate(np.zeros(4), ["a", "a", "b", "b"])
    with pytest.raises(ValueError, match="too few devices to calibrate: 1"):
        calibrate_worst_group(np.zeros(4), ["a"] * 4)


@given(arrays(np.float64, 12, elements=sizes), st.lists(st.sampled_from("abcd"), min_size=8, max_size=8))
def test_the_half_width_covers_the_calibration_rows_at_its_level(errors: np.ndarray, groups: list[str]) -> None:
    names = ["a", "b", "c", "d", *groups]
    calibration = calibrate(errors, names)
    weights = [1 / names.count(name) for name in names]
    covered = sum(w for w, error in zip(weights, errors, strict=True) if error <= calibration.half_width)
    assert covered >= calibration.level * 4 - 1e-6
