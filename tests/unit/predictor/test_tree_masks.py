"""Predictions by bit masks are those of LightGBM to the last bit, for any trees and rows."""

from __future__ import annotations

import lightgbm as lgb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor.models import tree_masks
from predictor.models.tree_masks import MAX_LEAVES, TreeMasks
from predictor.operators.predictor import shipped_predictor


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**31), leaves=st.integers(2, MAX_LEAVES), unknown=st.sampled_from([0.0, 0.1, 0.5]),
    count=st.sampled_from([1, 2, 3, 40]),
)  # fmt: skip
def test_predictions_are_those_of_lightgbm(seed: int, leaves: int, unknown: float, count: int) -> None:
    rng = np.random.default_rng(seed)
    features = np.column_stack([rng.normal(size=(300, 3)), rng.integers(-2, 3, (300, 3)), np.full(300, 7.0)])
    target = features[:, 0] * features[:, 3] + rng.normal(size=300)
    features[rng.random(features.shape) < unknown] = np.nan
    features[rng.random(features.shape) < 0.05] = rng.choice([-np.inf, np.inf])
    parameters = {"num_leaves": leaves, "min_data_in_leaf": 2, "verbosity": -1, "num_threads": 1}
    booster = lgb.train(parameters, lgb.Dataset(features, label=target), num_boost_round=20)
    rows = np.column_stack([rng.normal(scale=2, size=(count, 3)), rng.integers(-3, 4, (count, 4))]).astype(float)
    odd = rng.random(rows.shape) < 0.2
    rows[odd] = rng.choice([np.nan, -np.inf, np.inf, 0.0], odd.sum())
    predicted = TreeMasks.build(booster.model_to_string()).predict(rows)
    assert (predicted == np.asarray(booster.predict(rows))).all()


def test_many_rows_are_predicted_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.random.default_rng(0).normal(size=(41, 6))
    trees = shipped_predictor().utilization.classes["linear"].trees
    together = trees.predict(rows)
    monkeypatch.setattr(tree_masks, "_ROWS_AT_ONCE", 4)
    assert (trees.predict(rows) == together).all()


def test_trees_that_found_nothing_to_learn_predict_their_mean() -> None:
    parameters = {"verbosity": -1, "num_threads": 1}
    booster = lgb.train(parameters, lgb.Dataset(np.zeros((50, 2)), label=np.full(50, 3.0)), num_boost_round=3)
    rows = np.random.default_rng(0).normal(size=(4, 2))
    predicted = TreeMasks.build(booster.model_to_string()).predict(rows)
    assert predicted == pytest.approx(np.asarray(booster.predict(rows)))
