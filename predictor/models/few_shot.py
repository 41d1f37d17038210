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
_LEVEL_STD, _LEVEL_SHARES = (1.0, 0.4), (1 / 16, 1 / 4, 1.0)
"""Prior standard deviations, in logs, of the device and of compiled code there, and shares of them to choose from."""
_SHAPE_STD, _STRETCH_STD, _SHAPE_SHARES = (0.03, 0.03, 0.03), 0.1, (1 / 4, 1.0, 4.0)
"""The same of intensity, work and batch, and of what sets models apart beyond the analytical model."""
_ROUNDS = 6


@dataclass(frozen=True)
class Correction:
    """Bayesian regression of a device's residuals, made for about ten figures.

    How far a device may be from others, in level and in shape, is as likely as its own figures make it (empirical
    Bayes; MacKay, 1992): of a GPU like those that were learned from ten figures teach little, of a processor much.
    Figures scatter by 0.1 with the tails of Student's t (4 degrees), so that one odd figure of ten does not decide.
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
        level_stds = np.array([*_LEVEL_STD, 0.0, 0.0, 0.0, 0.0])
        shape_stds = np.array([0.0, 0.0, *_SHAPE_STD, _STRETCH_STD * scale[-1]])
        noise = np.full(len(samples), _NOISE_STD**2)
        for _ in range(_ROUNDS):
            coefficients = _fit(design, (level_stds + shape_stds)[None], noise, residuals)
            noise = (4 * _NOISE_STD**2 + (residuals - design @ coefficients) ** 2) / 5
        shares = np.array([(level, shape) for level in _LEVEL_SHARES for shape in _SHAPE_SHARES])
        return cls(center, scale, _fit(design, shares @ np.array([level_stds, shape_stds]), noise, residuals))

    def predict(self, samples: Sequence[Sample], beyond: Array) -> Array:
        """Return the correction of each sample, in logs."""
        # Clipped, because a correction holds no further than the few figures reach.
        raw = _features(samples, beyond)
        return _with_intercept(np.clip((raw - self.center) / self.scale, -3, 3)) @ self.coefficients


def _fit(design: Array, priors: Array, noise: Array, residuals: Array) -> Array:
    """Return the likeliest coefficients under the one of the priors that makes the residuals likeliest.

    Each row of `priors` has a standard deviation per column of the design; `noise` is the variance of each residual.
    """
    loads = design * priors[:, None] ** 2
    covariances = loads @ design.T + np.diag(noise)
    explained = np.linalg.solve(covariances, residuals[:, None])[..., 0]
    # Logs of likelihoods, less a constant.
    likelihoods = -0.5 * (explained @ residuals + np.linalg.slogdet(covariances)[1])
    best = int(np.argmax(likelihoods))
    return np.asarray(loads[best].T @ explained[best])


def _features(samples: Sequence[Sample], beyond: Array) -> Array:
    terms = np.log(np.maximum(roofline_terms_ms(samples), 1e-12))
    compiled = np.array([bool(sample.compiler) for sample in samples], dtype=np.float64)
    batch = np.log([sample.batch_size for sample in samples])
    return np.column_stack([compiled, terms[:, 0] - terms[:, 1], terms[:, 1] - batch, batch, beyond])


def _with_intercept(design: Array) -> Array:
    return np.hstack([np.ones((len(design), 1)), design])
