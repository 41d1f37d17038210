"""Cross-validation errors by regime (unseen family, unseen device, few-shot), on which intervals are calibrated.

To fit few models, each round holds out one fold of families and one device at once. Its model gives errors for three
regimes: the families on other devices, other families on the device, and the families on the device. Small sets have
separate rounds that hold out families only.

Devices with few figures are never used to fit the trees. So every round's model can be tested on them, both as unseen
devices and after a few of their figures corrected it.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from predictor.calibration.conformal import MIN_GROUPS, Calibration, calibrate, calibrate_worst_group
from predictor.calibration.cv_splits import FEW_SHOT_SAMPLES, group_folds
from predictor.data.samples import Sample
from predictor.models.latency_model import LatencyModel, known_of, log_latency

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
        """Text for people, such as `family` or `hardware + family`."""
        return "hardware + family" if self is Regime.UNSEEN_BOTH else self.value.replace(", ", " + ")


NEW_DEVICE_REGIMES = (
    Regime.UNSEEN_DEVICE,
    Regime.UNSEEN_BOTH,
    Regime.FEW_SHOT,
    Regime.FEW_SHOT_UNSEEN_FAMILY,
)
"""Regimes in which the sample's device is not among the known ones."""
_MAX_SAMPLES = 8_000
"""Most samples to cross-validate on; larger sets are subsampled by models."""
_MAX_DEVICES = 6
"""Most devices to hold out, those with most samples."""
_LARGE_SET = 2_000
"""Number of samples above which five folds of families suffice. Smaller sets have ten, so nearly one per family."""
ANYWHERE = ""
"""Place of the calibration that is used where a sample's own places have none."""
_MANY_GROUPS = 10
"""Number of groups from which on `calibrate` reaches a level of 90 %.

A device with fewer families has no calibration of its own, and fewer devices are calibrated by the worst of them.
"""
ROUNDS = 200
"""Boosting rounds of the models that are fitted for cross-validation."""
MIN_SAMPLES = 12
"""Least number of samples to fit a model."""


@dataclass
class HoldoutPredictions:
    """Held-out samples with their errors: natural logs of predicted over measured latency."""

    samples: list[Sample] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)

    def add(self, samples: Sequence[Sample], predicted: Array) -> None:
        """Add samples with their predicted log latencies."""
        self.samples += samples
        self.errors += (predicted - log_latency(samples)).tolist()


class CrossValidated(NamedTuple):
    """Samples and their held-out errors by regime."""

    samples: Sequence[Sample]
    holdouts: Mapping[Regime, HoldoutPredictions]


@dataclass(frozen=True)
class _Rounds:
    """Samples divided into folds of families, and the devices that rounds hold out in addition."""

    samples: list[Sample]
    """Samples of devices with many figures."""
    folds: npt.NDArray[np.int64]
    """Fold of families of each of these samples."""
    few_samples: list[Sample]
    """Samples of devices with few figures, to which no trees are fitted."""
    few_folds: npt.NDArray[np.int64]
    """Fold of families of each of those samples."""
    devices: list[str]
    """Devices to hold out."""

    @classmethod
    def of(cls, samples: Sequence[Sample]) -> _Rounds:
        """Divide a subsample of the samples."""
        known = known_of(samples)
        known_devices = {sample.device for sample in known}
        few = [sample for sample in samples if sample.device not in known_devices]
        rest = subsample_models(known)
        folds = group_folds([sample.family for sample in rest], 5 if len(rest) > _LARGE_SET else 10)
        common = Counter(sample.device for sample in rest).most_common(_MAX_DEVICES)
        devices = [name for name, count in common if count > FEW_SHOT_SAMPLES]
        return cls(rest, folds, few, _folds_like(rest, folds, few), devices)

    @property
    def fold_count(self) -> int:
        """Number of folds of families, each of which is held out once."""
        return int(self.folds.max()) + 1

    @property
    def has_family_rounds(self) -> bool:
        """True if there are rounds that hold out families only."""
        return len(self.samples) <= _LARGE_SET or len(self.devices) < 2

    @property
    def all_own(self) -> bool:
        """True if the log's users measured or imported all samples themselves."""
        return all(sample.own for sample in (*self.samples, *self.few_samples))


def cross_validate(
    samples: Sequence[Sample], earlier: CrossValidated | None = None
) -> dict[Regime, HoldoutPredictions]:
    """Return the held-out errors of a subsample by regime. Samples that a model does not support are left out.

    Errors of known models on known devices are taken from the `earlier` ones where they would be the same, because
    figures of other devices have no say in them.
    """
    rounds = _Rounds.of(samples)
    holdouts: dict[Regime, HoldoutPredictions] = defaultdict(HoldoutPredictions)
    for fold in range(rounds.fold_count if rounds.has_family_rounds else 0):
        model = _fit_model(rounds.samples, rounds.folds != fold)
        if model is not None:
            _record(holdouts, Regime.UNSEEN_FAMILY, model, _select(rounds.samples, rounds.folds == fold))
    for turn in range(max(rounds.fold_count, len(rounds.devices)) if len(rounds.devices) > 1 else 0):
        _hold_out_device(holdouts, rounds, turn)
    seen = None if earlier is None else _seen_before(earlier, rounds)
    if seen is not None:
        holdouts[Regime.SEEN] = seen
    else:
        _cross_validate_seen(holdouts, rounds.samples, rounds.folds)
    return dict(holdouts)


