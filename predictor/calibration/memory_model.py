"""Memory model: the peak memory of a process from the bytes of weights and activations.

peak = (a · weight bytes + b · other bytes held + c) · factor of the run group

The coefficients a, b and c are fitted per mode; c is the runtime's own memory. A run group is a hardware name, a
backend and a precision. Intervals are conformal over held-out families and devices.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict
from scipy.optimize import least_squares

from predictor.calibration.conformal import Calibration, calibrate, calibrate_worst_group, empirical_coverage
from predictor.calibration.cross_validation import MIN_SAMPLES
from predictor.calibration.cv_splits import group_folds
from predictor.data.number_widths import weight_bytes
from predictor.data.samples import Sample
from predictor.schemas.responses import Interval

Array = npt.NDArray[np.float64]
_MIB = 2.0**20
_INITIAL_LOG_FACTORS = (0.0, -2.0, 4.0)
"""Natural logs of a, b and c (in MiB): the start of the fit, and the center of its prior."""
_PRIOR_WEIGHT = 0.03
"""Weight of the prior beside each sample."""
_SHRINKAGE = 2.0
"""Number of figures at which a run group's log factor is shrunk to half of its own median."""
_MAX_ERRORS = 400
"""Most held-out errors to store, evenly spaced in ascending order: the failure model needs their distribution."""
_MAX_SAMPLES = 4_000
"""Most samples to fit to."""


