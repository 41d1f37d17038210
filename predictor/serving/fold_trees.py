"""Trees over what the formula leaves, each learned without some campaigns, to know how far they hold on others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import lightgbm as lgb
import numpy as np
import numpy.typing as npt
from sklearn.model_selection import GroupKFold

from predictor.serving.work import Array

_FOLDS = 4
TREES: dict[str, Any] = {
    "objective": "l1", "n_estimators": 300, "learning_rate": 0.04, "num_leaves": 31, "min_child_samples": 30,
    "extra_trees": True, "subsample": 0.8, "subsample_freq": 1, "colsample_bytree": 0.5, "verbose": -1,
    "deterministic": True, "random_state": 0,
    "n_jobs": 1,  # several threads wait for each other on a busy machine, and the tables are small
}  # fmt: skip


@dataclass(frozen=True)
class FoldTrees:
    """Trees of each fold of campaigns, learned from the other folds."""

    boosters: tuple[tuple[lgb.Booster, ...], ...]
    """By fold, one for each column of residuals."""
    folds: Mapping[str, int]
    """Fold of each campaign, whose trees did not see it."""

    @classmethod
    def fit(cls, x: Array, residuals: Array, weights: Array, campaigns: Sequence[str]) -> tuple[FoldTrees, Array]:
        """Return the trees, and what those say of each row that did not see its campaign.

        Residuals have a column for each time; NaN where nobody measured it.
        """
        unseen = np.full_like(residuals, np.nan)
        boosters: list[tuple[lgb.Booster, ...]] = []
        folds: dict[str, int] = {}
        for number, (seen, out) in enumerate(GroupKFold(_FOLDS).split(x, groups=campaigns)):
            of_fold = []
            for column in range(residuals.shape[1]):
                rows = seen[np.isfinite(residuals[seen, column])]
                trees = lgb.LGBMRegressor(**TREES).fit(x[rows], residuals[rows, column], sample_weight=weights[rows])
                unseen[out, column] = predict_trees(trees.booster_, x[out])
                of_fold.append(trees.booster_)
            boosters.append(tuple(of_fold))
            folds |= {campaigns[i]: number for i in out}
        return cls(tuple(boosters), folds), unseen

    def predict(self, x: Array, campaigns: Sequence[str], *, unseen: npt.NDArray[np.bool_]) -> Array:
        """Return the residuals expected, a column for each time.

        Trees that saw a row's campaign answer for it, or where `unseen` those that did not; all of them for a campaign
        that none saw.
        """
        by_fold = np.stack([np.column_stack([predict_trees(trees, x) for trees in fold]) for fold in self.boosters])
        fold = np.array([self.folds.get(campaign, -1) for campaign in campaigns])
        out = np.arange(len(self.boosters))[:, None] == fold
        used = np.where(fold < 0, True, out == unseen)
        return np.asarray(np.sum(by_fold * used[..., None], axis=0) / used.sum(axis=0)[:, None])

    def to_document(self) -> dict[str, Any]:
        """Return what `from_document` reads back, in JSON's types."""
        texts = [[trees.model_to_string(num_iteration=-1) for trees in fold] for fold in self.boosters]
        return {"boosters": texts, "folds": dict(self.folds)}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> FoldTrees:
        """Return the trees of `to_document`."""
        boosters = tuple(tuple(lgb.Booster(model_str=text) for text in fold) for fold in document["boosters"])
        return cls(boosters, dict(document["folds"]))


def share_that_holds(said: Array, residuals: Array, weights: Array) -> float:
    """Return the share of what trees say that is nearest to the residuals of campaigns which they did not see, 0 to 1.

    It has the least weighted sum of absolute errors: the median of residual over said, each as often as the weight
    times the size of what is said.
    """
    ratios, counts = residuals / said, weights * np.abs(said)
    order = np.argsort(ratios)
    middle = np.searchsorted(np.cumsum(counts[order]), counts.sum() / 2)
    return float(np.clip(ratios[order][middle], 0.0, 1.0))


def predict_trees(trees: lgb.Booster, x: Array) -> Array:
    """Return the predictions of one booster, in one thread, because several take longer than so few rows do."""
    return np.asarray(trees.predict(x, num_threads=1))