def _seen_before(earlier: CrossValidated, rounds: _Rounds) -> HoldoutPredictions | None:
    """Return earlier errors of known models on known devices, if their rounds were the same; else None."""
    before, held_out = _Rounds.of(earlier.samples), earlier.holdouts.get(Regime.SEEN)
    if held_out is None or before.samples != rounds.samples or not np.array_equal(before.folds, rounds.folds):
        return None
    equal = {id(old): new for old, new in zip(before.samples, rounds.samples, strict=True)}
    return HoldoutPredictions([equal[id(sample)] for sample in held_out.samples], held_out.errors)


def _hold_out_device(holdouts: dict[Regime, HoldoutPredictions], rounds: _Rounds, turn: int) -> None:
    """Record the errors of one round: of a model that was fitted without one fold of families and one device."""
    samples, all_own = rounds.samples, rounds.all_own
    device = rounds.devices[turn % len(rounds.devices)]
    new_family = rounds.folds == turn % rounds.fold_count
    new_device = np.array([sample.device == device for sample in samples])
    few_known = _select(rounds.few_samples, rounds.few_folds != turn % rounds.fold_count)
    model = _fit_model(samples, ~new_family & ~new_device, few_known)
    if model is None:
        return
    if not rounds.has_family_rounds:
        _record(holdouts, Regime.UNSEEN_FAMILY, model, _select(samples, new_family & ~new_device))
    tested = new_device & _is_tested_on_new_device(samples, all_own=all_own)
    known_families, new_families = (_select(samples, mask & tested) for mask in (~new_family, new_family))
    _record(holdouts, Regime.UNSEEN_DEVICE, model, known_families)
    _record(holdouts, Regime.UNSEEN_BOTH, model, new_families)
    if len(known_families) > FEW_SHOT_SAMPLES:
        _record_corrected(holdouts, model, known_families, new_families, turn)
    if turn < rounds.fold_count:
        turns = (rounds.few_folds - turn) % rounds.fold_count
        _record_few(holdouts, model, rounds.few_samples, turns, all_own=all_own)


def _record_corrected(
    holdouts: dict[Regime, HoldoutPredictions],
    model: LatencyModel,
    known_families: Sequence[Sample],
    new_families: list[Sample],
    seed: int,
) -> None:
    """Correct the model by a few random figures of a new device, and record its errors on the others."""
    order = np.random.default_rng(seed).permutation(len(known_families))
    few = set(order[:FEW_SHOT_SAMPLES].tolist())
    model.adapt([known_families[i] for i in sorted(few)])
    _record(holdouts, Regime.FEW_SHOT, model, [sample for i, sample in enumerate(known_families) if i not in few])
    _record(holdouts, Regime.FEW_SHOT_UNSEEN_FAMILY, model, new_families)


def _is_tested_on_new_device(samples: Sequence[Sample], *, all_own: bool) -> npt.NDArray[np.bool_]:
    """Return a mask of the samples that test how a model errs on unseen devices.

    Where others' figures are in the training set, the users' own are left out, because their devices have separate
    models (`own_group` in `predictor.calibration.predictor`).
    """
    return np.array([all_own or not sample.own for sample in samples], dtype=bool)


def _folds_like(
    samples: Sequence[Sample], folds: npt.NDArray[np.int64], others: Sequence[Sample]
) -> npt.NDArray[np.int64]:
    """Return the folds of other samples: those of their families among the samples, and folds of their own."""
    fold_of = dict(zip((sample.family for sample in samples), folds.tolist(), strict=True))
    new = [sample.family for sample in others if sample.family not in fold_of]
    fold_of |= zip(new, group_folds(new, int(folds.max()) + 1).tolist(), strict=True)
    return np.array([fold_of[sample.family] for sample in others], dtype=np.int64)


def _record_few(
    holdouts: dict[Regime, HoldoutPredictions],
    model: LatencyModel,
    samples: Sequence[Sample],
    turns: npt.NDArray[np.int64],
    *,
    all_own: bool,
) -> None:
    """Record errors on devices with few figures, first as unseen devices, then corrected by some of their figures.

    `turns` divides the families: the model was fitted without those of turn 0, those of turn 1 are tested as known
    ones, and all others correct the model. Over all rounds each sample is tested once with its family new, once known.
    """
    tested = _is_tested_on_new_device(samples, all_own=all_own)
    new_families, known_families = (_select(samples, (turns == turn) & tested) for turn in (0, 1))
    model.corrections.clear()
    _record(holdouts, Regime.UNSEEN_DEVICE, model, known_families)
    _record(holdouts, Regime.UNSEEN_BOTH, model, new_families)
    model.adapt(_select(samples, turns > 1))
    for regime, test in ((Regime.FEW_SHOT, known_families), (Regime.FEW_SHOT_UNSEEN_FAMILY, new_families)):
        corrected = [sample for sample in test if sample.device in model.corrections]
        _record(holdouts, regime, model, corrected)


