"""How far a learner errs on what it lacks: models and devices are held out in turns, predicted and compared.

A turn holds out some families and one device at once, so that one learner tells of all three: of those families on
known devices, of known families on that device, and of both; where there is little, families have turns of their own.
This is what intervals in service are calibrated on.
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


class Regime(StrEnum):
    """What a sample lacks in the training set. The values are those of artifacts and events."""

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
"""Cases above which five turns do; below, up to ten leave nearly every family its own."""
ROUNDS = 200
MIN_SAMPLES = 12
"""Cases below which nothing is learned."""


@dataclass
class HoldoutPredictions:
    """Predictions of what was held out: natural logs, predicted less true."""

    samples: list[Sample] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)

    def add(self, samples: Sequence[Sample], told: Array) -> None:
        self.samples += samples
        self.errors += (told - log_latency(samples)).tolist()


def cross_validate(samples: Sequence[Sample]) -> dict[Regime, HoldoutPredictions]:
    """Every case of a sample predicted without what it is then taken to lack. Only what is supported counts."""
    samples = subsample_models(samples)
    found: dict[Regime, HoldoutPredictions] = defaultdict(HoldoutPredictions)
    most = 5 if len(samples) > _LARGE_SET else 10
    folds = group_folds([sample.family for sample in samples], most)
    count = int(folds.max()) + 1
    devices = [name for name, n in Counter(c.device for c in samples).most_common(_MAX_DEVICES) if n > FEW_SHOT_SAMPLES]
    held = np.array([sample.device for sample in samples])
    alone = len(samples) <= _LARGE_SET or len(devices) < 2
    for turn in range(count if alone else 0):
        latency_model = _fit_model(samples, folds != turn)
        if latency_model is not None:
            _record(found, Regime.UNSEEN_FAMILY, latency_model, _select(samples, folds == turn))
    for turn in range(max(count, len(devices)) if len(devices) > 1 else 0):
        new_family, new_device = folds == turn % count, held == devices[turn % len(devices)]
        latency_model = _fit_model(samples, ~new_family & ~new_device)
        if latency_model is None:
            continue
        if not alone:
            _record(found, Regime.UNSEEN_FAMILY, latency_model, _select(samples, new_family & ~new_device))
        old, new = _select(samples, ~new_family & new_device), _select(samples, new_family & new_device)
        _record(found, Regime.UNSEEN_DEVICE, latency_model, old)
        _record(found, Regime.UNSEEN_BOTH, latency_model, new)
        if len(old) > FEW_SHOT_SAMPLES:
            drawn = set(np.random.default_rng(turn).permutation(len(old))[:FEW_SHOT_SAMPLES].tolist())
            latency_model.adapt([old[i] for i in sorted(drawn)])
            _record(found, Regime.FEW_SHOT, latency_model, [sample for i, sample in enumerate(old) if i not in drawn])
            _record(found, Regime.FEW_SHOT_UNSEEN_FAMILY, latency_model, new)
    _cross_validate_seen(found, samples, folds)
    return dict(found)


def calibrate_regimes(found: dict[Regime, HoldoutPredictions]) -> dict[Regime, Calibration]:
    """The interval that each lack asks for, where enough groups were held out to tell."""
    made: dict[Regime, Calibration] = {}
    for regime, held in found.items():
        how, groups = _calibrator_and_groups(regime, held)
        try:
            made[regime] = how(np.abs(held.errors), groups)
        except ValueError:
            continue
    return made


def regime_metrics(found: dict[Regime, HoldoutPredictions]) -> dict[str, dict[str, Any]]:
    """Per lack: errors of the latency as fractions, and how often an interval calibrated on the other groups held."""
    return {regime.value: _metrics_for(regime, held) for regime, held in sorted(found.items())}


def empirical_coverage(
    errors: Array, groups: Sequence[str], how: Callable[[Array, Sequence[Hashable]], Calibration]
) -> dict[str, float | None]:
    """How often an interval calibrated on the other groups held, and its level; None where those are too few."""
    sizes, names = np.abs(errors), np.array(groups)
    inside: list[bool] = []
    level = None
    for group in np.unique(names):
        here = names == group
        try:
            rest = how(sizes[~here], names[~here].tolist())
        except ValueError:
            continue
        inside += (sizes[here] <= rest.half_width).tolist()
        level = rest.level
    return {"coverage": float(np.mean(inside)) if inside else None, "coverage_aimed_at": level}


def _calibrator_and_groups(
    regime: Regime, held: HoldoutPredictions
) -> tuple[Callable[[Array, Sequence[Hashable]], Calibration], list[str]]:
    """How what a question lacks is calibrated, and the group of each case: what lacks it as a whole."""
    if regime in _NEW_DEVICE_REGIMES:
        return calibrate_worst_group, [sample.device for sample in held.samples]
    return calibrate, [sample.family for sample in held.samples]


def _metrics_for(regime: Regime, held: HoldoutPredictions) -> dict[str, Any]:
    how, groups = _calibrator_and_groups(regime, held)
    error, labels = np.abs(np.expm1(held.errors)), np.array(groups)
    return {
        "rows": len(held.samples),
        "groups": len(set(groups)),
        "median_ape": float(np.median(error)),
        "mean_ape": float(np.mean(error)),
        **empirical_coverage(np.array(held.errors), groups, how),
        "median_ape_by_group": {str(group): float(np.median(error[labels == group])) for group in np.unique(labels)},
    }


def _record(
    found: dict[Regime, HoldoutPredictions], regime: Regime, latency_model: LatencyModel, samples: list[Sample]
) -> None:
    asked = [sample for sample in samples if latency_model.unsupported_reason(sample) is None]
    # A model of a known family that was measured nowhere else is as new as its family.
    if regime in (Regime.UNSEEN_DEVICE, Regime.FEW_SHOT):
        asked = [sample for sample in asked if sample.model in latency_model.models]
    elif regime == Regime.UNSEEN_FAMILY:
        asked = [sample for sample in asked if sample.device in latency_model.known_devices]
    if asked:
        found[regime].add(asked, latency_model.predict(asked).logs)


def _cross_validate_seen(
    found: dict[Regime, HoldoutPredictions], samples: Sequence[Sample], folds: npt.NDArray[np.int64]
) -> None:
    """Known models on known devices: what is known of each case is the same model elsewhere, or, of one that was
    measured in one place alone, other figures of it there."""
    _, codes = np.unique([f"{sample.device} {sample.backend}" for sample in samples], return_inverse=True)
    places: dict[str, set[int]] = defaultdict(set)
    for sample, code in zip(samples, codes.tolist(), strict=True):
        places[sample.model].add(code)
    once = np.array([len(places[sample.model]) == 1 for sample in samples], dtype=bool)
    count = max(3, min(5, int(folds.max()) + 1))
    turns = np.where(once, np.random.default_rng(0).permutation(len(samples)), folds + codes) % count
    for turn in range(3 if len(samples) > _LARGE_SET else count):
        latency_model = _fit_model(samples, turns != turn)
        if latency_model is not None:
            asked = _select(samples, turns == turn)
            known = [c for c in asked if c.model in latency_model.models and c.device in latency_model.known_devices]
            _record(found, Regime.SEEN, latency_model, known)


def _fit_model(samples: Sequence[Sample], which: npt.NDArray[np.bool_]) -> LatencyModel | None:
    train = _select(samples, which)
    return LatencyModel(train, rounds=ROUNDS) if len(train) >= MIN_SAMPLES else None


def _select(samples: Sequence[Sample], which: npt.NDArray[np.bool_]) -> list[Sample]:
    return [samples[i] for i in np.flatnonzero(which).tolist()]


def subsample_models(samples: Sequence[Sample]) -> list[Sample]:
    """Whole models, drawn at random, up to a number of cases that is learned from quickly."""
    if len(samples) <= _MAX_SAMPLES:
        return list(samples)
    models = sorted({sample.model for sample in samples})
    sizes = Counter(sample.model for sample in samples)
    drawn: set[str] = set()
    left = _MAX_SAMPLES
    for i in np.random.default_rng(0).permutation(len(models)).tolist():
        left -= sizes[models[i]]
        if left < 0:
            break
        drawn.add(models[i])
    return [sample for sample in samples if sample.model in drawn]
