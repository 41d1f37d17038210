"""Failure model: probabilities that a cell fails, by class of failure.

The probability of running out of memory is that of a peak above the device's memory: the predicted peak, with the
distribution of the memory model's held-out errors. Once enough cells ran out of memory, a logistic curve fitted to them
replaces it. Any other class of failure is learned by LightGBM where enough cells failed that way. It is kept only if
its log loss on held-out families is below that of a constant probability.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import lightgbm as lgb
import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize

from predictor.calibration.cv_splits import group_folds
from predictor.calibration.memory_model import MemoryModel
from predictor.data.samples import Sample
from predictor.models.residual_trees import REPRODUCIBLE, Encoder
from predictor.schemas.responses import Interval

Array = npt.NDArray[np.float64]
OUT_OF_MEMORY = "out_of_memory"
MIN_FAILURES = 20
"""Fewest failures of a class to learn it from."""
_MIN_OUT_OF_MEMORY = 5
"""Fewest cells that ran out of memory to fit the curve to."""
_MIN_FAMILIES = 3
"""Fewest families with failures of a class to learn it from."""
_NAMES = ("family", "backend", "hardware", "precision", "mode", "kind", "device")
_PARAMETERS: dict[str, Any] = {
    **REPRODUCIBLE,
    "objective": "binary",
    "learning_rate": 0.1,
    "num_leaves": 8,
    "min_data_in_leaf": 10,
    "lambda_l2": 1.0,
}
_ROUNDS = 80


@dataclass(frozen=True)
class FailureModel:
    """Fitted probabilities of failure."""

    errors: tuple[float, ...]
    """Natural logs of predicted over measured memory peaks, held out and ascending; empty without a memory model."""
    curve: tuple[float, float] | None
    """Logit of running out of memory: at a predicted peak equal to the memory, and its slope per natural log."""
    encoder: Encoder
    boosters: dict[str, lgb.Booster]
    metrics: dict[str, Any]

    @classmethod
    def fit(
        cls, measured: Sequence[Sample], failed: Sequence[tuple[Sample, str]], memory: MemoryModel | None
    ) -> FailureModel:
        """Fit to cells that ran and to cells that failed, the latter with their class of failure."""
        counts: Counter[str] = Counter(kind for _, kind in failed)
        curve = _fit_memory_curve(measured, [sample for sample, kind in failed if kind == OUT_OF_MEMORY], memory)
        samples = [*measured, *(sample for sample, _ in failed)]
        encoder = Encoder.fit(samples, _NAMES)
        boosters: dict[str, lgb.Booster] = {}
        metrics: dict[str, dict[str, Any]] = {}
        for kind, count in sorted(counts.items()):
            truth = np.array([0.0] * len(measured) + [float(k == kind) for _, k in failed])
            families = [sample.family for sample in samples]
            failed_families = {family for family, bad in zip(families, truth, strict=True) if bad}
            metrics[kind] = {"failed": count, "families": len(failed_families), "learned": False}
            if kind == OUT_OF_MEMORY or count < MIN_FAILURES or len(failed_families) < _MIN_FAMILIES or not measured:
                continue
            loss, plain = _cross_validated_log_loss(encoder.transform(samples), truth, families)
            metrics[kind] |= {"log_loss": loss, "log_loss_of_share": plain, "learned": loss < plain}
            if loss < plain:
                boosters[kind] = _boost(encoder.transform(samples), truth)
        metrics.setdefault(OUT_OF_MEMORY, {"failed": 0, "families": 0, "learned": False})
        metrics[OUT_OF_MEMORY]["learned"] = curve is not None
        return cls(memory.errors if memory else (), curve, encoder, boosters, metrics)

    def predict(self, samples: Sequence[Sample], peaks: Sequence[Interval | None]) -> list[dict[str, float]]:
        """Return probabilities by class of failure per sample; a class without evidence is left out."""
        risks = [self._memory_risk(sample, peak) for sample, peak in zip(samples, peaks, strict=True)]
        if self.boosters and samples:
            features = self.encoder.transform(samples)
            for kind, booster in self.boosters.items():
                for sample_risks, share in zip(
                    risks, np.asarray(booster.predict(features, num_threads=1)).tolist(), strict=True
                ):
                    sample_risks[kind] = share
        return risks

    def _memory_risk(self, sample: Sample, peak: Interval | None) -> dict[str, float]:
        """Return the probability of running out of memory under its class; empty where it is unknown."""
        risks = {}
        if peak is not None and not math.isnan(sample.memory_mib):
            beyond = math.log(peak.p50 / sample.memory_mib)
            if self.curve is not None:
                risks[OUT_OF_MEMORY] = _sigmoid(self.curve[0] + self.curve[1] * beyond)
            elif self.errors:
                # Never 0 or 1, because the next error may be larger or smaller than all seen ones.
                risks[OUT_OF_MEMORY] = (bisect_left(self.errors, beyond) + 0.5) / (len(self.errors) + 1)
        return risks


def _fit_memory_curve(
    measured: Sequence[Sample], ran_out: Sequence[Sample], memory: MemoryModel | None
) -> tuple[float, float] | None:
    """Fit a logistic curve with positive slope to cells that ran and cells that ran out of memory; None for too few."""
    if memory is None or len(ran_out) < _MIN_OUT_OF_MEMORY:
        return None
    samples = [*measured, *ran_out]
    truth = np.array([0.0] * len(measured) + [1.0] * len(ran_out))
    beyond = memory.predict_log(samples) - np.log([sample.memory_mib for sample in samples])
    known = np.isfinite(beyond)
    beyond, truth = beyond[known], truth[known]
    if truth.sum() < _MIN_OUT_OF_MEMORY or truth.all():
        return None

    def loss(curve: Array) -> float:
        logit = curve[0] + math.exp(curve[1]) * beyond
        return float(np.mean(np.logaddexp(0.0, logit) - truth * logit)) + 1e-3 * float(curve @ curve)

    middle, slope = minimize(loss, np.zeros(2), method="Nelder-Mead").x
    return float(middle), math.exp(float(slope))


def _cross_validated_log_loss(features: Array, truth: Array, families: Sequence[str]) -> tuple[float, float]:
    """Return the log loss on held-out families, of the trees and of a constant probability."""
    folds = group_folds(families, 5)
    predicted, plain = np.empty(len(truth)), np.empty(len(truth))
    for fold in np.unique(folds):
        train, test = folds != fold, folds == fold
        plain[test] = (truth[train].sum() + 0.5) / (train.sum() + 1)
        predicted[test] = np.asarray(_boost(features[train], truth[train]).predict(features[test], num_threads=1))
    return _log_loss(predicted, truth), _log_loss(plain, truth)


def _log_loss(predicted: Array, truth: Array) -> float:
    predicted = np.clip(predicted, 1e-6, 1 - 1e-6)
    return float(-np.mean(truth * np.log(predicted) + (1 - truth) * np.log(1 - predicted)))


def _boost(features: Array, truth: Array) -> lgb.Booster:
    return lgb.train(_PARAMETERS, lgb.Dataset(features, label=truth, params=_PARAMETERS), num_boost_round=_ROUNDS)


def _sigmoid(logit: float) -> float:
    return 1 / (1 + math.exp(-max(-50.0, min(50.0, logit))))
