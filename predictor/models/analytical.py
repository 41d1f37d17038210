"""Analytical latency model: a roofline whose terms add up instead of overlapping.

latency = a · products + b · f · bytes moved between products / bandwidth + c · weight bytes / bandwidth + d · launches

The terms are those of `predictor.data.roofline`. Matrix products take the longer of FLOPs / peak and bytes / bandwidth,
per group of similar operators. Data that fits into a GPU's cache moves faster. The five factors are fitted once for
all devices. The factors a to d tell by how much real kernels miss the published rates. The factor f is for compiled
code, whose fusion moves less than the traced operators; it is 1 for other code. Devices differ only in their published
peak, bandwidth and cache, so the model extrapolates to devices that were never measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

from predictor.data.roofline import has_known_rates
from predictor.data.samples import Sample

Array = npt.NDArray[np.float64]
_INITIAL_LOG_FACTORS = (0.3, 0.3, 0.5, -3.0, 0.0)
"""Natural logs of a, b, c, d (in ms per launch) and f: the start of the fit, and the center of its prior."""
_GENERATION_LOG_FACTORS = (0.9, 1.2, 0.5, -3.0, 0.0)
"""`_INITIAL_LOG_FACTORS` for generation, whose steps are layers of tokens."""
_UNFITTED = 1e3
"""Weight of the prior of f if no device ran both compiled and other code, so that f keeps its initial value."""
_PRIOR_WEIGHT = 0.03
_MAX_FIT_SAMPLES = 4_000


@dataclass(frozen=True)
class AdditiveRoofline:
    """Additive roofline with its five fitted factors as natural logs."""

    factors: tuple[float, ...]

    @classmethod
    def fit(cls, samples: Sequence[Sample], logs: Array) -> AdditiveRoofline:
        """Fit robustly to natural logs of latencies, so that one bad figure does not bend it.

        Only devices with known rates count, where there are any.
        """
        known = [i for i, sample in enumerate(samples) if has_known_rates(sample)]
        if 0 < len(known) < len(samples):
            samples, logs = [samples[i] for i in known], logs[known]
        step = max(1, len(samples) // _MAX_FIT_SAMPLES)
        part, targets = samples[::step], logs[::step]
        terms, compiled = roofline_terms_ms(part), _is_compiled(part)
        start = _GENERATION_LOG_FACTORS if part[0].mode == "generation" else _INITIAL_LOG_FACTORS
        # Devices that only ran compiled code would have f make up for what they are otherwise.
        both = {s.device for s in part if s.compiler} & {s.device for s in part if not s.compiler}
        pull = _PRIOR_WEIGHT * np.sqrt(len(targets)) * np.array([1.0, 1.0, 1.0, 1.0, 1.0 if both else _UNFITTED])

        def residuals(factors: Array) -> Array:
            return np.concatenate([_log_latency(terms, compiled, factors) - targets, pull * (factors - start)])

        return cls(tuple(least_squares(residuals, start, loss="soft_l1", f_scale=0.1).x.tolist()))

    def predict_log(self, samples: Sequence[Sample]) -> Array:
        """Return natural logs of the latencies of whole batches, in ms."""
        return _log_latency(roofline_terms_ms(samples), _is_compiled(samples), np.array(self.factors))


def roofline_terms_ms(samples: Sequence[Sample]) -> Array:
    """Return the roofline terms in ms, shape (samples, 4); the last one counts launches."""
    return np.array([sample.roofline for sample in samples], dtype=np.float64).reshape(-1, 4)


def _is_compiled(samples: Sequence[Sample]) -> Array:
    """Return 1 for compiled code, else 0."""
    return np.array([float(bool(sample.compiler)) for sample in samples])


def _log_latency(terms: Array, compiled: Array, factors: Array) -> Array:
    moved = terms[:, 1] * np.exp(factors[1] + compiled * factors[4])
    return np.asarray(np.log(terms[:, [0, 2, 3]] @ np.exp(factors[[0, 2, 3]]) + moved))
