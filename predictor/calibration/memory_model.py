"""The peak of memory: weights, activations and what a runtime takes for itself. How full a device gets is in `risks`.

peak = a · weight bytes + b · bytes held besides + c, times a factor per way of running (hardware, backend,
precision) that its figures show. Intervals are conformal over families and devices held out, as the latency's are.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict
from scipy.optimize import least_squares

from predictor.calibration.conformal import Calibration, calibrate, calibrate_worst_group
from predictor.calibration.cross_validation import MIN_SAMPLES, empirical_coverage
from predictor.calibration.cv_splits import group_folds
from predictor.data.samples import Sample, weight_bytes
from predictor.schemas.responses import Interval

Array = npt.NDArray[np.float64]
_MIB = 2.0**20
_INITIAL_LOG_FACTORS = (0.0, -2.0, 4.0)
"""Natural logs of the factors (the last in MiB): where the fit begins and, without evidence, stays."""
_PRIOR_WEIGHT = 0.03
_SHRINKAGE = 2.0
"""Figures that a way of running needs before half of its own factor is believed."""
_MAX_ERRORS = 400
"""Held-out errors kept, evenly spaced in order: what the risk of not fitting is read from."""
_MAX_SAMPLES = 4_000


class _ModeFit(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    factors: tuple[float, ...]
    ways: dict[str, float]

    @classmethod
    def of(cls, samples: Sequence[Sample]) -> _ModeFit:
        parts, truth = _memory_terms(samples), np.log([sample.memory_peak_mib for sample in samples])
        pull = _PRIOR_WEIGHT * math.sqrt(len(truth))

        def residuals(factors: Array) -> Array:
            return np.concatenate([np.log(parts @ np.exp(factors)) - truth, pull * (factors - _INITIAL_LOG_FACTORS)])

        factors = least_squares(residuals, _INITIAL_LOG_FACTORS, loss="soft_l1", f_scale=0.1).x
        left: dict[str, list[float]] = defaultdict(list)
        for sample, rest in zip(samples, truth - np.log(parts @ np.exp(factors)), strict=True):
            left[_run_group(sample)].append(float(rest))
        ways = {
            way: float(np.median(rest)) * len(rest) / (len(rest) + _SHRINKAGE) for way, rest in sorted(left.items())
        }
        return cls(factors=tuple(factors.tolist()), ways=ways)

    def predict_log(self, samples: Sequence[Sample]) -> Array:
        """Natural logs of MiB; NaN for a way of running that was never measured."""
        ways = np.array([self.ways.get(_run_group(sample), math.nan) for sample in samples])
        return np.asarray(np.log(_memory_terms(samples) @ np.exp(self.factors)) + ways)


class MemoryModel(BaseModel):
    """Fitted per mode, with its intervals."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    modes: dict[str, _ModeFit]
    devices: tuple[str, ...]
    known_device: Calibration
    new_device: Calibration | None
    errors: tuple[float, ...]
    """Of models held out, in order: natural logs, predicted less true."""
    metrics: dict[str, float | int | None]

    @classmethod
    def fit(cls, samples: Sequence[Sample]) -> MemoryModel | None:
        """From the cases whose peak was measured; None where they are too few to tell how far it is off."""
        told = [sample for sample in samples if not math.isnan(sample.memory_peak_mib) and sample.memory_peak_mib > 0]
        told = told[:: max(1, len(told) // _MAX_SAMPLES)]
        if len(told) < MIN_SAMPLES:
            return None
        by_family, rows = _out_of_fold_errors(told, [sample.family for sample in told])
        by_device, device_rows = _out_of_fold_errors(told, [sample.device for sample in told])
        try:
            known = calibrate(np.abs(by_family), [told[i].family for i in rows])
        except ValueError:
            return None
        try:
            new = calibrate_worst_group(np.abs(by_device), [told[i].device for i in device_rows])
        except ValueError:
            new = None
        at = np.linspace(0, len(by_family) - 1, min(_MAX_ERRORS, len(by_family))).round().astype(int)
        return cls(
            modes=_fit_modes(told),
            devices=tuple(sorted({sample.device for sample in told})),
            known_device=known,
            new_device=new,
            errors=tuple(np.sort(by_family)[at].tolist()),
            metrics={
                "rows": len(told),
                "groups": known.groups,
                "median_ape": float(np.median(np.abs(np.expm1(by_family)))),
                **empirical_coverage(by_family, [told[i].family for i in rows], calibrate),
                "median_ape_new_device": float(np.median(np.abs(np.expm1(by_device)))) if len(by_device) else None,
            },
        )

    def supports(self, sample: Sample) -> bool:
        """Whether the way that it is run in was measured."""
        return sample.mode in self.modes and _run_group(sample) in self.modes[sample.mode].ways

    def predict(self, samples: Sequence[Sample]) -> list[Interval | None]:
        """MiB per case; None for a mode or a way of running, or a new device, that nothing tells of."""
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
        """Natural logs of MiB; NaN where nothing tells."""
        logs = np.full(len(samples), np.nan)
        for mode, fit in self.modes.items():
            here = [i for i, sample in enumerate(samples) if sample.mode == mode]
            if here:
                logs[here] = fit.predict_log([samples[i] for i in here])
        return logs


def _fit_modes(samples: Sequence[Sample]) -> dict[str, _ModeFit]:
    modes = sorted({sample.mode for sample in samples})
    return {mode: _ModeFit.of([sample for sample in samples if sample.mode == mode]) for mode in modes}


def _out_of_fold_errors(samples: Sequence[Sample], groups: Sequence[str]) -> tuple[Array, list[int]]:
    """Errors, predicted less true in logs, of what could be predicted with its group held out; and of which cases."""
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
    """MiB of weights as they lie, and of what is held besides; 1 MiB of anything else."""
    rows = []
    for sample in samples:
        # All of them: which experts are read at a step is no matter here.
        weights = sample.work.parameters * weight_bytes(sample.precision, sample.mode)
        rows.append((max(weights, 1.0) / _MIB, sample.work.held_bytes / _MIB, 1.0))
    return np.array(rows, dtype=np.float64)


def _run_group(sample: Sample) -> str:
    return f"{sample.hardware} {sample.backend} {sample.precision}"
