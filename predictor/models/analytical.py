"""Analytical latency model: a roofline whose terms add up instead of overlapping.

t = a · products + b · f · bytes moved between products / bandwidth + c · weight bytes / bandwidth + d · launches

Products take the longer of FLOPs / peak and bytes / bandwidth, by bins of intensity (`OperatorMix`). Five factors are
fitted once for all devices. They say how far real kernels stay from the peaks, and how much less compiled code moves
than its fused operators should (f; 1 for other code). Devices differ in peak and bandwidth alone, so that the model
extrapolates to a device that was never measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from statistics import median

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

from accel_platform.hardware.catalog import catalog
from accel_platform.hardware.peaks import peak_ops_per_s
from predictor.data.operator_mix import OperatorMix, published_mix
from predictor.data.samples import LAYER_OUTPUTS, Sample, activation_bytes_per_number, weight_bytes

Array = npt.NDArray[np.float64]
_INITIAL_LOG_FACTORS = (0.3, 0.3, 0.5, -3.0, 0.0)
"""Natural logs of a, b, c, d (in ms) and f: the start of the fit and the center of its prior."""
_GENERATION_LOG_FACTORS = (0.9, 1.2, 0.5, -3.0, 0.0)
"""The same for generation, whose steps are layers of tokens."""
_USUAL_MOVED, _USUAL_FUSED, _USUAL_OPERATORS = 4.5, 0.4, 300.0
"""Numbers moved between products per number that layers put out, the share of them that fused operators move, and
operators of a pass: medians of the published mixes, for models without one (quartiles 2.9 to 5.5, 0.33 to 0.51)."""
_UNFITTED = 1e3
"""Weight of the prior of f where no device ran compiled and other code."""
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


def has_known_rates(sample: Sample) -> bool:
    """Return whether the device's peak and bandwidth are known."""
    return not (math.isnan(sample.peak_flops) or math.isnan(sample.bandwidth))


def roofline_terms_ms(samples: Sequence[Sample]) -> Array:
    """Return `roofline_terms` of each sample, a row per sample."""
    return np.array([roofline_terms(sample) for sample in samples], dtype=np.float64).reshape(-1, 4)


def roofline_terms(sample: Sample) -> tuple[float, float, float, float]:
    """Return ms of products, ms of moving numbers and weights at full bandwidth, and the launches of a sample.

    Launches count passes of a usual number of operators; those of generation count layers of tokens. An unknown rate is
    replaced by the median of its kind in the spec sheet. Figures of such a device tell how far it is from that; a
    device without figures is not supported (`has_known_rates`).
    """
    work, peak, bandwidth = sample.work, sample.peak_flops, sample.bandwidth
    if math.isnan(peak) or math.isnan(bandwidth):
        median_peak, median_bandwidth = _median_rates(sample.kind, weight_bytes(sample.precision, sample.mode) <= 2)
        peak = median_peak * sample.devices if math.isnan(peak) else peak
        bandwidth = median_bandwidth * sample.devices if math.isnan(bandwidth) else bandwidth
    reading = 1e3 * work.weight_bytes / bandwidth
    if sample.mode == "generation":
        return 1e3 * work.flops / peak, 1e3 * work.activation_bytes / bandwidth, reading, work.steps
    mix = published_mix(sample.model, sample.size)
    if mix is None:
        moved = work.activation_bytes * (_USUAL_MOVED if sample.counted == LAYER_OUTPUTS else 2.0)
        moved *= _USUAL_FUSED if sample.compiler else 1.0
        return 1e3 * work.flops / peak, 1e3 * moved / bandwidth, reading, work.steps
    batch, width = sample.batch_size, activation_bytes_per_number(sample.precision)
    moved = batch * width * (mix.fused_moved if sample.compiler else mix.moved)
    return (
        1e3 * batch * _products_s(mix, peak, bandwidth / width),
        1e3 * moved / bandwidth,
        reading,
        work.steps * mix.operators / _USUAL_OPERATORS,
    )


@lru_cache(maxsize=32_768)
def _products_s(mix: OperatorMix, flops_per_s: float, numbers_per_s: float) -> float:
    """Return the seconds of one item's products: of each bin the longer of computing and moving."""
    return sum(
        max(flops / flops_per_s, numbers / numbers_per_s) for flops, numbers in zip(mix.flops, mix.numbers, strict=True)
    )


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
