"""Cross-fitted boosted trees on the log residuals of the serving formula.

A load group is all measured loads of one model, device and engine. The groups are divided into folds, and each fold
has trees that were fitted without it. So the trees' errors on unseen load groups are known. A prediction may use either
the trees that saw its load group or those that did not.
"""

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
    """Trees for each fold of load groups, fitted to the other folds."""

    boosters: tuple[tuple[lgb.Booster, ...], ...]
    """By fold, then by column of the residuals (time per output token, time to the first token)."""
    folds: Mapping[str, int]
    """Fold of each load group: the one whose trees were fitted without it."""

    @classmethod
    def fit(cls, x: Array, residuals: Array, weights: Array, load_groups: Sequence[str]) -> tuple[FoldTrees, Array]:
        """Fit the trees, and return them with the out-of-fold prediction of each row.

        Parameters
        ----------
        x
            Features, one row per load.
        residuals
            Log of measured over formula, one column for each of the two times; NaN where a time was not measured.
        weights
            Weight of each load.
        load_groups
            Name of each load's load group.
        """
        unseen = np.full_like(residuals, np.nan)
        boosters: list[tuple[lgb.Booster, ...]] = []
        folds: dict[str, int] = {}
        for number, (seen, out) in enumerate(GroupKFold(_FOLDS).split(x, groups=load_groups)):
            of_fold = []
            for column in range(residuals.shape[1]):
                rows = seen[np.isfinite(residuals[seen, column])]
                trees = lgb.LGBMRegressor(**TREES).fit(x[rows], residuals[rows, column], sample_weight=weights[rows])
                unseen[out, column] = predict_trees(trees.booster_, x[out])
                of_fold.append(trees.booster_)
            boosters.append(tuple(of_fold))
            folds |= {load_groups[i]: number for i in out}
        return cls(tuple(boosters), folds), unseen

    def predict(self, x: Array, load_groups: Sequence[str], *, unseen: npt.NDArray[np.bool_]) -> Array:
        """Return the expected log residuals, one row per load and one column for each of the two times.

        They are the mean over the trees that were fitted to the row's load group. Where `unseen` is True, they are the
        prediction of those fitted without it. For a load group that is in no fold they are the mean over all trees.
        """
        by_fold = np.stack([np.column_stack([predict_trees(trees, x) for trees in fold]) for fold in self.boosters])
        fold = np.array([self.folds.get(load_group, -1) for load_group in load_groups])
        out = np.arange(len(self.boosters))[:, None] == fold
        used = np.where(fold < 0, True, out == unseen)
        return np.asarray(np.sum(by_fold * used[..., None], axis=0) / used.sum(axis=0)[:, None])

    def to_document(self) -> dict[str, Any]:
        """Return the trees as JSON values, which `from_document` reads."""
        texts = [[trees.model_to_string(num_iteration=-1) for trees in fold] for fold in self.boosters]
        return {"boosters": texts, "folds": dict(self.folds)}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> FoldTrees:
        """Return the trees that `to_document` wrote."""
        boosters = tuple(tuple(lgb.Booster(model_str=text) for text in fold) for fold in document["boosters"])
        return cls(boosters, dict(document["folds"]))


def shrinkage(predicted: Array, residuals: Array, weights: Array) -> float:
    """Return the factor, 0 to 1, by which out-of-fold predictions are to be multiplied to fit the residuals best.

    It minimizes the weighted sum of absolute errors |residual - factor · predicted|. The minimum is the weighted median
    of residual / predicted, with weights · |predicted| as weights. The predictions are those for unseen load groups.
    """
    ratios, counts = residuals / predicted, weights * np.abs(predicted)
    order = np.argsort(ratios)
    middle = np.searchsorted(np.cumsum(counts[order]), counts.sum() / 2)
    return float(np.clip(ratios[order][middle], 0.0, 1.0))


def predict_trees(trees: lgb.Booster, x: Array) -> Array:
    """Return the predictions of one booster. One thread computes them, because starting more takes longer."""
    return np.asarray(trees.predict(x, num_threads=1))
