"""Tabulated SHAP values equal those of LightGBM, for any trees and rows."""

from __future__ import annotations

import lightgbm as lgb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor.models import tree_shap
from predictor.models.tree_shap import TreeShapTable


def _booster(rng: np.random.Generator, leaves: int, unknown: float, least: int = 3) -> tuple[lgb.Booster, int]:
    """Return trees on smooth, discrete and constant features with a share of unknown values."""
    rows = 150
    features = np.column_stack([rng.normal(size=(rows, 3)), rng.integers(-2, 3, (rows, 4)), np.full(rows, 7.0)]).astype(
        float
    )
    features[rng.random(features.shape) < unknown] = np.nan
    target = np.nansum(features, axis=1) * np.nan_to_num(features[:, 0]) + rng.normal(size=rows)
    parameters = {"num_leaves": leaves, "min_data_in_leaf": least, "verbosity": -1, "num_threads": 1}
    return lgb.train(parameters, lgb.Dataset(features, label=target), num_boost_round=12), features.shape[1]


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**31), leaves=st.integers(2, 15), unknown=st.sampled_from([0.0, 0.1, 0.5]))
def test_values_equal_those_of_lightgbm(seed: int, leaves: int, unknown: float) -> None:
    rng = np.random.default_rng(seed)
    boosters = [_booster(rng, leaves, unknown) for _ in range(2)]
    [features] = {features for _, features in boosters}
    rows = np.concatenate([rng.normal(scale=2, size=(10, features)), rng.integers(-3, 4, (10, features))])
    rows[rng.random(rows.shape) < 0.2] = np.nan
    expected = sum(np.asarray(booster.predict(rows, pred_contrib=True)) for booster, _ in boosters)
    assert isinstance(expected, np.ndarray)
    ungrouped = TreeShapTable.build([booster for booster, _ in boosters], range(features))
    assert ungrouped.contributions(rows) == pytest.approx(expected[:, :-1], rel=1e-9, abs=1e-12)
    assert [ungrouped.base] * len(rows) == pytest.approx(expected[:, -1], rel=1e-9)
    groups = np.arange(features) % 3
    grouped = TreeShapTable.build([booster for booster, _ in boosters], groups.tolist())
    together = grouped.contributions(rows)
    for group in range(3):
        assert together[:, group] == pytest.approx(
            expected[:, :-1][:, groups == group].sum(axis=1), rel=1e-9, abs=1e-12
        )
    # Not a bit depends on the other rows or on earlier calls.
    assert (grouped.contributions(rows[7:9]) == together[7:9]).all()
    alone = TreeShapTable.build([booster for booster, _ in boosters], groups.tolist())
    assert (alone.contributions(rows[7:9]) == together[7:9]).all()


def test_the_cache_is_bounded_and_values_stay_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    booster, features = _booster(np.random.default_rng(0), leaves=7, unknown=0.1)
    rows = np.random.default_rng(1).normal(scale=2, size=(40, features))
    expected = TreeShapTable.build([booster], range(features)).contributions(rows)
    monkeypatch.setattr(tree_shap, "_MAX_CACHED", 5)
    found = TreeShapTable.build([booster], range(features))
    for row in (*range(40), *range(40)):
        assert (found.contributions(rows[row : row + 1]) == expected[row]).all()
        assert len(found._cache) <= 5


def test_trees_without_splits_contribute_nothing() -> None:
    booster, features = _booster(np.random.default_rng(0), leaves=7, unknown=0.0, least=140)
    found = TreeShapTable.build([booster], range(features))
    rows = np.zeros((3, features))
    assert not found.contributions(rows).any()
    assert [found.base] * 3 == pytest.approx(booster.predict(rows))


def test_values_are_the_same_before_and_after_all_outcomes_are_computed() -> None:
    booster, features = _booster(np.random.default_rng(2), leaves=15, unknown=0.1)
    rows = np.random.default_rng(3).normal(scale=2, size=(20, features))
    as_met, completed = (TreeShapTable.build([booster], range(features)) for _ in range(2))
    completed.complete()
    assert completed.known.all()
    assert not as_met.known.any()
    one_by_one = np.concatenate([as_met.contributions(rows[i : i + 1]) for i in range(len(rows))])
    assert (one_by_one == completed.contributions(rows)).all()
    assert not as_met.known.all()
    assert (as_met.table[as_met.known] == completed.table[as_met.known]).all()
