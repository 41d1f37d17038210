"""Cross-validation errors by regime (unseen family, unseen device, few-shot), on which intervals are calibrated.

A round holds out some families and one device at once. One model then gives errors for three regimes: those families on
known devices, known families on that device, and both. Small sets have rounds of their own for families.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from predictor.calibration.conformal import Calibration, calibrate, calibrate_worst_group
from predictor.calibration.cv_splits import FEW_SHOT_SAMPLES, group_folds
from predictor.data.samples import Sample
from predictor.models.latency_model import LatencyModel, log_latency

Array = npt.NDArray[np.float64]
Calibrator = Callable[[Array, Sequence[Hashable]], Calibration]


class Regime(StrEnum):
    """Gap between a sample and the training set. The values are stored in artifacts and events."""

    SEEN = "nothing"
    UNSEEN_FAMILY = "family"
    UNSEEN_DEVICE = "hardware"
    UNSEEN_BOTH = "both"
    FEW_SHOT = "few"
    """A few figures of the device; the model was measured elsewhere."""
    FEW_SHOT_UNSEEN_FAMILY = "few, family"
    """A few figures of the device; the model was not measured."""


_NEW_DEVICE_REGIMES = (
    Regime.UNSEEN_DEVICE,
    Regime.UNSEEN_BOTH,
    Regime.FEW_SHOT,
    Regime.FEW_SHOT_UNSEEN_FAMILY,
)
_MAX_SAMPLES = 8_000
_MAX_DEVICES = 6
_LARGE_SET = 2_000
"""Samples above which five folds suffice; below, up to ten give nearly every family its own."""
ROUNDS = 200
MIN_SAMPLES = 12
"""Least number of samples to fit a model."""


@dataclass
class HoldoutPredictions:
    """Held-out samples and their log errors, predicted less true."""

    samples: list[Sample] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)

    def add(self, samples: Sequence[Sample], predicted: Array) -> None:
        """Add the errors of predicted log latencies."""
        self.samples += samples
        self.errors += (predicted - log_latency(samples)).tolist()


def cross_validate(samples: Sequence[Sample]) -> dict[Regime, HoldoutPredictions]:
    """Predict a subsample of the samples with models fitted without them, by regime; unsupported ones are left out."""
    samples = subsample_models(samples)
    holdouts: dict[Regime, HoldoutPredictions] = defaultdict(HoldoutPredictions)
    max_folds = 5 if len(samples) > _LARGE_SET else 10
    folds = group_folds([sample.family for sample in samples], max_folds)
    count = int(folds.max()) + 1
    devices = [name for name, n in Counter(s.device for s in samples).most_common(_MAX_DEVICES) if n > FEW_SHOT_SAMPLES]
    device_of = np.array([sample.device for sample in samples])
    separate_families = len(samples) <= _LARGE_SET or len(devices) < 2
    for fold in range(count if separate_families else 0):
        model = _fit_model(samples, folds != fold)
        if model is not None:
            _record(holdouts, Regime.UNSEEN_FAMILY, model, _select(samples, folds == fold))
    for turn in range(max(count, len(devices)) if len(devices) > 1 else 0):
        new_family, new_device = folds == turn % count, device_of == devices[turn % len(devices)]
        model = _fit_model(samples, ~new_family & ~new_device)
        if model is None:
            continue
        if not separate_families:
            _record(holdouts, Regime.UNSEEN_FAMILY, model, _select(samples, new_family & ~new_device))
        known_families, new_families = (_select(samples, mask & new_device) for mask in (~new_family, new_family))
        _record(holdouts, Regime.UNSEEN_DEVICE, model, known_families)
        _record(holdouts, Regime.UNSEEN_BOTH, model, new_families)
        if len(known_families) > FEW_SHOT_SAMPLES:
            order = np.random.default_rng(turn).permutation(len(known_families))
            few = set(order[:FEW_SHOT_SAMPLES].tolist())
            model.adapt([known_families[i] for i in sorted(few)])
            rest = [sample for i, sample in enumerate(known_families) if i not in few]
            _record(holdouts, Regime.FEW_SHOT, model, rest)
            _record(holdouts, Regime.FEW_SHOT_UNSEEN_FAMILY, model, new_families)
    _cross_validate_seen(holdouts, samples, folds)
    return dict(holdouts)


def calibrate_regimes(holdouts: dict[Regime, HoldoutPredictions]) -> dict[Regime, Calibration]:
    """Calibrate the interval of each regime with enough held-out groups; the others are left out."""
    calibrations: dict[Regime, Calibration] = {}
    for regime, holdout in holdouts.items():
        calibrator, groups = _calibrator_and_groups(regime, holdout)
        try:
            calibrations[regime] = calibrator(np.abs(holdout.errors), groups)
        except ValueError:
            continue
    return calibrations


def regime_metrics(holdouts: dict[Regime, HoldoutPredictions]) -> dict[str, dict[str, Any]]:
    """Return metrics by regime: latency errors as fractions, and the coverage of cross-fitted intervals."""
    return {regime.value: _metrics_for(regime, holdout) for regime, holdout in sorted(holdouts.items())}


def empirical_coverage(errors: Array, groups: Sequence[str], calibrator: Calibrator) -> dict[str, float | None]:
    """Return how often an interval calibrated on the other groups held, and its level; None for too few groups."""
    sizes, names = np.abs(errors), np.array(groups)
    inside: list[bool] = []
    level = None
    for group in np.unique(names):
        here = names == group
        try:
            others = calibrator(sizes[~here], names[~here].tolist())
        except ValueError:
            continue
        inside += (sizes[here] <= others.half_width).tolist()
        level = others.level
    return {"coverage": float(np.mean(inside)) if inside else None, "coverage_aimed_at": level}


def _calibrator_and_groups(regime: Regime, holdout: HoldoutPredictions) -> tuple[Calibrator, list[str]]:
    """Return how a regime is calibrated, and the group of each sample: the device or family that is new."""
    if regime in _NEW_DEVICE_REGIMES:
        return calibrate_worst_group, [sample.device for sample in holdout.samples]
    return calibrate, [sample.family for sample in holdout.samples]


def _metrics_for(regime: Regime, holdout: HoldoutPredictions) -> dict[str, Any]:
    calibrator, groups = _calibrator_and_groups(regime, holdout)
    error, labels = np.abs(np.expm1(holdout.errors)), np.array(groups)
    return {
        "rows": len(holdout.samples),
        "groups": len(set(groups)),
        "median_ape": float(np.median(error)),
        "mean_ape": float(np.mean(error)),
        **empirical_coverage(np.array(holdout.errors), groups, calibrator),
        "median_ape_by_group": {str(group): float(np.median(error[labels == group])) for group in np.unique(labels)},
    }


def _record(
    holdouts: dict[Regime, HoldoutPredictions], regime: Regime, model: LatencyModel, samples: list[Sample]
) -> None:
    supported = [sample for sample in samples if model.unsupported_reason(sample) is None]
    # A model that was measured nowhere else is as new as an unseen family, even if its family is known.
    if regime in (Regime.UNSEEN_DEVICE, Regime.FEW_SHOT):
        supported = [sample for sample in supported if sample.model in model.models]
    elif regime == Regime.UNSEEN_FAMILY:
        supported = [sample for sample in supported if sample.device in model.known_devices]
    if supported:
        holdouts[regime].add(supported, model.predict(supported).logs)


def _cross_validate_seen(
    holdouts: dict[Regime, HoldoutPredictions], samples: Sequence[Sample], folds: npt.NDArray[np.int64]
) -> None:
    """Record errors of known models on known devices.

    The model of a sample stays known by its figures in other places, or, if it was measured in one place only, by its
    other figures there.
    """
    _, codes = np.unique([f"{sample.device} {sample.backend}" for sample in samples], return_inverse=True)
    places: dict[str, set[int]] = defaultdict(set)
    for sample, code in zip(samples, codes.tolist(), strict=True):
        places[sample.model].add(code)
    in_one_place = np.array([len(places[sample.model]) == 1 for sample in samples], dtype=bool)
    count = max(3, min(5, int(folds.max()) + 1))
    turns = np.where(in_one_place, np.random.default_rng(0).permutation(len(samples)), folds + codes) % count
    for turn in range(3 if len(samples) > _LARGE_SET else count):
        model = _fit_model(samples, turns != turn)
        if model is not None:
            test = _select(samples, turns == turn)
            known = [s for s in test if s.model in model.models and s.device in model.known_devices]
            _record(holdouts, Regime.SEEN, model, known)


def _fit_model(samples: Sequence[Sample], mask: npt.NDArray[np.bool_]) -> LatencyModel | None:
    train = _select(samples, mask)
    return LatencyModel(train, rounds=ROUNDS) if len(train) >= MIN_SAMPLES else None


def _select(samples: Sequence[Sample], mask: npt.NDArray[np.bool_]) -> list[Sample]:
    return [samples[i] for i in np.flatnonzero(mask).tolist()]


def subsample_models(samples: Sequence[Sample]) -> list[Sample]:
    """Draw whole models at random, up to a number of samples that is quick to fit."""
    if len(samples) <= _MAX_SAMPLES:
        return list(samples)
    models = sorted({sample.model for sample in samples})
    sizes = Counter(sample.model for sample in samples)
    drawn: set[str] = set()
    room = _MAX_SAMPLES
    for i in np.random.default_rng(0).permutation(len(models)).tolist():
        room -= sizes[models[i]]
        if room < 0:
            break
        drawn.add(models[i])
    return [sample for sample in samples if sample.model in drawn]
