"""Cross-validation errors by regime (unseen family, unseen device, few-shot), on which intervals are calibrated.

A round holds out some families and one device at once. One model then gives errors for three regimes: those families on
known devices, known families on that device, and both. Small sets have rounds of their own for families. Devices with
few figures are in no trees, so that each round's model can be asked about all of them, with and without their others.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from predictor.calibration.conformal import MIN_GROUPS, Calibration, calibrate, calibrate_worst_group
from predictor.calibration.cv_splits import FEW_SHOT_SAMPLES, group_folds
from predictor.data.samples import Sample
from predictor.models.latency_model import LatencyModel, known_device_count, log_latency

Array = npt.NDArray[np.float64]


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

    @property
    def label(self) -> str:
        """Text for people: `hardware + family` and `few + family` where two things are lacking."""
        return "hardware + family" if self is Regime.UNSEEN_BOTH else self.value.replace(", ", " + ")


NEW_DEVICE_REGIMES = (
    Regime.UNSEEN_DEVICE,
    Regime.UNSEEN_BOTH,
    Regime.FEW_SHOT,
    Regime.FEW_SHOT_UNSEEN_FAMILY,
)
_MAX_SAMPLES = 8_000
_MAX_DEVICES = 6
_LARGE_SET = 2_000
"""Samples above which five folds suffice; below, up to ten give nearly every family its own."""
ANYWHERE = ""
"""Place of calibrations that hold where no narrower one does."""
_MANY_GROUPS = 10
"""Groups that promise 90 %: families for a place's own calibration, devices from which on the worst is not needed."""
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


@dataclass(frozen=True)
class _Rounds:
    """Samples in folds of families, and the devices that rounds hold out besides."""

    samples: list[Sample]
    folds: npt.NDArray[np.int64]
    few_samples: list[Sample]
    """Those of devices with few figures, which are in no trees."""
    few_folds: npt.NDArray[np.int64]
    devices: list[str]

    @classmethod
    def of(cls, samples: Sequence[Sample]) -> _Rounds:
        small = _devices_with_few(samples)
        few = [sample for sample in samples if sample.device in small]
        rest = subsample_models([sample for sample in samples if sample.device not in small])
        max_folds = 5 if len(rest) > _LARGE_SET else 10
        folds = group_folds([sample.family for sample in (*rest, *few)], max_folds)
        common = Counter(sample.device for sample in rest).most_common(_MAX_DEVICES)
        devices = [name for name, count in common if count > FEW_SHOT_SAMPLES]
        return cls(rest, folds[: len(rest)], few, folds[len(rest) :], devices)

    @property
    def families(self) -> int:
        """Rounds in which each family is held out once."""
        return int(self.folds.max()) + 1

    @property
    def families_apart(self) -> bool:
        """True if families are held out in rounds of their own, too."""
        return len(self.samples) <= _LARGE_SET or len(self.devices) < 2

    @property
    def all_own(self) -> bool:
        """True if this platform measured all of them."""
        return all(sample.own for sample in (*self.samples, *self.few_samples))


def cross_validate(samples: Sequence[Sample]) -> dict[Regime, HoldoutPredictions]:
    """Predict a subsample of the samples with models fitted without them, by regime; unsupported ones are left out."""
    rounds = _Rounds.of(samples)
    holdouts: dict[Regime, HoldoutPredictions] = defaultdict(HoldoutPredictions)
    for fold in range(rounds.families if rounds.families_apart else 0):
        model = _fit_model(rounds.samples, rounds.folds != fold)
        if model is not None:
            _record(holdouts, Regime.UNSEEN_FAMILY, model, _select(rounds.samples, rounds.folds == fold))
    for turn in range(max(rounds.families, len(rounds.devices)) if len(rounds.devices) > 1 else 0):
        _hold_out_device(holdouts, rounds, turn)
    _cross_validate_seen(holdouts, rounds.samples, rounds.folds)
    return dict(holdouts)


def _hold_out_device(holdouts: dict[Regime, HoldoutPredictions], rounds: _Rounds, turn: int) -> None:
    """Record errors of a model that was fitted without the turn's families and without its device."""
    samples, all_own = rounds.samples, rounds.all_own
    device = rounds.devices[turn % len(rounds.devices)]
    new_family = rounds.folds == turn % rounds.families
    new_device = np.array([sample.device == device for sample in samples])
    few_known = _select(rounds.few_samples, rounds.few_folds != turn % rounds.families)
    model = _fit_model(samples, ~new_family & ~new_device, few_known)
    if model is None:
        return
    if not rounds.families_apart:
        _record(holdouts, Regime.UNSEEN_FAMILY, model, _select(samples, new_family & ~new_device))
    asked = new_device & _asked(samples, all_own=all_own)
    known_families, new_families = (_select(samples, mask & asked) for mask in (~new_family, new_family))
    _record(holdouts, Regime.UNSEEN_DEVICE, model, known_families)
    _record(holdouts, Regime.UNSEEN_BOTH, model, new_families)
    if len(known_families) > FEW_SHOT_SAMPLES:
        _record_corrected(holdouts, model, known_families, new_families, turn)
    if turn < rounds.families:
        turns = (rounds.few_folds - turn) % rounds.families
        _record_few(holdouts, model, rounds.few_samples, turns, all_own=all_own)


