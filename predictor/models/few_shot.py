"""Few-shot correction of predictions for a device with a few figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from predictor.data.samples import Sample
from predictor.models.analytical import roofline_terms_ms

Array = npt.NDArray[np.float64]
_NOISE_STD = 0.1
_PRIOR_STD = (1.0, 0.4, 0.03, 0.03, 0.03)
_STRETCH_STD = 0.1


@dataclass(frozen=True)
class Correction:
    """Bayesian regression of a device's residuals, made for about ten figures.

    Prior standard deviations in logs: device 1, compiled 0.4, and 0.03 for each of intensity, work and batch. What
    sets models apart beyond the analytical model may differ here by a share of 0.1. Figures scatter by 0.1 with the
    tails of Student's t (4 degrees), so that one odd figure of ten does not decide.
    """

    center: Array
    scale: Array
    coefficients: Array

    @classmethod
    def fit(cls, samples: Sequence[Sample], beyond: Array, residuals: Array) -> Correction:
        """Fit to the residuals of samples, in logs; `beyond` is the prediction less the analytical model's."""
        raw = _features(samples, beyond)
        center, scale = raw.mean(axis=0), np.maximum(raw.std(axis=0), 1e-6)
        design = _with_intercept((raw - center) / scale)
        prior = np.diag(np.array([*_PRIOR_STD, _STRETCH_STD * scale[-1]]) ** 2)
        weights, coefficients = np.ones(len(samples)), np.zeros(design.shape[1])
        for _ in range(6):
            noise = np.diag(_NOISE_STD**2 / weights)
            coefficients = prior @ design.T @ np.linalg.solve(design @ prior @ design.T + noise, residuals)
            weights = 5 / (4 + ((residuals - design @ coefficients) / _NOISE_STD) ** 2)
        return cls(center, scale, coefficients)

    def predict(self, samples: Sequence[Sample], beyond: Array) -> Array:
        """Return the correction of each sample, in logs."""
        # Clipped, because a correction holds no further than the few figures reach.
        raw = _features(samples, beyond)
        return _with_intercept(np.clip((raw - self.center) / self.scale, -3, 3)) @ self.coefficients


def _features(samples: Sequence[Sample], beyond: Array) -> Array:
    terms = np.log(np.maximum(roofline_terms_ms(samples), 1e-12))
    compiled = np.array([bool(sample.compiler) for sample in samples], dtype=np.float64)
    batch = np.log([sample.batch_size for sample in samples])
    return np.column_stack([compiled, terms[:, 0] - terms[:, 1], terms[:, 1] - batch, batch, beyond])


def _with_intercept(design: Array) -> Array:
    return np.hstack([np.ones((len(design), 1)), design])
