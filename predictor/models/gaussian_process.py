"""What models like it leave over of the law where they were run in the same way: for a model that was measured nowhere.

A Gaussian process per way of running, over what a model costs and what its name says it is built of. Trees cut the
space of models into boxes; this bends through it: each errs elsewhere, so their mean errs less than either.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_factor, cho_solve

from predictor.data.features import architecture_features
from predictor.data.samples import Sample
from predictor.models.analytical import AdditiveRoofline

Array = npt.NDArray[np.float64]
_MIN_SAMPLES = 50
_MAX_SAMPLES = 1_500
"""Figures of one way of running: fewer say too little of what models have in common, and time grows with their cube."""
_LENGTH_SCALE, _BLOCK_SCALE = 3.0, 0.5
"""Standard deviations of a cost over which models grow unlike, and how far apart one kind of block puts them."""
_NOISE, _LINEAR_WEIGHT = 0.1, 0.01
"""Share of what is left that is a model's own, and of what runs on in a straight line."""


class ArchitectureGP:
    """Fitted on cases, a way of running when it is first asked for."""

    def __init__(self, samples: Sequence[Sample], logs: Array, analytical: AdditiveRoofline) -> None:
        self._cases, self._logs, self._analytical = samples, logs, analytical
        self._rows: dict[str, list[int]] = defaultdict(list)
        for i, sample in enumerate(samples):
            self._rows[_run_group(sample)].append(i)
        self._fitted: dict[str, _GroupGP] = {}

    def predict_log(self, samples: Sequence[Sample]) -> Array:
        """Natural logs of latencies; NaN where too little was run in the same way."""
        found = np.full(len(samples), np.nan)
        asked: dict[str, list[int]] = defaultdict(list)
        for i, sample in enumerate(samples):
            if len(self._rows.get(_run_group(sample), ())) >= _MIN_SAMPLES:
                asked[_run_group(sample)].append(i)
        for way, here in asked.items():
            found[here] = self._fit_group(way).predict_log([samples[i] for i in here])
        return found

    def warm_up(self) -> None:
        """Fit every way of running that there is enough of."""
        for way, rows in self._rows.items():
            if len(rows) >= _MIN_SAMPLES:
                self._fit_group(way)

    def _fit_group(self, way: str) -> _GroupGP:
        if way not in self._fitted:
            rows = self._rows[way]
            if len(rows) > _MAX_SAMPLES:
                drawn = np.random.default_rng(0).permutation(len(rows))[:_MAX_SAMPLES]
                rows = [rows[i] for i in np.sort(drawn).tolist()]
            self._fitted[way] = _GroupGP.fit([self._cases[i] for i in rows], self._logs[rows], self._analytical)
        return self._fitted[way]


@dataclass(frozen=True)
class _GroupGP:
    analytical: AdditiveRoofline
    middle: float
    mean: Array
    scale: Array
    points: Array
    weights: Array

    @classmethod
    def fit(cls, samples: Sequence[Sample], logs: Array, analytical: AdditiveRoofline) -> _GroupGP:
        left = logs - analytical.predict_log(samples)
        middle = float(np.median(left))
        costs = _cost_features(samples)
        mean, scale = costs.mean(axis=0), costs.std(axis=0)
        scale[scale < 1e-6] = 1.0
        points = _embed(samples, mean, scale)
        covariance = _kernel(points, points) + _NOISE * np.eye(len(points))
        return cls(analytical, middle, mean, scale, points, cho_solve(cho_factor(covariance), left - middle))

    def predict_log(self, samples: Sequence[Sample]) -> Array:
        near = _kernel(_embed(samples, self.mean, self.scale), self.points)
        return np.asarray(self.analytical.predict_log(samples) + self.middle + near @ self.weights)


def _run_group(sample: Sample) -> str:
    return f"{sample.setting} {sample.hardware} {sample.precision} {sample.counted} {sample.reads}"


def _cost_features(samples: Sequence[Sample]) -> Array:
    rows = []
    for sample in samples:
        work, batch = sample.work, sample.batch_size
        rows.append((work.parameters, max(work.flops, 1.0) / batch, work.activation_bytes / batch, sample.size, batch))
    p, f, a, size, batch = np.nan_to_num(np.log(rows)).T
    return np.column_stack([p, f, a, f - a, p - f, f - 2 * size, a - 2 * size, size, batch])


def _embed(samples: Sequence[Sample], mean: Array, scale: Array) -> Array:
    blocks = np.array([architecture_features(sample.model) for sample in samples], dtype=np.float64)
    return np.hstack([(_cost_features(samples) - mean) / scale / _LENGTH_SCALE, blocks * _BLOCK_SCALE])


def _kernel(one: Array, other: Array) -> Array:
    """Matérn 3/2, and a straight line (Rasmussen and Williams, 2006, 4.2)."""
    products = one @ other.T
    squares = (one**2).sum(axis=1)[:, None] + (other**2).sum(axis=1) - 2 * products
    far = np.sqrt(3 * np.maximum(squares, 0.0))
    return np.asarray((1 + far) * np.exp(-far) + _LINEAR_WEIGHT * products)
