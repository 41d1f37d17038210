"""Trees of folds of load groups: which of them answer for whom, and how much of what they say holds."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor.serving.fold_trees import FoldTrees, shrinkage
from predictor.serving.work import Array

LOAD_GROUPS = [f"model {i % 6}, device {i % 4}, vllm" for i in range(12)]
ROWS = 40


@pytest.fixture(scope="module")
def fitted() -> tuple[FoldTrees, Array, Array, list[str]]:
    """Trees with what they say of rows unseen, the rows, and their groups; the second time was not always taken."""
    drawn = np.random.default_rng(4)
    load_groups = [load_group for load_group in LOAD_GROUPS for _ in range(ROWS)]
    x = drawn.uniform(0, 1, (len(load_groups), 3))
    residuals = np.column_stack([x[:, 0], 2 * x[:, 1]]) + drawn.normal(0, 0.01, (len(x), 2))
    residuals[: 3 * ROWS, 1] = np.nan
    trees, unseen = FoldTrees.fit(x, residuals, np.ones(len(x)), load_groups)
    return trees, unseen, x, load_groups


def test_what_a_row_is_told_unseen_is_what_its_folds_trees_say(
    fitted: tuple[FoldTrees, Array, Array, list[str]],
) -> None:
    trees, unseen, x, load_groups = fitted
    again = trees.predict(x, load_groups, unseen=np.ones(len(x), dtype=bool))
    assert np.array_equal(again, unseen)
    assert np.median(np.abs(unseen[:, 0] - x[:, 0])) < 0.1


def test_trees_that_saw_a_load_group_answer_for_it_and_all_for_an_unknown_one(
    fitted: tuple[FoldTrees, Array, Array, list[str]],
) -> None:
    trees, unseen, x, load_groups = fitted
    seen = trees.predict(x, load_groups, unseen=np.zeros(len(x), dtype=bool))
    unknown = trees.predict(x, ["none such"] * len(x), unseen=np.ones(len(x), dtype=bool))
    folds = len(trees.boosters)
    assert np.allclose(unknown, ((folds - 1) * seen + unseen) / folds)


def test_what_is_stored_says_the_same(fitted: tuple[FoldTrees, Array, Array, list[str]]) -> None:
    trees, unseen, x, load_groups = fitted
    stored = FoldTrees.from_document(json.loads(json.dumps(trees.to_document())))
    assert np.array_equal(stored.predict(x, load_groups, unseen=np.ones(len(x), dtype=bool)), unseen)


@given(
    st.lists(st.tuples(st.floats(0.01, 3), st.booleans(), st.floats(-3, 3), st.floats(0.1, 5)), min_size=1, max_size=30)
)
def test_no_other_share_is_nearer(rows: list[tuple[float, bool, float, float]]) -> None:
    said = np.array([size if positive else -size for size, positive, *_ in rows])
    residuals, weights = (np.array([row[i] for row in rows]) for i in (2, 3))

    def loss(share: float) -> float:
        return float(np.sum(weights * np.abs(residuals - share * said)))

    share = shrinkage(said, residuals, weights)
    assert 0 <= share <= 1
    assert loss(share) <= min(map(loss, np.linspace(0, 1, 101))) * (1 + 1e-9) + 1e-12
