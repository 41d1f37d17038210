"""The learned part: a ridge baseline on logarithms and LightGBM quantile models on what is left over. No files here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import lightgbm as lgb
import numpy as np
import numpy.typing as npt

from predictor.answers import LEVEL
from predictor.features import CATEGORICAL, NUMERIC, Features

Matrix = npt.NDArray[np.float64]
QUANTILES = (round((1 - LEVEL) / 2, 6), 0.5, round((1 + LEVEL) / 2, 6))
_RIDGE = 1.0
_ROUNDS = 150
_PARAMETERS = {
    "objective": "quantile",
    "learning_rate": 0.05,
    "num_leaves": 8,
    "min_data_in_leaf": 5,
    "min_data_per_group": 5,
    "cat_smooth": 5.0,
    "lambda_l2": 1.0,
    "num_threads": 1,  # several threads on a busy host make one prediction forty times slower
    "deterministic": True,
    "force_row_wise": True,
    "seed": 0,
    "verbosity": -1,
}


@dataclass(frozen=True)
class Encoder:
    """Turns features into numbers: the names seen in training, and mean and scale of each numeric column."""

    categories: tuple[tuple[str, ...], ...]
    mean: tuple[float, ...]
    scale: tuple[float, ...]

    @classmethod
    def fit(cls, rows: list[Features]) -> Encoder:
        numeric = np.array([row.numeric for row in rows], dtype=np.float64)
        known = ~np.isnan(numeric)
        counts = np.maximum(known.sum(axis=0), 1)
        mean = np.where(known, numeric, 0).sum(axis=0) / counts
        variance = np.where(known, (numeric - mean) ** 2, 0).sum(axis=0) / counts
        names = [sorted({row.categorical[i] or "" for row in rows} - {""}) for i in range(len(CATEGORICAL))]
        return cls(
            categories=tuple(map(tuple, names)),
            mean=tuple(mean.tolist()),
            scale=tuple(np.where(variance > 1e-12, np.sqrt(variance), 1.0).tolist()),
        )

    def linear(self, rows: list[Features]) -> Matrix:
        """For the ridge: 1, standardised numbers (unknown becomes the mean), and one column per name seen."""
        numeric = (np.array([row.numeric for row in rows], dtype=np.float64) - self.mean) / self.scale
        columns = [np.ones((len(rows), 1)), np.nan_to_num(numeric, nan=0.0)]
        for i, names in enumerate(self.categories):
            columns.append(np.array([[float(row.categorical[i] == name) for name in names] for row in rows]))
        return np.hstack([c.reshape(len(rows), -1) for c in columns])

    def trees(self, rows: list[Features], baseline: Matrix) -> Matrix:
        """For LightGBM: numbers with NaN for unknown, names as their index (NaN where never seen), the baseline."""
        numeric = np.array([row.numeric for row in rows], dtype=np.float64)
        index = [{name: float(i) for i, name in enumerate(names)} for names in self.categories]
        names = [[index[i].get(name or "", np.nan) for i, name in enumerate(row.categorical)] for row in rows]
        return np.hstack([numeric, np.array(names, dtype=np.float64), baseline.reshape(-1, 1)])


@dataclass(frozen=True)
class QuantileModel:
    """Predicts the quantiles of a positive figure's logarithm."""

    encoder: Encoder
    coefficients: tuple[float, ...]
    boosters: tuple[lgb.Booster, ...]
    """One per quantile of QUANTILES, of the difference between truth and baseline."""

    @classmethod
    def fit(cls, rows: list[Features], logs: Matrix) -> QuantileModel:
        """Fit to the natural logarithms of the target; equal input gives equal models, bit for bit."""
        encoder = Encoder.fit(rows)
        design = encoder.linear(rows)
        penalty = np.eye(design.shape[1]) * _RIDGE
        penalty[0, 0] = 0.0
        coefficients = np.linalg.solve(design.T @ design + penalty, design.T @ logs)
        baseline = design @ coefficients
        matrix = encoder.trees(rows, baseline)
        boosters = tuple(_boost(matrix, logs - baseline, quantile) for quantile in QUANTILES)
        return cls(encoder, tuple(coefficients.tolist()), boosters)

    def baseline(self, rows: list[Features]) -> Matrix:
        """The ridge alone: log of the figure."""
        return np.asarray(self.encoder.linear(rows) @ np.array(self.coefficients))

    def predict(self, rows: list[Features]) -> Matrix:
        """Logs, one row per cell and one column per quantile, in order: low <= middle <= high."""
        baseline = self.baseline(rows)
        matrix = self.encoder.trees(rows, baseline)
        raw = [np.asarray(b.predict(matrix, num_threads=1)) + baseline for b in self.boosters]
        return np.sort(np.stack(raw, axis=1), axis=1)


def _boost(matrix: Matrix, target: Matrix, quantile: float) -> lgb.Booster:
    first = len(NUMERIC)
    parameters: dict[str, Any] = {**_PARAMETERS, "alpha": quantile}
    data = lgb.Dataset(
        matrix,
        label=target,
        feature_name=[*NUMERIC, *CATEGORICAL, "baseline"],
        categorical_feature=list(range(first, first + len(CATEGORICAL))),
        params=parameters,
    )
    return lgb.train(parameters, data, num_boost_round=_ROUNDS)
