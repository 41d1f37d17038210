"""How far a learner errs on what it lacks: models and devices are held out in turns, predicted and compared.

A turn holds out some families and one device at once, so that one learner tells of all three: of those families on
known devices, of known families on that device, and of both; where there is little, families have turns of their own.
This is what intervals in service are calibrated on.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from predictor.calibration.conformal import Calibration, calibrate, calibrate_worst_group
from predictor.calibration.cv_splits import FEW_SHOT_SAMPLES, group_folds
from predictor.data.samples import Sample
from predictor.models.latency_model import LatencyModel, log_latency

Array = npt.NDArray[np.float64]
Regime = Literal["nothing", "family", "hardware", "both", "few", "few, family"]
"""What a question lacks: `few` is a device with a few figures, and a model that was, or was not, measured elsewhere."""
_NEW_DEVICE_REGIMES = ("hardware", "both", "few", "few, family")
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

    cases: list[Sample] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)

    def add(self, cases: Sequence[Sample], told: Array) -> None:
        self.cases += cases
        self.errors += (told - log_latency(cases)).tolist()


def cross_validate(cases: Sequence[Sample]) -> dict[Regime, HoldoutPredictions]:
    """Every case of a sample predicted without what it is then taken to lack. Only what is supported counts."""
    cases = subsample_models(cases)
    found: dict[Regime, HoldoutPredictions] = defaultdict(HoldoutPredictions)
    most = 5 if len(cases) > _LARGE_SET else 10
    folds = group_folds([case.family for case in cases], most)
    count = int(folds.max()) + 1
    devices = [name for name, n in Counter(c.device for c in cases).most_common(_MAX_DEVICES) if n > FEW_SHOT_SAMPLES]
    held = np.array([case.device for case in cases])
    alone = len(cases) <= _LARGE_SET or len(devices) < 2
    for turn in range(count if alone else 0):
        learner = _fit_model(cases, folds != turn)
        if learner is not None:
            _record(found, "family", learner, _select(cases, folds == turn))
    for turn in range(max(count, len(devices)) if len(devices) > 1 else 0):
        new_family, new_device = folds == turn % count, held == devices[turn % len(devices)]
        learner = _fit_model(cases, ~new_family & ~new_device)
        if learner is None:
            continue
        if not alone:
            _record(found, "family", learner, _select(cases, new_family & ~new_device))
        old, new = _select(cases, ~new_family & new_device), _select(cases, new_family & new_device)
        _record(found, "hardware", learner, old)
        _record(found, "both", learner, new)
        if len(old) > FEW_SHOT_SAMPLES:
            drawn = set(np.random.default_rng(turn).permutation(len(old))[:FEW_SHOT_SAMPLES].tolist())
            learner.correct([old[i] for i in sorted(drawn)])
            _record(found, "few", learner, [case for i, case in enumerate(old) if i not in drawn])
            _record(found, "few, family", learner, new)
    _cross_validate_seen(found, cases, folds)
    return dict(found)


def calibrate_regimes(found: dict[Regime, HoldoutPredictions]) -> dict[Regime, Calibration]:
    """The interval that each lack asks for, where enough groups were held out to tell."""
    made: dict[Regime, Calibration] = {}
    for lack, held in found.items():
        how, groups = _calibrator_and_groups(lack, held)
        try:
            made[lack] = how(np.abs(held.errors), groups)
        except ValueError:
            continue
    return made


def regime_metrics(found: dict[Regime, HoldoutPredictions]) -> dict[str, dict[str, Any]]:
    """Per lack: errors of the latency as fractions, and how often an interval calibrated on the other groups held."""
    return {lack: _metrics_for(lack, held) for lack, held in sorted(found.items())}


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
    lack: Regime, held: HoldoutPredictions
) -> tuple[Callable[[Array, Sequence[Hashable]], Calibration], list[str]]:
    """How what a question lacks is calibrated, and the group of each case: what lacks it as a whole."""
    if lack in _NEW_DEVICE_REGIMES:
        return calibrate_worst_group, [case.device for case in held.cases]
    return calibrate, [case.family for case in held.cases]


def _metrics_for(lack: Regime, held: HoldoutPredictions) -> dict[str, Any]:
    how, groups = _calibrator_and_groups(lack, held)
    error, labels = np.abs(np.expm1(held.errors)), np.array(groups)
    return {
        "rows": len(held.cases),
        "groups": len(set(groups)),
        "median_ape": float(np.median(error)),
        "mean_ape": float(np.mean(error)),
        **empirical_coverage(np.array(held.errors), groups, how),
        "median_ape_by_group": {str(group): float(np.median(error[labels == group])) for group in np.unique(labels)},
    }


def _record(found: dict[Regime, HoldoutPredictions], lack: Regime, learner: LatencyModel, cases: list[Sample]) -> None:
    asked = [case for case in cases if learner.why_not(case) is None]
    # A model of a known family that was measured nowhere else is as new as its family.
    if lack in ("hardware", "few"):
        asked = [case for case in asked if case.model in learner.models]
    elif lack == "family":
        asked = [case for case in asked if case.device in learner.known]
    if asked:
        found[lack].add(asked, learner.predict(asked).logs)


def _cross_validate_seen(
    found: dict[Regime, HoldoutPredictions], cases: Sequence[Sample], folds: npt.NDArray[np.int64]
) -> None:
    """Known models on known devices: what is known of each case is the same model elsewhere, or, of one that was
    measured in one place alone, other figures of it there."""
    _, codes = np.unique([f"{case.device} {case.backend}" for case in cases], return_inverse=True)
    places: dict[str, set[int]] = defaultdict(set)
    for case, code in zip(cases, codes.tolist(), strict=True):
        places[case.model].add(code)
    once = np.array([len(places[case.model]) == 1 for case in cases], dtype=bool)
    count = max(3, min(5, int(folds.max()) + 1))
    turns = np.where(once, np.random.default_rng(0).permutation(len(cases)), folds + codes) % count
    for turn in range(3 if len(cases) > _LARGE_SET else count):
        learner = _fit_model(cases, turns != turn)
        if learner is not None:
            asked = _select(cases, turns == turn)
            known = [c for c in asked if c.model in learner.models and c.device in learner.known]
            _record(found, "nothing", learner, known)


def _fit_model(cases: Sequence[Sample], which: npt.NDArray[np.bool_]) -> LatencyModel | None:
    train = _select(cases, which)
    return LatencyModel(train, rounds=ROUNDS) if len(train) >= MIN_SAMPLES else None


def _select(cases: Sequence[Sample], which: npt.NDArray[np.bool_]) -> list[Sample]:
    return [cases[i] for i in np.flatnonzero(which).tolist()]


def subsample_models(cases: Sequence[Sample]) -> list[Sample]:
    """Whole models, drawn at random, up to a number of cases that is learned from quickly."""
    if len(cases) <= _MAX_SAMPLES:
        return list(cases)
    models = sorted({case.model for case in cases})
    sizes = Counter(case.model for case in cases)
    drawn: set[str] = set()
    left = _MAX_SAMPLES
    for i in np.random.default_rng(0).permutation(len(models)).tolist():
        left -= sizes[models[i]]
        if left < 0:
            break
        drawn.add(models[i])
    return [case for case in cases if case.model in drawn]
