"""The physical law behind a latency: computing, moving activations, reading weights and launching, one after another.

t = a · FLOPs / peak + b · activation bytes / bandwidth + c · weight bytes / bandwidth + d · steps

Four factors that are fitted once for all devices: how far real kernels stay from the peaks. Devices differ in peak and
bandwidth alone, which is what lets the law speak of a device that nobody measured. It is a roofline whose parts add
up instead of hiding behind each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

from predictor.cases import Case

Array = npt.NDArray[np.float64]
_START = (0.9, 1.2, 0.5, -3.0)
"""Natural logs of the factors (the last in ms): where the fit begins and, without evidence, stays."""
_PULL = 0.03
_ENOUGH = 4_000


@dataclass(frozen=True)
class Law:
    """Natural logs of the four factors."""

    factors: tuple[float, ...]

    @classmethod
    def fit(cls, cases: Sequence[Case], logs: Array) -> Law:
        """To natural logs of latencies, robustly: one bad figure must not bend it."""
        step = max(1, len(cases) // _ENOUGH)
        parts, truth = parts_ms(cases[::step]), logs[::step]
        pull = _PULL * np.sqrt(len(truth))

        def residuals(factors: Array) -> Array:
            return np.concatenate([_log(parts, factors) - truth, pull * (factors - _START)])

        return cls(tuple(least_squares(residuals, _START, loss="soft_l1", f_scale=0.1).x.tolist()))

    def logs(self, cases: Sequence[Case]) -> Array:
        """Natural logs of the latencies, in ms, of whole batches."""
        return _log(parts_ms(cases), np.array(self.factors))


def parts_ms(cases: Sequence[Case]) -> Array:
    """Per case: ms of computing at peak, of moving activations and weights at full bandwidth, and the steps."""
    return np.array(
        [
            (
                1e3 * c.work.flops / c.peak_flops,
                1e3 * c.work.activation_bytes / c.bandwidth,
                1e3 * c.work.weight_bytes / c.bandwidth,
                c.work.steps,
            )
            for c in cases
        ]
    ).reshape(-1, 4)


def _log(parts: Array, factors: Array) -> Array:
    return np.asarray(np.log(parts @ np.exp(factors)))
