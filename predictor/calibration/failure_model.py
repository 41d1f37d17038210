"""How likely a cell fails instead of running: for want of memory, and as cells before it failed. Nothing else.

Memory is physics: the peak expected against what the device has, with the errors that peaks of unseen models showed,
or, where enough cells ran out of memory, with the logistic curve through them. Any other class of failure is learned
by LightGBM where enough cells failed that way, and kept only where it tells unseen families better than their share.
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
from predictor.models.residual_trees import Encoder
from predictor.schemas.responses import Interval

Array = npt.NDArray[np.float64]
OUT_OF_MEMORY = "out_of_memory"
MIN_FAILURES = 20
_MIN_OUT_OF_MEMORY = 5
_MIN_FAMILIES = 3
_NAMES = ("family", "backend", "hardware", "precision", "mode", "kind", "device")
_PARAMETERS: dict[str, Any] = {
    "objective": "binary",
    "learning_rate": 0.1,
    "num_leaves": 8,
    "min_data_in_leaf": 10,
    "lambda_l2": 1.0,
    "num_threads": 1,
    "deterministic": True,
    "force_row_wise": True,
    "seed": 0,
    "verbosity": -1,
}
_ROUNDS = 80


@dataclass(frozen=True)
class FailureModel:
    """What was learned of failures."""

    errors: tuple[float, ...]
    """Of the peak of memory: natural logs, predicted less true, of models held out; none where it is not predicted."""
    curve: tuple[float, float] | None
    """Logit of running out of memory: at a peak as large as the memory, and per natural log beyond it."""
    encoder: Encoder
    boosters: dict[str, lgb.Booster]
    metrics: dict[str, Any]

    @classmethod
    def fit(
        cls, measured: Sequence[Sample], failed: Sequence[tuple[Sample, str]], memory: MemoryModel | None
    ) -> FailureModel:
        """From cells that ran and cells that did not."""
        counts: Counter[str] = Counter(kind for _, kind in failed)
        curve = _fit_memory_curve(measured, [sample for sample, kind in failed if kind == OUT_OF_MEMORY], memory)
        everything = [*measured, *(sample for sample, _ in failed)]
        encoder = Encoder.fit(everything, _NAMES)
        boosters: dict[str, lgb.Booster] = {}
        metrics: dict[str, dict[str, Any]] = {}
        for kind, count in sorted(counts.items()):
            truth = np.array([0.0] * len(measured) + [float(k == kind) for _, k in failed])
            families = [sample.family for sample in everything]
            hit = {family for family, bad in zip(families, truth, strict=True) if bad}
            metrics[kind] = {"failed": count, "families": len(hit), "learned": False}
            if kind == OUT_OF_MEMORY or count < MIN_FAILURES or len(hit) < _MIN_FAMILIES or not measured:
                continue
            loss, plain = _cross_validated_log_loss(encoder.transform(everything), truth, families)
            metrics[kind] |= {"log_loss": loss, "log_loss_of_share": plain, "learned": loss < plain}
            if loss < plain:
                boosters[kind] = _boost(encoder.transform(everything), truth)
        metrics.setdefault(OUT_OF_MEMORY, {"failed": 0, "families": 0, "learned": False})
        metrics[OUT_OF_MEMORY]["learned"] = curve is not None
        return cls(memory.errors if memory else (), curve, encoder, boosters, metrics)

    def predict(self, samples: Sequence[Sample], peaks: Sequence[Interval | None]) -> list[dict[str, float]]:
        """The same of many cases, in order; the trees are asked once."""
        found = [self._memory_risk(sample, peak) for sample, peak in zip(samples, peaks, strict=True)]
        if self.boosters and samples:
            numbers = self.encoder.transform(samples)
            for kind, booster in self.boosters.items():
                for one, share in zip(found, np.asarray(booster.predict(numbers, num_threads=1)).tolist(), strict=True):
                    one[kind] = share
        return found

    def _memory_risk(self, sample: Sample, peak: Interval | None) -> dict[str, float]:
        found = {}
        if peak is not None and not math.isnan(sample.memory_mib):
            beyond = math.log(peak.p50 / sample.memory_mib)
            if self.curve is not None:
                found[OUT_OF_MEMORY] = _sigmoid(self.curve[0] + self.curve[1] * beyond)
            elif self.errors:
                # One more error than were seen could be anything: neither 0 nor 1 is ever claimed.
                found[OUT_OF_MEMORY] = (bisect_left(self.errors, beyond) + 0.5) / (len(self.errors) + 1)
        return found


def _fit_memory_curve(
    measured: Sequence[Sample], ran_out: Sequence[Sample], memory: MemoryModel | None
) -> tuple[float, float] | None:
    """A logistic curve through cells that ran and that ran out of memory; its slope is not negative."""
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


def _cross_validated_log_loss(numbers: Array, truth: Array, families: Sequence[str]) -> tuple[float, float]:
    """Log loss on families held out, of the trees and of the plain share of failures."""
    folds = group_folds(families, 5)
    told, plain = np.empty(len(truth)), np.empty(len(truth))
    for fold in np.unique(folds):
        train, test = folds != fold, folds == fold
        plain[test] = (truth[train].sum() + 0.5) / (train.sum() + 1)
        told[test] = np.asarray(_boost(numbers[train], truth[train]).predict(numbers[test], num_threads=1))
    return _log_loss(told, truth), _log_loss(plain, truth)


def _log_loss(told: Array, truth: Array) -> float:
    told = np.clip(told, 1e-6, 1 - 1e-6)
    return float(-np.mean(truth * np.log(told) + (1 - truth) * np.log(1 - told)))


def _boost(numbers: Array, truth: Array) -> lgb.Booster:
    return lgb.train(_PARAMETERS, lgb.Dataset(numbers, label=truth, params=_PARAMETERS), num_boost_round=_ROUNDS)


def _sigmoid(logit: float) -> float:
    return 1 / (1 + math.exp(-max(-50.0, min(50.0, logit))))