@dataclass(frozen=True)
class RegimeCalibrations:
    """Calibrations by regime and place: a device, a kind of silicon with a runtime, or ANYWHERE.

    Errors differ more between places than between families. So a place with enough held-out groups has a calibration
    on these alone, which holds its level there (Mondrian conformal prediction; Vovk, Lindsay, Nouretdinov and
    Gammerman, 2003). For a new device the place is its kind of silicon (GPU, CPU, NPU) with the runtime.
    """

    by_place: dict[Regime, dict[str, Calibration]]

    def find(self, regime: Regime, sample: Sample) -> Calibration | None:
        """Return the calibration of the narrowest of the sample's places that has one."""
        places = self.by_place.get(regime, {})
        return next(
            (places[name] for name in (sample.device, _kind_and_runtime(sample), ANYWHERE) if name in places), None
        )


def calibrate_regimes(holdouts: dict[Regime, HoldoutPredictions]) -> RegimeCalibrations:
    """Calibrate each regime, and each of its places, that has enough held-out groups."""
    calibrated = {
        regime: _calibrate_places(regime, holdout.samples, np.abs(holdout.errors))
        for regime, holdout in holdouts.items()
    }
    return RegimeCalibrations({regime: places for regime, places in calibrated.items() if places})


def _calibrate_places(regime: Regime, samples: Sequence[Sample], errors: Array) -> dict[str, Calibration]:
    """Return the calibration of each place with enough groups; `errors` are absolute log errors of the samples."""
    groups, places = np.array(_groups(regime, samples)), np.array(_places(regime, samples))
    calibrated = {}
    for place in [ANYWHERE, *sorted(set(places.tolist()))]:
        here = np.full(len(samples), True) if place == ANYWHERE else places == place
        found = _calibrate_place(regime, place, errors[here], groups[here].tolist())
        if found is not None:
            calibrated[place] = found
    return calibrated


def _calibrate_place(regime: Regime, place: str, errors: Array, groups: Sequence[str]) -> Calibration | None:
    """Calibrate a place on the absolute log errors of its samples; None for too few groups."""
    is_new_device, many = regime in NEW_DEVICE_REGIMES, len(set(groups)) >= _MANY_GROUPS
    if (place == ANYWHERE and is_new_device) or (place != ANYWHERE and not is_new_device and not many):
        return None
    # Two families are calibrated like two devices: the level is low, but better than no interval.
    by_worst = not many if is_new_device else len(set(groups)) < MIN_GROUPS
    calibrator = calibrate_worst_group if by_worst else calibrate
    try:
        return calibrator(errors, groups)
    except ValueError:
        return None


def _groups(regime: Regime, samples: Sequence[Sample]) -> list[str]:
    """Return the group that each sample was held out with: its device in regimes of new devices, else its family."""
    return [sample.device if regime in NEW_DEVICE_REGIMES else sample.family for sample in samples]


def _places(regime: Regime, samples: Sequence[Sample]) -> list[str]:
    """Return the place of each sample: its kind of silicon and runtime if its device is new, else its device."""
    return [_kind_and_runtime(sample) if regime in NEW_DEVICE_REGIMES else sample.device for sample in samples]


def _kind_and_runtime(sample: Sample) -> str:
    return f"{sample.kind} {sample.backend}"


def regime_metrics(holdouts: dict[Regime, HoldoutPredictions]) -> dict[str, dict[str, Any]]:
    """Return metrics by regime: latency errors as fractions, and the coverage of cross-fitted intervals."""
    return {regime.value: _metrics_for(regime, holdout) for regime, holdout in sorted(holdouts.items())}


def held_out_half_widths(regime: Regime, samples: Sequence[Sample], errors: Array) -> Array:
    """Return the interval of each sample as calibrated without its own group: an array of shape (samples, 2).

    The columns are half width and level, NaN where the other groups are too few. `errors` are absolute log errors.
    """
    # Codes instead of names, because comparing text takes most of the time.
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
    """Add a model's errors on those of the samples that it supports and that are of the regime."""
    supported = [sample for sample in samples if model.unsupported_reason(sample) is None]
    # Without figures of the same model elsewhere a sample is of no regime of known models, even if its family is known.
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

    A place is a device with a runtime. A sample of a model measured in several places is held out together with the
    model's other figures in its place. One of a model measured in one place only is held out by itself.
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
    """Return the samples of a random choice of models, at most `_MAX_SAMPLES` of them.

    The choice is in the order of a hash of the models' names. So a training set that grew by some models keeps most of
    its earlier choice.
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
