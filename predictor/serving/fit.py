"""Fitting and judging the serving predictor on shipped measured loads.

`python -m predictor.serving.fit` writes the predictor that ships with the package; do so when the pack, the formula,
the features or the spec sheet change.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence

import numpy as np

from predictor.calibration.conformal import Calibration, calibrate
from predictor.serving.measured_loads import MeasuredLoad, groups_of, load_measured_loads
from predictor.serving.predictor import SHIPPED, ServingPredictor, fit, predict_times, save
from predictor.serving.work import Array, Work, work_of

LEVEL = 0.8
"""Share of rows of an unseen device and of an unseen model that intervals aim to hold."""


def row_weights(rows: Sequence[MeasuredLoad]) -> Array:
    """Return a weight per row: a campaign of many rows counts more than one of few, but not as much more."""
    campaigns = [(row.model, row.deployment.device.name, row.deployment.engine) for row in rows]
    sizes = Counter(campaigns)
    weights = np.array([sizes[campaign] ** -0.5 for campaign in campaigns])
    return np.asarray(weights / weights.mean())


def leave_out(rows: Sequence[MeasuredLoad], groups: Sequence[str]) -> tuple[Array, Array]:
    """Return logs of predicted over measured times, per output token and to the first, each group left out in turn.

    NaN where nobody timed a first token.
    """
    names = np.array(groups)
    token_ms, first_ms = _times(rows)
    token_error, first_error = np.zeros(len(rows)), np.zeros(len(rows))
    for name in np.unique(names):
        out = names == name
        rest = [row for row, here in zip(rows, out, strict=True) if not here]
        learned = fit(_work(rest), token_ms[~out], first_ms[~out], row_weights(rest))
        token, first = predict_times(_work([row for row, here in zip(rows, out, strict=True) if here]), *learned)
        token_error[out], first_error[out] = np.log(token / token_ms[out]), np.log(first / first_ms[out])
    return token_error, first_error


def fit_shipped(rows: Sequence[MeasuredLoad]) -> ServingPredictor:
    """Return the predictor learned from all rows, with the errors that leaving out devices and models shows."""
    left_out = [(leave_out(rows, groups), groups) for groups in map(groups_of(rows).__getitem__, ("device", "model"))]

    def calibration(of: int, here: Array) -> Calibration:
        errors = np.concatenate([found[of][here] for found, _ in left_out])
        names = [name for _, groups in left_out for name in np.array(groups)[here]]
        return calibrate(np.abs(errors), names, level=LEVEL)

    batch = np.array([row.load.batch for row in rows])
    timed = np.isfinite([row.first_ms for row in rows])
    return ServingPredictor(
        *fit(_work(rows), *_times(rows), row_weights(rows)),
        token_error=calibration(0, timed),
        first_error=calibration(1, timed),
        batch_error=calibration(0, batch),
    )


def _work(rows: Sequence[MeasuredLoad]) -> Work:
    return work_of([(row.deployment, row.load) for row in rows])


def _times(rows: Sequence[MeasuredLoad]) -> tuple[Array, Array]:
    return np.array([row.token_ms for row in rows]), np.array([row.first_ms for row in rows])


if __name__ == "__main__":
    shipped = fit_shipped(load_measured_loads())
    save(shipped, SHIPPED)
    sys.stderr.write(f"token: {shipped.token_error}\nfirst: {shipped.first_error}\nbatch: {shipped.batch_error}\n")