class _ModeFit(BaseModel):
    """Fitted coefficients of one mode."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    factors: tuple[float, ...]
    """Natural logs of a, b and c."""
    ways: dict[str, float]
    """Natural log of the factor of each run group. Artifacts store it under this name."""

    @classmethod
    def fit(cls, samples: Sequence[Sample]) -> _ModeFit:
        """Fit a, b and c robustly (soft L1), then the median factor of each run group."""
        terms, targets = _memory_terms(samples), np.log([sample.memory_peak_mib for sample in samples])
        pull = _PRIOR_WEIGHT * math.sqrt(len(targets))

        def residuals(factors: Array) -> Array:
            return np.concatenate([np.log(terms @ np.exp(factors)) - targets, pull * (factors - _INITIAL_LOG_FACTORS)])

        factors = least_squares(residuals, _INITIAL_LOG_FACTORS, loss="soft_l1", f_scale=0.1).x
        rest_by_group: dict[str, list[float]] = defaultdict(list)
        for sample, rest in zip(samples, targets - np.log(terms @ np.exp(factors)), strict=True):
            rest_by_group[_run_group(sample)].append(float(rest))
        ways = {
            group: float(np.median(rest)) * len(rest) / (len(rest) + _SHRINKAGE)
            for group, rest in sorted(rest_by_group.items())
        }
        return cls(factors=tuple(factors.tolist()), ways=ways)

    def predict_log(self, samples: Sequence[Sample]) -> Array:
        """Return natural logs of MiB; NaN for a run group that was never measured."""
        ways = np.array([self.ways.get(_run_group(sample), math.nan) for sample in samples])
        return np.asarray(np.log(_memory_terms(samples) @ self._coefficients) + ways)

    @cached_property
    def _coefficients(self) -> Array:
        """The factors a, b and c."""
        return np.exp(self.factors)


class MemoryModel(BaseModel):
    """Memory peaks by mode, with calibrated intervals."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    modes: dict[str, _ModeFit]
    devices: tuple[str, ...]
    known_device: Calibration
    new_device: Calibration | None
    errors: tuple[float, ...]
    """Natural logs of predicted over measured peaks of held-out families, in ascending order."""
    metrics: dict[str, float | int | None]

    @classmethod
    def fit(cls, samples: Sequence[Sample]) -> MemoryModel | None:
        """Fit to the samples with a measured peak; None where they are too few to calibrate."""
        measured = [
            sample for sample in samples if not math.isnan(sample.memory_peak_mib) and sample.memory_peak_mib > 0
        ]
        measured = measured[:: max(1, len(measured) // _MAX_SAMPLES)]
        if len(measured) < MIN_SAMPLES:
            return None
        by_family, rows = _out_of_fold_errors(measured, [sample.family for sample in measured])
        by_device, device_rows = _out_of_fold_errors(measured, [sample.device for sample in measured])
        try:
            known = calibrate(np.abs(by_family), [measured[i].family for i in rows])
        except ValueError:
            return None
        try:
            new = calibrate_worst_group(np.abs(by_device), [measured[i].device for i in device_rows])
        except ValueError:
            new = None
        at = np.linspace(0, len(by_family) - 1, min(_MAX_ERRORS, len(by_family))).round().astype(int)
        return cls(
            modes=_fit_modes(measured),
            devices=tuple(sorted({sample.device for sample in measured})),
            known_device=known,
            new_device=new,
            errors=tuple(np.sort(by_family)[at].tolist()),
            metrics={
                "rows": len(measured),
                "groups": known.groups,
                "median_ape": float(np.median(np.abs(np.expm1(by_family)))),
                **empirical_coverage(by_family, [measured[i].family for i in rows]),
                "median_ape_new_device": float(np.median(np.abs(np.expm1(by_device)))) if len(by_device) else None,
            },
        )

    def supports(self, sample: Sample) -> bool:
        """Return whether the sample's mode and run group were measured."""
        return sample.mode in self.modes and _run_group(sample) in self.modes[sample.mode].ways

    def predict(self, samples: Sequence[Sample]) -> list[Interval | None]:
        """Return an interval in MiB per sample; None for an unmeasured mode or run group, or an uncalibrated device."""
        found: list[Interval | None] = []
        for sample, log in zip(samples, self.predict_log(samples).tolist(), strict=True):
            calibration = self.known_device if sample.device in self.devices else self.new_device
            if math.isnan(log) or calibration is None:
                found.append(None)
                continue
            p50, spread = math.exp(log), math.exp(calibration.half_width)
            found.append(Interval(p50=p50, low=p50 / spread, high=p50 * spread, level=calibration.level))
        return found

    def predict_log(self, samples: Sequence[Sample]) -> Array:
        """Return natural logs of MiB; NaN for an unmeasured mode or run group."""
        logs = np.full(len(samples), np.nan)
        for mode, fit in self.modes.items():
            here = [i for i, sample in enumerate(samples) if sample.mode == mode]
            if here:
                logs[here] = fit.predict_log([samples[i] for i in here])
        return logs


def _fit_modes(samples: Sequence[Sample]) -> dict[str, _ModeFit]:
    modes = sorted({sample.mode for sample in samples})
    return {mode: _ModeFit.fit([sample for sample in samples if sample.mode == mode]) for mode in modes}


def _out_of_fold_errors(samples: Sequence[Sample], groups: Sequence[str]) -> tuple[Array, list[int]]:
    """Return the log errors on held-out groups, and the indices of their samples."""
    folds = group_folds(groups, 10)
    errors, rows = [], []
    for fold in np.unique(folds):
        train, test = np.flatnonzero(folds != fold).tolist(), np.flatnonzero(folds == fold).tolist()
        if not train:
            continue
        fits = _fit_modes([samples[i] for i in train])
        for i in test:
            fit = fits.get(samples[i].mode)
            log = math.nan if fit is None else float(fit.predict_log([samples[i]])[0])
            if not math.isnan(log):
                errors.append(log - math.log(samples[i].memory_peak_mib))
                rows.append(i)
    return np.array(errors), rows


def _memory_terms(samples: Sequence[Sample]) -> Array:
    """Return the terms of a, b and c for each sample, shape (samples, 3): MiB of weights, other MiB held, and 1."""
    rows = []
    for sample in samples:
        # All weights, because experts take memory even in steps that do not read them.
        weights = sample.work.parameters * weight_bytes(sample.precision, sample.mode)
        rows.append((max(weights, 1.0) / _MIB, sample.work.held_bytes / _MIB, 1.0))
    return np.array(rows, dtype=np.float64)


def _run_group(sample: Sample) -> str:
    """Return the key of hardware name, backend and precision, which artifacts store."""
    return f"{sample.hardware} {sample.backend} {sample.precision}"