def _record_corrected(
    holdouts: dict[Regime, HoldoutPredictions],
    model: LatencyModel,
    known_families: Sequence[Sample],
    new_families: list[Sample],
    seed: int,
) -> None:
    """Record errors on a new device after a few figures of it, drawn by the seed, corrected the model."""
    order = np.random.default_rng(seed).permutation(len(known_families))
    few = set(order[:FEW_SHOT_SAMPLES].tolist())
    model.adapt([known_families[i] for i in sorted(few)])
    _record(holdouts, Regime.FEW_SHOT, model, [sample for i, sample in enumerate(known_families) if i not in few])
    _record(holdouts, Regime.FEW_SHOT_UNSEEN_FAMILY, model, new_families)


def _asked(samples: Sequence[Sample], *, all_own: bool) -> npt.NDArray[np.bool_]:
    """Return which samples are asked about as of a new device: own devices among others have a model of their own."""
    return np.array([all_own or not sample.own for sample in samples], dtype=bool)


def _devices_with_few(samples: Sequence[Sample]) -> set[str]:
    counts = Counter(sample.device for sample in samples)
    return {device for device, count in counts.items() if count < known_device_count(counts)}


def _record_few(
    holdouts: dict[Regime, HoldoutPredictions],
    model: LatencyModel,
    samples: Sequence[Sample],
    turns: npt.NDArray[np.int64],
    *,
    all_own: bool,
) -> None:
    """Record errors on devices with few figures, each sample once per family regime as `turns` passes.

    Turn 0 are the families that the model was fitted without; of the known families those of turn 1 are tested. The
    others correct their device.
    """
    asked = _asked(samples, all_own=all_own)
    new_families, known_families = (_select(samples, (turns == turn) & asked) for turn in (0, 1))
    model.corrections.clear()
    _record(holdouts, Regime.UNSEEN_DEVICE, model, known_families)
    _record(holdouts, Regime.UNSEEN_BOTH, model, new_families)
    model.adapt(_select(samples, turns > 1))
    for regime, tested in ((Regime.FEW_SHOT, known_families), (Regime.FEW_SHOT_UNSEEN_FAMILY, new_families)):
        corrected = [sample for sample in tested if sample.device in model.corrections]
        _record(holdouts, regime, model, corrected)


@dataclass(frozen=True)
class RegimeCalibrations:
    """Calibrations by regime and place: a device, a kind of silicon with a runtime, or ANYWHERE.

    Errors differ by place more than by family. So a place with enough held-out groups of its own is calibrated on these
    alone (Mondrian conformal prediction; Vovk, Lindsay, Nouretdinov and Gammerman, 2003), and holds its level there.
    For a device that is new, only others of its kind of silicon with the same runtime tell anything.
    """

    by_place: dict[Regime, dict[str, Calibration]]

    def find(self, regime: Regime, sample: Sample) -> Calibration | None:
        """Return the calibration of the narrowest place of a sample that has one."""
        places = self.by_place.get(regime, {})
        return next(
            (places[name] for name in (sample.device, _kind_and_runtime(sample), ANYWHERE) if name in places), None
        )


def calibrate_regimes(holdouts: dict[Regime, HoldoutPredictions]) -> RegimeCalibrations:
    """Calibrate the interval of each regime, and of each place in it, with enough held-out groups."""
    calibrated = {
        regime: _calibrate_places(regime, holdout.samples, np.abs(holdout.errors))
        for regime, holdout in holdouts.items()
    }
    return RegimeCalibrations({regime: places for regime, places in calibrated.items() if places})


def _calibrate_places(regime: Regime, samples: Sequence[Sample], errors: Array) -> dict[str, Calibration]:
    """Return the calibration of each place with enough groups, by absolute log errors of held-out samples."""
    groups, places = np.array(_groups(regime, samples)), np.array(_places(regime, samples))
    calibrated = {}
    for place in [ANYWHERE, *sorted(set(places.tolist()))]:
        here = np.full(len(samples), True) if place == ANYWHERE else places == place
        found = _calibrate_place(regime, place, errors[here], groups[here].tolist())
        if found is not None:
            calibrated[place] = found
    return calibrated


