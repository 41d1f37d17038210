"""SHAP values looked up are those that LightGBM works out, of any trees and any rows."""

from __future__ import annotations

import lightgbm as lgb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor.models import tree_shap
from predictor.models.tree_shap import TreeShapTable


def _booster(chance: np.random.Generator, leaves: int, unknown: float, least: int = 3) -> tuple[lgb.Booster, int]:
    """Trees on features of every sort: smooth, of few values, constant, and of which a share is unknown."""
    rows = 150
    numbers = np.column_stack(
        [chance.normal(size=(rows, 3)), chance.integers(-2, 3, (rows, 4)), np.full(rows, 7.0)]
    ).astype(float)
    numbers[chance.random(numbers.shape) < unknown] = np.nan
    target = np.nansum(numbers, axis=1) * np.nan_to_num(numbers[:, 0]) + chance.normal(size=rows)
    parameters = {"num_leaves": leaves, "min_data_in_leaf": least, "verbosity": -1, "num_threads": 1}
    return lgb.train(parameters, lgb.Dataset(numbers, label=target), num_boost_round=12), numbers.shape[1]


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**31), leaves=st.integers(2, 15), unknown=st.sampled_from([0.0, 0.1, 0.5]))
def test_they_are_those_of_lightgbm(seed: int, leaves: int, unknown: float) -> None:
    chance = np.random.default_rng(seed)
    boosters = [_booster(chance, leaves, unknown) for _ in range(2)]
    [features] = {features for _, features in boosters}
    asked = np.concatenate([chance.normal(scale=2, size=(10, features)), chance.integers(-3, 4, (10, features))])
    asked[chance.random(asked.shape) < 0.2] = np.nan
    told = sum(np.asarray(booster.predict(asked, pred_contrib=True)) for booster, _ in boosters)
    assert isinstance(told, np.ndarray)
    apart = TreeShapTable.build([booster for booster, _ in boosters], range(features))
    assert apart.contributions(asked) == pytest.approx(told[:, :-1], rel=1e-9, abs=1e-12)
    assert [apart.base] * len(asked) == pytest.approx(told[:, -1], rel=1e-9)
    groups = np.arange(features) % 3
    grouped = TreeShapTable.build([booster for booster, _ in boosters], groups.tolist())
    together = grouped.contributions(asked)
    for group in range(3):
        assert together[:, group] == pytest.approx(told[:, :-1][:, groups == group].sum(axis=1), rel=1e-9, abs=1e-12)
    # Neither what is asked beside a row nor what was asked before it changes a bit of what is said of it.
    assert (grouped.contributions(asked[7:9]) == together[7:9]).all()
    alone = TreeShapTable.build([booster for booster, _ in boosters], groups.tolist())
    assert (alone.contributions(asked[7:9]) == together[7:9]).all()


def test_few_sums_are_kept_and_all_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    booster, features = _booster(np.random.default_rng(0), leaves=7, unknown=0.1)
    asked = np.random.default_rng(1).normal(scale=2, size=(40, features))
    expected = TreeShapTable.build([booster], range(features)).contributions(asked)
    monkeypatch.setattr(tree_shap, "_MAX_CACHED", 5)
    found = TreeShapTable.build([booster], range(features))
    for row in (*range(40), *range(40)):
        assert (found.contributions(asked[row : row + 1]) == expected[row]).all()
        assert len(found._cache) <= 5


def test_trees_that_decide_nothing_add_nothing() -> None:
    booster, features = _booster(np.random.default_rng(0), leaves=7, unknown=0.0, least=140)
    found = TreeShapTable.build([booster], range(features))
    asked = np.zeros((3, features))
    assert not found.contributions(asked).any()
    assert [found.base] * 3 == pytest.approx(booster.predict(asked))
