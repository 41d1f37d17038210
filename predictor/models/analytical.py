"""The physical law behind a latency: computing, moving activations, reading weights and launching, one after another.

t = a · FLOPs / peak + b · f · activation bytes / bandwidth + c · weight bytes / bandwidth + d · steps

Five factors that are fitted once for all devices: how far real kernels stay from the peaks, and how much less a
compiler lets them move (f, of compiled code; else 1). Devices differ in peak and bandwidth alone, which is what lets
the law speak of a device that nobody measured. It is a roofline whose parts add up instead of hiding behind each other.
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
from predictor.data.samples import Sample, weight_bytes

Array = npt.NDArray[np.float64]
_INITIAL_LOG_FACTORS = (0.9, 1.2, 0.5, -3.0, math.log(3 / 5))
"""Natural logs of a, b, c, d (in ms) and f: where the fit begins and, without evidence, stays. What a layer writes, the
norm and the activation after it each read and write again; a compiler makes one of these two: 3 moves out of 5."""
_PRIOR_WEIGHT = 0.03
_MAX_FIT_SAMPLES = 4_000


@dataclass(frozen=True)
class AdditiveRoofline:
    """Natural logs of the five factors."""

    factors: tuple[float, ...]

    @classmethod
    def fit(cls, samples: Sequence[Sample], logs: Array) -> AdditiveRoofline:
        """To natural logs of latencies, robustly: one bad figure must not bend it.

        Of devices whose rates are known, where there are any.
        """
        known = [i for i, sample in enumerate(samples) if has_known_rates(sample)]
        if 0 < len(known) < len(samples):
            samples, logs = [samples[i] for i in known], logs[known]
        step = max(1, len(samples) // _MAX_FIT_SAMPLES)
        parts, compiled, truth = roofline_terms_ms(samples[::step]), _is_compiled(samples[::step]), logs[::step]
        pull = _PRIOR_WEIGHT * np.sqrt(len(truth))

        def residuals(factors: Array) -> Array:
            return np.concatenate(
                [_log_latency(parts, compiled, factors) - truth, pull * (factors - _INITIAL_LOG_FACTORS)]
            )

        return cls(tuple(least_squares(residuals, _INITIAL_LOG_FACTORS, loss="soft_l1", f_scale=0.1).x.tolist()))

    def predict_log(self, samples: Sequence[Sample]) -> Array:
        """Natural logs of the latencies, in ms, of whole batches."""
        return _log_latency(roofline_terms_ms(samples), _is_compiled(samples), np.array(self.factors))


def has_known_rates(sample: Sample) -> bool:
    """Whether the device's peak and bandwidth are."""
    return not (math.isnan(sample.peak_flops) or math.isnan(sample.bandwidth))


def roofline_terms_ms(samples: Sequence[Sample]) -> Array:
    """`roofline_terms` per case."""
    return np.array([roofline_terms(sample) for sample in samples], dtype=np.float64).reshape(-1, 4)


def roofline_terms(sample: Sample) -> tuple[float, float, float, float]:
    """Of one case: ms of computing at peak, of moving activations and weights at full bandwidth, and the steps.

    An unknown rate is taken for the median of its kind in the spec sheet: figures of such a device say how far it is
    from that, and of one without figures nothing is claimed (`has_known_rates`).
    """
    work, peak, bandwidth = sample.work, sample.peak_flops, sample.bandwidth
    if math.isnan(peak) or math.isnan(bandwidth):
        usual = _median_rates(sample.kind, weight_bytes(sample.precision, sample.mode) <= 2)
        peak = usual[0] * sample.devices if math.isnan(peak) else peak
        bandwidth = usual[1] * sample.devices if math.isnan(bandwidth) else bandwidth
    moving, reading = 1e3 * work.activation_bytes / bandwidth, 1e3 * work.weight_bytes / bandwidth
    return 1e3 * work.flops / peak, moving, reading, work.steps


@cache
def _median_rates(kind: str, half: bool) -> tuple[float, float]:
    """FLOPs and bytes per second: medians over the devices of the spec sheet that have them, of this kind if any do."""
    alike = [spec for spec in catalog() if spec.kind == kind]
    peaks: list[float] = []
    moves: list[float] = []
    for among in (alike, catalog()):
        peaks = peaks or [p for s in among if (p := (half and s.peak_fp16_tensor_tflops) or s.peak_fp32_tflops)]
        moves = moves or [s.bandwidth_gb_s for s in among if s.bandwidth_gb_s]
    return median(peaks) * 1e12, median(moves) * 1e9


def _is_compiled(samples: Sequence[Sample]) -> Array:
    """1 of compiled code, else 0."""
    return np.array([float(bool(sample.compiler)) for sample in samples])


def _log_latency(parts: Array, compiled: Array, factors: Array) -> Array:
    moved = parts[:, 1] * np.exp(factors[1] + compiled * factors[4])
    return np.asarray(np.log(parts[:, [0, 2, 3]] @ np.exp(factors[[0, 2, 3]]) + moved))
