"""How a device of which a few figures are known differs from what was expected of it. What was expected is not here."""

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
    """How a device as a whole differs from what was expected of it: Bayesian regression on what ten figures can tell.

    Prior standard deviations, in logs: of the device 1, of being compiled 0.4, of intensity, work and batch 0.03 each;
    what sets models apart beyond the law may be more or less of it here, by a share of 0.1. Figures scatter by 0.1 with
    the tails of Student's t (4 degrees), so that one odd figure of ten does not decide.
    """

    centre: Array
    scale: Array
    coefficients: Array

    @classmethod
    def fit(cls, samples: Sequence[Sample], beyond: Array, left: Array) -> Correction:
        """To what was expected of figures `beyond` the law, and what that `left` over, in logs."""
        raw = _features(samples, beyond)
        centre, scale = raw.mean(axis=0), np.maximum(raw.std(axis=0), 1e-6)
        design = _with_intercept((raw - centre) / scale)
        prior = np.diag(np.array([*_PRIOR_STD, _STRETCH_STD * scale[-1]]) ** 2)
        weights, coefficients = np.ones(len(samples)), np.zeros(design.shape[1])
        for _ in range(6):
            noise = np.diag(_NOISE_STD**2 / weights)
            coefficients = prior @ design.T @ np.linalg.solve(design @ prior @ design.T + noise, left)
            weights = 5 / (4 + ((left - design @ coefficients) / _NOISE_STD) ** 2)
        return cls(centre, scale, coefficients)

    def predict(self, samples: Sequence[Sample], beyond: Array) -> Array:
        # What lies far outside the few figures is corrected no further than they reach.
        raw = _features(samples, beyond)
        return _with_intercept(np.clip((raw - self.centre) / self.scale, -3, 3)) @ self.coefficients


def _features(samples: Sequence[Sample], beyond: Array) -> Array:
    parts = np.log(np.maximum(roofline_terms_ms(samples), 1e-12))
    compiled = np.array([bool(sample.compiler) for sample in samples], dtype=np.float64)
    batch = np.log([sample.batch_size for sample in samples])
    return np.column_stack([compiled, parts[:, 0] - parts[:, 1], parts[:, 1] - batch, batch, beyond])


def _with_intercept(design: Array) -> Array:
    return np.hstack([np.ones((len(design), 1)), design])
