"""Baseline predictors for evaluation. The latency model must beat them in the same run."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import lightgbm as lgb
import numpy as np
import numpy.typing as npt

from predictor.data.samples import Sample
from predictor.models.analytical import roofline_terms_ms
from predictor.models.latency_model import log_latency
from predictor.models.residual_trees import REPRODUCIBLE

Array = npt.NDArray[np.float64]
Baseline = Callable[[Sequence[Sample], Sequence[Sample]], Array]
"""Takes training and test samples; returns natural logs of the latencies of the test samples."""
_LIGHTGBM_PARAMETERS = {**REPRODUCIBLE, "objective": "l1"}


def roofline(train: Sequence[Sample], test: Sequence[Sample]) -> Array:
    """Scale the roofline by the median factor by which training samples exceed it."""

    def bound(samples: Sequence[Sample]) -> Array:
        terms = roofline_terms_ms(samples)
        return np.asarray(np.log(np.maximum(terms[:, 0], terms[:, 1] + terms[:, 2])))

    return np.asarray(bound(test) + np.median(log_latency(train) - bound(train)))


def nearest_neighbor(train: Sequence[Sample], test: Sequence[Sample]) -> Array:
    """Scale the training sample of most similar cost by the FLOPs; samples of the same device come first."""
    from scipy.spatial import cKDTree

    train_costs, test_costs = _log_costs(train), _log_costs(test)
    per_flop = log_latency(train) - train_costs[:, 1]
    devices = np.array([sample.device for sample in train])
    logs = np.empty(len(test))
    for device in {sample.device for sample in test}:
        here = np.flatnonzero([sample.device == device for sample in test])
        pool = np.flatnonzero(devices == device)
        pool = pool if len(pool) else np.arange(len(train))
        _, nearest = cKDTree(train_costs[pool]).query(test_costs[here])
        logs[here] = per_flop[pool[nearest]] + test_costs[here, 1]
    return logs


def plain_trees(train: Sequence[Sample], test: Sequence[Sample]) -> Array:
    """Predict by LightGBM on costs and names, without roofline or spec sheet."""
    names = _label_codes(train)
    known = np.hstack([_log_costs(train), _encode_labels(train, names)])
    model = lgb.train(
        _LIGHTGBM_PARAMETERS,
        lgb.Dataset(known, label=log_latency(train), params=_LIGHTGBM_PARAMETERS),
        num_boost_round=300,
    )
    return np.asarray(model.predict(np.hstack([_log_costs(test), _encode_labels(test, names)]), num_threads=1))


def ridge(train: Sequence[Sample], test: Sequence[Sample]) -> Array:
    """Predict by ridge regression on log costs and one-hot names."""
    from sklearn.linear_model import Ridge

    names = _label_codes(train)

    def design(samples: Sequence[Sample]) -> Array:
        hot = [_encode_labels(samples, names)[:, i, None] == np.arange(len(known)) for i, known in enumerate(names)]
        return np.hstack([np.ones((len(samples), 1)), _log_costs(samples), *hot]).astype(np.float64)

    model = Ridge(alpha=1.0, fit_intercept=False).fit(design(train), log_latency(train))
    return np.asarray(model.predict(design(test)))


BASELINES: dict[str, Baseline] = {
    "roofline x scale": roofline,
    "nearest neighbour": nearest_neighbor,
    "plain LightGBM": plain_trees,
    "ridge on log cost": ridge,
}


def _log_costs(samples: Sequence[Sample]) -> Array:
    logs = np.log(
        [
            (c.work.parameters, max(c.work.flops, 1.0), c.work.activation_bytes, c.size, c.batch_size, c.work.steps)
            for c in samples
        ]
    )
    # Fixed input sizes are unknown; the tree and the regression need a number.
    return np.nan_to_num(logs, nan=0.0).reshape(-1, 6)


def _labels(sample: Sample) -> tuple[str, ...]:
    return sample.device, str(sample.devices), sample.backend, sample.precision, sample.layout, sample.compiler


def _label_codes(samples: Sequence[Sample]) -> list[dict[str, int]]:
    columns = zip(*map(_labels, samples), strict=True)
    return [{name: i for i, name in enumerate(sorted(set(column)))} for column in columns]


def _encode_labels(samples: Sequence[Sample], names: list[dict[str, int]]) -> Array:
    rows = [[known.get(label, np.nan) for known, label in zip(names, _labels(c), strict=True)] for c in samples]
    return np.array(rows, dtype=np.float64)
