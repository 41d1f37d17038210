"""Conformal calibration: it keeps its promise on groups it has not seen, and promises no more than it can."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from predictor.intervals import Calibration, calibrate

finite = st.floats(-50, 50)


def _grouped(rng: np.random.Generator, groups: int) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """Truth with an error shared by each group, and a model that knows nothing of it and is far too sure."""
    sizes = rng.integers(1, 15, size=groups)
    shared = np.repeat(rng.normal(0, 0.5, size=groups), sizes)
    truth = shared + rng.normal(0, 0.1, size=len(shared))
    return np.tile([-0.05, 0.0, 0.05], (len(truth), 1)), truth, np.repeat(np.arange(groups), sizes).tolist()


def test_covers_unseen_groups_where_a_calibration_on_rows_would_not() -> None:
    rng = np.random.default_rng(7)
    shares = []
    for _ in range(300):
        logs, truth, groups = _grouped(rng, groups=25)
        calibration = calibrate(logs, truth, groups)
        assert calibration.level == 0.9
        new, new_truth, _ = _grouped(rng, groups=1)
        limits = calibration.apply(new)
        shares.append(np.mean((limits[:, 0] <= new_truth) & (new_truth <= limits[:, 2])))
    # 300 trials: the standard error of the mean is below 0.02.
    assert 0.87 <= np.mean(shares) <= 0.97


@pytest.mark.parametrize("groups", [3, 4, 6])
def test_few_groups_lower_the_level_and_it_holds(groups: int) -> None:
    rng = np.random.default_rng(groups)
    shares = []
    for _ in range(400):
        calibration = calibrate(*_grouped(rng, groups))
        assert calibration.level == pytest.approx(groups / (groups + 1))
        new, truth, _ = _grouped(rng, groups=1)
        limits = calibration.apply(new)
        shares.append(np.mean((limits[:, 0] <= truth) & (truth <= limits[:, 2])))
    assert np.mean(shares) >= groups / (groups + 1) - 0.05


def test_a_large_group_weighs_no_more_than_a_small_one() -> None:
    truth = np.array([0.0] * 1000 + [3.0, 4.0, 5.0])
    logs = np.zeros((len(truth), 3))
    calibration = calibrate(logs, truth, [0] * 1000 + [1, 2, 3], level=0.5)
    # Of five groups (one to come) the large one is a fifth: the level of a half is reached only within the others.
    assert calibration.correction == 4.0


def test_too_few_groups_promise_nothing() -> None:
    with pytest.raises(ValueError, match="2 groups are too few"):
        calibrate(np.zeros((4, 3)), np.zeros(4), ["a", "a", "b", "b"])


@given(arrays(np.float64, (5, 3), elements=finite), st.floats(-10, 10))
def test_limits_always_enclose_the_middle(logs: np.ndarray, correction: float) -> None:
    logs = np.sort(logs, axis=1)
    out = Calibration(correction=correction, level=0.9, groups=9, rows=5).apply(logs)
    assert (out[:, 0] <= out[:, 1]).all()
    assert (out[:, 1] <= out[:, 2]).all()
    assert (out[:, 1] == logs[:, 1]).all()


@given(
    arrays(np.float64, (12, 3), elements=finite),
    arrays(np.float64, 12, elements=finite),
    st.lists(st.sampled_from("abcd"), min_size=8, max_size=8),
)
def test_the_correction_covers_the_calibration_rows_at_its_level(
    logs: np.ndarray, truth: np.ndarray, groups: list[str]
) -> None:
    logs = np.sort(logs, axis=1)
    names = ["a", "b", "c", "d", *groups]
    calibration = calibrate(logs, truth, names)
    errors = np.maximum(logs[:, 0] - truth, truth - logs[:, 2])
    weights = [1 / names.count(name) for name in names]
    covered = sum(w for w, error in zip(weights, errors, strict=True) if error <= calibration.correction)
    assert covered >= calibration.level * 5 - 1e-6
