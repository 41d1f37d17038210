"""Predictions by bit masks are those of LightGBM to the last bit, for any trees and rows."""

from __future__ import annotations

import lightgbm as lgb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor.models import tree_masks
from predictor.models.tree_masks import MAX_LEAVES, Array, TreeMasks

_PARAMETERS = {"min_data_in_leaf": 2, "verbosity": -1, "num_threads": 1}


def _booster(rng: np.random.Generator, leaves: int, unknown: float, rounds: int, width: int) -> lgb.Booster:
    """Return trees on smooth, discrete and constant features with a share of unknown and infinite values."""
    features = np.column_stack([rng.normal(size=(300, 3)), rng.integers(-2, 3, (300, width - 4)), np.full(300, 7.0)])
    target = features[:, 0] * features[:, 3] + rng.normal(size=300)
    features[rng.random(features.shape) < unknown] = np.nan
    features[rng.random(features.shape) < 0.05] = rng.choice([-np.inf, np.inf])
    return lgb.train({"num_leaves": leaves, **_PARAMETERS}, lgb.Dataset(features, label=target), num_boost_round=rounds)


def _rows(rng: np.random.Generator, count: int, width: int) -> Array:
    rows = np.column_stack([rng.normal(scale=2, size=(count, 3)), rng.integers(-3, 4, (count, width - 3))])
    odd = rng.random(rows.shape) < 0.2
    rows[odd] = rng.choice([np.nan, -np.inf, np.inf, 0.0], odd.sum())
    return rows


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**31), leaves=st.integers(2, MAX_LEAVES), unknown=st.sampled_from([0.0, 0.1, 0.5]),
    count=st.sampled_from([1, 2, 3, 40]),
)  # fmt: skip
def test_predictions_are_those_of_lightgbm(seed: int, leaves: int, unknown: float, count: int) -> None:
    rng = np.random.default_rng(seed)
    narrow, wide = _booster(rng, leaves, unknown, 12, 5), _booster(rng, MAX_LEAVES, unknown, 20, 7)
    trees = TreeMasks.build([narrow.model_to_string(), wide.model_to_string()])
    of_narrow, of_wide = _rows(rng, count, 5), _rows(rng, 2, 7)
    rows = np.full((count + 2, 7), -np.inf)
    rows[:count, :5], rows[count:] = of_narrow, of_wide
    expected = np.concatenate([np.asarray(narrow.predict(of_narrow)), np.asarray(wide.predict(of_wide))])
    models = np.array([0] * count + [1] * 2)
    assert (trees.predict(rows, models) == expected).all()
    assert (trees.predict(of_narrow, models[:count]) == expected[:count]).all()


def test_many_rows_are_predicted_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    trees = TreeMasks.build([_booster(rng, 15, 0.1, 5, 6).model_to_string() for _ in range(2)])
    rows, models = _rows(rng, 41, 6), rng.integers(0, 2, 41)
    together = trees.predict(rows, models)
    monkeypatch.setattr(tree_masks, "_ROWS_AT_ONCE", 4)
    assert (trees.predict(rows, models) == together).all()


def test_trees_that_found_nothing_to_learn_predict_their_mean() -> None:
    booster = lgb.train(_PARAMETERS, lgb.Dataset(np.zeros((50, 2)), label=np.full(50, 3.0)), num_boost_round=3)
    rows = np.random.default_rng(0).normal(size=(4, 2))
    predicted = TreeMasks.build([booster.model_to_string()]).predict(rows, np.zeros(4, dtype=np.int64))
    assert (predicted == np.asarray(booster.predict(rows))).all()
