"""Few-shot correction: Bayesian linear regression of the latency model's residuals on a device with a few figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from predictor.data.samples import Sample
from predictor.models.analytical import roofline_terms_ms

Array = npt.NDArray[np.float64]
_NOISE_STD = 0.1
"""Standard deviation of a figure around the prediction, as a natural log."""
_LEVEL_STD, _LEVEL_SHARES = (1.0, 0.4), (1 / 16, 1 / 4, 1.0)
"""Prior standard deviations (natural logs) of the device's level and of compiled code there.

The shares are factors on both, one of which is chosen by the likelihood of the device's figures.
"""
_SHAPE_STD, _STRETCH_STD, _SHAPE_SHARES = (0.03, 0.03, 0.03), 0.1, (1 / 4, 1.0, 4.0)
"""Likewise for the slopes over intensity, work and batch, and for that over the prediction beyond the roofline."""
_ROUNDS = 6
"""Iterations that reweight outliers."""


@dataclass(frozen=True)
class FewShotCorrection:
    """Fitted correction of one device, designed for about ten figures.

    The prior widths are chosen by the likelihood of the device's own figures (empirical Bayes; MacKay, 1992). So a GPU
    like the known ones is corrected little, and a processor much. Noise has the heavy tails of Student's t with 4
    degrees of freedom, so that one outlier of ten figures does not decide.
    """

    center: Array
    """Mean of each feature over the device's figures."""
    scale: Array
    """Standard deviation of each feature over the device's figures."""
    coefficients: Array
    """Intercept, then one coefficient per standardized feature."""

    @classmethod
    def fit(cls, samples: Sequence[Sample], beyond: Array, residuals: Array) -> FewShotCorrection:
        """Fit to the log residuals of a device's samples.

        `beyond` holds the log predictions less those of the analytical model.
        """
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
        """Return the correction of each sample, to be added to its log prediction."""
        # Clipped, because the few figures support no correction far outside their range.
        raw = _features(samples, beyond)
        return _with_intercept(np.clip((raw - self.center) / self.scale, -3, 3)) @ self.coefficients


def _fit(design: Array, priors: Array, noise: Array, residuals: Array) -> Array:
    """Return the posterior mean of the coefficients under the prior with the largest marginal likelihood.

    Each row of `priors` is a candidate: the standard deviation of each coefficient. `noise` is the variance of each
    residual.
    """
    covariances_with_coefficients = design * priors[:, None] ** 2
    covariances = covariances_with_coefficients @ design.T + np.diag(noise)
    explained = np.linalg.solve(covariances, residuals[:, None])[..., 0]
    # Up to a constant.
    log_likelihoods = -0.5 * (explained @ residuals + np.linalg.slogdet(covariances)[1])
    best = int(np.argmax(log_likelihoods))
    return np.asarray(covariances_with_coefficients[best].T @ explained[best])


def _features(samples: Sequence[Sample], beyond: Array) -> Array:
    """Return compiled (0 or 1), log intensity, log work per item, log batch size and `beyond`, one row per sample."""
    terms = np.log(np.maximum(roofline_terms_ms(samples), 1e-12))
    compiled = np.array([bool(sample.compiler) for sample in samples], dtype=np.float64)
    batch = np.log([sample.batch_size for sample in samples])
    return np.column_stack([compiled, terms[:, 0] - terms[:, 1], terms[:, 1] - batch, batch, beyond])


def _with_intercept(design: Array) -> Array:
    return np.hstack([np.ones((len(design), 1)), design])
