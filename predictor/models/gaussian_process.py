"""Gaussian process over the analytical model's residuals, for unmeasured models.

One process is fitted per run group (device, runtime and precision), over a model's cost and architecture features.
Trees are piecewise constant and a Gaussian process is smooth, so their errors differ, and their mean errs less than
either.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_factor, cho_solve

from predictor.data.fast_path import require_slow_path
from predictor.data.features import architecture_table
from predictor.data.samples import Sample
from predictor.models.analytical import AdditiveRoofline

Array = npt.NDArray[np.float64]
_MIN_SAMPLES = 50
_MAX_SAMPLES = 1_500
"""Least and most figures of a run group to fit a process to. The fitting time grows with their cube."""
_LENGTH_SCALE, _BLOCK_SCALE = 3.0, 0.5
"""Length scale of the standardized costs, and the distance that a difference in one architecture feature adds."""
_NOISE, _LINEAR_WEIGHT = 0.1, 0.01
"""Variance of the noise, and weight of the linear kernel beside the Matérn kernel of weight 1."""


class ArchitectureGP:
    """Gaussian processes by run group, each fitted on first use."""

    def __init__(self, samples: Sequence[Sample], logs: Array, analytical: AdditiveRoofline) -> None:
        self._samples, self._logs, self._analytical = samples, logs, analytical
        self._rows: dict[str, list[int]] = defaultdict(list)
        for i, sample in enumerate(samples):
            self._rows[_run_group(sample)].append(i)
        self._fitted: dict[str, _GroupGP] = {}

    def predict_log(self, samples: Sequence[Sample]) -> Array:
        """Return natural logs of latencies; NaN where the run group has too few figures."""
        logs = np.full(len(samples), np.nan)
        by_group: dict[str, list[int]] = defaultdict(list)
        for i, sample in enumerate(samples):
            if len(self._rows.get(_run_group(sample), ())) >= _MIN_SAMPLES:
                by_group[_run_group(sample)].append(i)
        for group, here in by_group.items():
            logs[here] = self._fit_group(group).predict_log([samples[i] for i in here])
        return logs

    def warm_up(self) -> None:
        """Fit every run group with enough figures."""
        for group, rows in self._rows.items():
            if len(rows) >= _MIN_SAMPLES:
                self._fit_group(group)

    def _fit_group(self, group: str) -> _GroupGP:
        if group not in self._fitted:
            require_slow_path()
            rows = self._rows[group]
            if len(rows) > _MAX_SAMPLES:
                chosen = np.random.default_rng(0).permutation(len(rows))[:_MAX_SAMPLES]
                rows = [rows[i] for i in np.sort(chosen).tolist()]
            self._fitted[group] = _GroupGP.fit([self._samples[i] for i in rows], self._logs[rows], self._analytical)
        return self._fitted[group]


@dataclass(frozen=True)
class _GroupGP:
    analytical: AdditiveRoofline
    center: float
    mean: Array
    scale: Array
    points: Array
    weights: Array

    @classmethod
    def fit(cls, samples: Sequence[Sample], logs: Array, analytical: AdditiveRoofline) -> _GroupGP:
        residuals = logs - analytical.predict_log(samples)
        center = float(np.median(residuals))
        costs = _cost_features(samples)
        mean, scale = costs.mean(axis=0), costs.std(axis=0)
        scale[scale < 1e-6] = 1.0
        points = _embed(samples, mean, scale)
        covariance = _kernel(points, points) + _NOISE * np.eye(len(points))
        return cls(analytical, center, mean, scale, points, cho_solve(cho_factor(covariance), residuals - center))

    def predict_log(self, samples: Sequence[Sample]) -> Array:
        near = _kernel(_embed(samples, self.mean, self.scale), self.points)
        return np.asarray(self.analytical.predict_log(samples) + self.center + near @ self.weights)


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
    blocks = architecture_table([sample.model for sample in samples])
    return np.hstack([(_cost_features(samples) - mean) / scale / _LENGTH_SCALE, blocks * _BLOCK_SCALE])


def _kernel(one: Array, other: Array) -> Array:
    """Return the Matérn 3/2 kernel plus a linear one (Rasmussen and Williams, 2006, 4.2)."""
    products = one @ other.T
    squared_distances = (one**2).sum(axis=1)[:, None] + (other**2).sum(axis=1) - 2 * products
    scaled = np.sqrt(3 * np.maximum(squared_distances, 0.0))
    return np.asarray((1 + scaled) * np.exp(-scaled) + _LINEAR_WEIGHT * products)
