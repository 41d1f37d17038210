"""Analytical latency model: a roofline whose terms add up instead of overlapping.

t = a · FLOPs / peak + b · f · activation bytes / bandwidth + c · weight bytes / bandwidth + d · steps

Five factors are fitted once for all devices. They say how far real kernels stay from the peaks, and how much less
compiled code moves (f; 1 for other code). Devices differ in peak and bandwidth alone, so that the model extrapolates to
a device that was never measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import median

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

from accel_platform.hardware.catalog import catalog
from accel_platform.hardware.peaks import peak_ops_per_s
from predictor.data.samples import Sample, weight_bytes

Array = npt.NDArray[np.float64]
_INITIAL_LOG_FACTORS = (0.9, 1.2, 0.5, -3.0, math.log(3 / 5))
"""Natural logs of a, b, c, d (in ms) and f: the start of the fit and the center of its prior.

The norm and the activation after a layer each read and write its output again. A compiler fuses the two: 3 moves of 5.
"""
_PRIOR_WEIGHT = 0.03
_MAX_FIT_SAMPLES = 4_000


@dataclass(frozen=True)
class AdditiveRoofline:
    """Additive roofline with five fitted factors (natural logs)."""

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
        terms, compiled, targets = roofline_terms_ms(samples[::step]), _is_compiled(samples[::step]), logs[::step]
        pull = _PRIOR_WEIGHT * np.sqrt(len(targets))

        def residuals(factors: Array) -> Array:
            return np.concatenate(
                [_log_latency(terms, compiled, factors) - targets, pull * (factors - _INITIAL_LOG_FACTORS)]
            )

        return cls(tuple(least_squares(residuals, _INITIAL_LOG_FACTORS, loss="soft_l1", f_scale=0.1).x.tolist()))

    def predict_log(self, samples: Sequence[Sample]) -> Array:
        """Return natural logs of the latencies of whole batches, in ms."""
        return _log_latency(roofline_terms_ms(samples), _is_compiled(samples), np.array(self.factors))


def has_known_rates(sample: Sample) -> bool:
    """Return whether the device's peak and bandwidth are known."""
    return not (math.isnan(sample.peak_flops) or math.isnan(sample.bandwidth))


def roofline_terms_ms(samples: Sequence[Sample]) -> Array:
    """Return `roofline_terms` of each sample, a row per sample."""
    return np.array([roofline_terms(sample) for sample in samples], dtype=np.float64).reshape(-1, 4)


def roofline_terms(sample: Sample) -> tuple[float, float, float, float]:
    """Return ms of compute at peak, ms of moving activations and weights at full bandwidth, and the steps of a sample.

    An unknown rate is replaced by the median of its kind in the spec sheet. Figures of such a device tell how far it is
    from that; a device without figures is not supported (`has_known_rates`).
    """
    work, peak, bandwidth = sample.work, sample.peak_flops, sample.bandwidth
    if math.isnan(peak) or math.isnan(bandwidth):
        median_peak, median_bandwidth = _median_rates(sample.kind, weight_bytes(sample.precision, sample.mode) <= 2)
        peak = median_peak * sample.devices if math.isnan(peak) else peak
        bandwidth = median_bandwidth * sample.devices if math.isnan(bandwidth) else bandwidth
    moving, reading = 1e3 * work.activation_bytes / bandwidth, 1e3 * work.weight_bytes / bandwidth
    return 1e3 * work.flops / peak, moving, reading, work.steps


@cache
def _median_rates(kind: str, half: bool) -> tuple[float, float]:
    """Return median FLOPs and bytes per second over the spec sheet's devices of this kind, else over all."""
    same_kind = [spec for spec in catalog() if spec.kind == kind]
    peaks: list[float] = []
    bandwidths: list[float] = []
    for devices in (same_kind, catalog()):
        peaks = peaks or [p for s in devices if (p := peak_ops_per_s(s, "float16" if half else "float32"))]
        bandwidths = bandwidths or [s.bandwidth_gb_s for s in devices if s.bandwidth_gb_s]
    return median(peaks), median(bandwidths) * 1e9


def _is_compiled(samples: Sequence[Sample]) -> Array:
    """Return 1 for compiled code, else 0."""
    return np.array([float(bool(sample.compiler)) for sample in samples])


def _log_latency(terms: Array, compiled: Array, factors: Array) -> Array:
    moved = terms[:, 1] * np.exp(factors[1] + compiled * factors[4])
    return np.asarray(np.log(terms[:, [0, 2, 3]] @ np.exp(factors[[0, 2, 3]]) + moved))