def _calibrate_place(regime: Regime, place: str, errors: Array, groups: Sequence[str]) -> Calibration | None:
    """Return the calibration of a place by its absolute log errors; None where they are of too few groups."""
    is_new_device, many = regime in NEW_DEVICE_REGIMES, len(set(groups)) >= _MANY_GROUPS
    if (place == ANYWHERE and is_new_device) or (place != ANYWHERE and not is_new_device and not many):
        return None
    # Two families promise as much as two devices do: little, but more than no limits.
    by_worst = not many if is_new_device else len(set(groups)) < MIN_GROUPS
    calibrator = calibrate_worst_group if by_worst else calibrate
    try:
        return calibrator(errors, groups)
    except ValueError:
        return None


def _groups(regime: Regime, samples: Sequence[Sample]) -> list[str]:
    """Return what is new of each sample and held out as one: the device, else the family."""
    return [sample.device if regime in NEW_DEVICE_REGIMES else sample.family for sample in samples]


def _places(regime: Regime, samples: Sequence[Sample]) -> list[str]:
    """Return the place of each sample: its kind of silicon and runtime where the device is new, else the device."""
    return [_kind_and_runtime(sample) if regime in NEW_DEVICE_REGIMES else sample.device for sample in samples]


def _kind_and_runtime(sample: Sample) -> str:
    return f"{sample.kind} {sample.backend}"


def regime_metrics(holdouts: dict[Regime, HoldoutPredictions]) -> dict[str, dict[str, Any]]:
    """Return metrics by regime: latency errors as fractions, and the coverage of cross-fitted intervals."""
    return {regime.value: _metrics_for(regime, holdout) for regime, holdout in sorted(holdouts.items())}


def held_out_half_widths(regime: Regime, samples: Sequence[Sample], errors: Array) -> Array:
    """Return half widths and levels, a row per sample, as calibrated without the sample's group; NaN where none is.

    `errors` are absolute log errors. These are the intervals that a predictor of this regime serves.
    """
    # Numbers in place of names, because comparing text takes most of the time.
    groups = np.unique(_groups(regime, samples), return_inverse=True)[1]
    names, places = np.unique(_places(regime, samples), return_inverse=True)
    limits = np.full((len(samples), 2), np.nan)
    for group in range(groups.max() + 1 if len(groups) else 0):
        own, others = np.flatnonzero(groups == group), np.flatnonzero(groups != group)
        for place in np.unique(places[own]):
            here = others[places[others] == place]
            found = _calibrate_place(
                regime, str(names[place]), errors[here], groups[here].tolist()
            ) or _calibrate_place(regime, ANYWHERE, errors[others], groups[others].tolist())
            if found is not None:
                limits[own[places[own] == place]] = found.half_width, found.level
    return limits


def _metrics_for(regime: Regime, holdout: HoldoutPredictions) -> dict[str, Any]:
    samples = holdout.samples
    error, labels = np.abs(np.expm1(holdout.errors)), np.array(_groups(regime, samples))
    sizes = np.abs(holdout.errors)
    limits = held_out_half_widths(regime, samples, sizes)
    known = ~np.isnan(limits[:, 0])
    inside = sizes[known] <= limits[known, 0]
    devices = np.array([sample.device for sample in samples])[known]
    return {
        "rows": len(samples),
        "groups": len(set(labels.tolist())),
        "median_ape": float(np.median(error)),
        "mean_ape": float(np.mean(error)),
        "coverage": float(inside.mean()) if known.any() else None,
        "coverage_aimed_at": float(limits[known, 1].mean()) if known.any() else None,
        "coverage_by_device": {str(name): float(inside[devices == name].mean()) for name in np.unique(devices)},
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


def _fit_model(
    samples: Sequence[Sample], mask: npt.NDArray[np.bool_], others: Sequence[Sample] = ()
) -> LatencyModel | None:
    """Fit a model to the selected samples, and to others of devices with few figures; None for too few."""
    train = _select(samples, mask)
    return LatencyModel([*train, *others], rounds=ROUNDS) if len(train) >= MIN_SAMPLES else None


def _select(samples: Sequence[Sample], mask: npt.NDArray[np.bool_]) -> list[Sample]:
    return [samples[i] for i in np.flatnonzero(mask).tolist()]


def subsample_models(samples: Sequence[Sample]) -> list[Sample]:
    """Draw whole models, up to a number of samples that is quick to fit, in the order of a hash of their names.

    A training set that grew by some models has most of the draw in common with the one before.
    """
    if len(samples) <= _MAX_SAMPLES:
        return list(samples)
    sizes = Counter(sample.model for sample in samples)
    drawn: set[str] = set()
    room = _MAX_SAMPLES
    for model in sorted(sizes, key=lambda name: hashlib.sha256(name.encode()).digest()):
        room -= sizes[model]
        if room < 0:
            break
        drawn.add(model)
    return [sample for sample in samples if sample.model in drawn]
