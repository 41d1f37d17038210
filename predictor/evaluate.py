"""How good the model is on families it has not seen: out-of-fold predictions and what they say. Nothing is saved."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from predictor.features import Features
from predictor.intervals import FEWEST_GROUPS, calibrate
from predictor.quantiles import QUANTILES, QuantileModel

Matrix = npt.NDArray[np.float64]
_MOST_FOLDS = 10


@dataclass(frozen=True)
class OutOfFold:
    """Every row predicted by a model that saw nothing of its family; all in natural logarithms."""

    quantiles: Matrix
    baseline: Matrix
    truth: Matrix
    groups: tuple[str, ...]


def cross_validate(rows: Sequence[Features], logs: Matrix, groups: Sequence[str]) -> OutOfFold:
    """Leave one family out; with more than ten families, a tenth of the rows' families at a time."""
    folds = _folds(groups)
    quantiles = np.empty((len(rows), len(QUANTILES)))
    baseline = np.empty(len(rows))
    for fold in sorted(set(folds)):
        test = [i for i, f in enumerate(folds) if f == fold]
        train = [i for i, f in enumerate(folds) if f != fold]
        model = QuantileModel.fit([rows[i] for i in train], logs[train])
        held_out = [rows[i] for i in test]
        quantiles[test] = model.predict(held_out)
        baseline[test] = model.baseline(held_out)
    return OutOfFold(quantiles, baseline, logs, tuple(groups))


def metrics_of(out: OutOfFold) -> dict[str, Any]:
    """Errors as fractions of the truth, and how often the calibrated interval held.

    `coverage` judges each family with an interval calibrated on the others; None where those are too few. It uses the
    same folds as the calibration and so is a little kinder than a wholly fresh family would be.
    """
    error = np.abs(np.expm1(out.quantiles[:, 1] - out.truth))
    inside: list[bool] = []
    factors: list[float] = []
    level = None
    groups = np.array(out.groups)
    names = sorted(set(out.groups))
    if len(names) > FEWEST_GROUPS:
        for name in names:
            here, others = groups == name, groups != name
            calibration = calibrate(out.quantiles[others], out.truth[others], groups[others].tolist())
            limits = calibration.apply(out.quantiles[here])
            truth = out.truth[here]
            inside += ((limits[:, 0] <= truth) & (truth <= limits[:, 2])).tolist()
            factors += np.exp(limits[:, 2] - limits[:, 0]).tolist()
            level = calibration.level
    return {
        "split": "unseen model family",
        "rows": len(out.truth),
        "families": len(names),
        "median_ape": float(np.median(error)),
        "mean_ape": float(np.mean(error)),
        "ridge_median_ape": float(np.median(np.abs(np.expm1(out.baseline - out.truth)))),
        "coverage": float(np.mean(inside)) if inside else None,
        "coverage_aimed_at": level,
        "interval_high_over_low": float(np.median(factors)) if factors else None,
        "median_ape_by_family": {name: float(np.median(error[groups == name])) for name in names},
    }


def _folds(groups: Sequence[str]) -> list[int]:
    """A fold per row, families whole: the largest family first, each into the fold with the fewest rows so far."""
    sizes = Counter(groups)
    count = min(len(sizes), _MOST_FOLDS)
    load = [0] * count
    fold_of = {}
    for name in sorted(sizes, key=lambda n: (-sizes[n], n)):
        fold_of[name] = load.index(min(load))
        load[fold_of[name]] += sizes[name]
    return [fold_of[name] for name in groups]
