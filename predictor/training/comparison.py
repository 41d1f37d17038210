"""Comparison of a new predictor with the one in service, by their errors on the same unseen families.

A predictor is accurate on the samples that it was fitted to. So two predictors are compared by models that were
fitted to their training sets without some families, on exactly these families. These are the models of their
cross-validations. If both share too few held-out samples, or other code fitted one of them, models are fitted for the
comparison.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.stats import binomtest
from threadpoolctl import threadpool_limits

from predictor.calibration.cross_validation import (
    MIN_SAMPLES,
    ROUNDS,
    HoldoutPredictions,
    Regime,
    subsample_models,
)
from predictor.calibration.cv_splits import group_folds
from predictor.calibration.predictor import Predictor
from predictor.data.samples import Sample
from predictor.models.latency_model import LatencyModel, LatencyPrediction, log_latency

_FOLDS = 3
_LEAST_ERROR = 0.001
"""Added to relative errors before their ratio is taken, because an error may be 0."""
MAX_RELATIVE_INCREASE = 0.10
"""Largest relative increase of the median error with which a candidate is promoted."""
MAX_ABSOLUTE_INCREASE = 0.01
"""Further absolute increase that is allowed: two fits to nearly equal samples differ by about as much."""
MAX_CHANCE = 0.1
"""P-value of the sign test over families above which a larger error counts as chance.

With three families it is 0.125 even if all are worse, so that so few cannot refuse a candidate.
"""


@dataclass(frozen=True)
class PairedErrors:
    """Relative errors of two predictors on the same test samples."""

    values: npt.NDArray[np.float64]
    """One row per sample: the error of the candidate, and that of the predictor in service."""
    families: list[str]

    def chance(self) -> float:
        """Return the p-value of the one-sided sign test over families.

        It is the probability that at least as many families have a larger error, if the predictors are equal.
        """
        worse_by = np.log((self.values[:, 0] + _LEAST_ERROR) / (self.values[:, 1] + _LEAST_ERROR))
        names = np.array(self.families)
        medians = [float(np.median(worse_by[names == name])) for name in sorted(set(self.families))]
        return float(binomtest(sum(m > 0 for m in medians), len(medians), alternative="greater").pvalue)


@dataclass(frozen=True)
class PromotionDecision:
    """Decision on a candidate, with its reason."""

    promoted: bool
    reason: str
    report: dict[str, Any]
    best: bool = True
    """True if its error is at most that of the best so far. Later candidates are then compared with it."""


class TrainedPredictor(NamedTuple):
    """Predictor with the held-out errors of its cross-validation, by mode; empty if other code computed them."""

    predictor: Predictor
    holdouts: Mapping[str, dict[Regime, HoldoutPredictions]]


def compare(
    candidate: TrainedPredictor, serving: TrainedPredictor | None, reference: TrainedPredictor | None = None
) -> PromotionDecision:
    """Compare median errors on the same held-out families, by mode; the candidate must not be worse in any.

    It is compared with the predictor in service and with `reference`, the best one so far, because many small losses
    add up. "Not worse" is a median error of at most (1 + MAX_RELATIVE_INCREASE) times the other's plus
    MAX_ABSOLUTE_INCREASE, or a difference that chance explains (a sign test over the families). Test samples are those
    that both training sets hold, or all of the candidate's where these are too few.
    """
    if serving is None:
        return PromotionDecision(True, "there is no other to compare it with", {})
    others = {other.predictor.predictor_id: other for other in (serving, reference or serving)}
    reports = {}
    for name, other in others.items():
        reports[name], worse = _compare_modes(candidate, other)
        if worse:
            reason = f"it errs more on unseen families than {name} ({'; '.join(worse)})"
            return PromotionDecision(False, reason, reports[name])
    best = all(found["median_ape"] <= found["median_ape_in_service"] for found in [*reports.values()][-1].values())
    reason = f"not worse than {' and '.join(reports)} on the same unseen families"
    return PromotionDecision(True, reason, reports[serving.predictor.predictor_id], best=best)


def _compare_modes(candidate: TrainedPredictor, other: TrainedPredictor) -> tuple[dict[str, Any], list[str]]:
    """Return the errors of both by mode, and the modes in which the candidate is worse, with its errors."""
    report: dict[str, Any] = {}
    worse = []
    for mode in sorted(candidate.predictor.modes.keys() & other.predictor.modes.keys()):
        ours, theirs = (found.predictor.modes[mode].latency_model.samples for found in (candidate, other))
        # Equal samples give equal models.
        if ours == theirs:
            continue
        held_out = (found.holdouts.get(mode, {}).get(Regime.UNSEEN_FAMILY) for found in (candidate, other))
        errors = _held_out_errors(*held_out) or _paired_errors(ours, theirs)
        if errors is None:
            continue
        own, others = (float(error) for error in np.median(errors.values, axis=0))
        chance = errors.chance()
        report[mode] = {
            "cases": len(errors.values), "median_ape": own, "median_ape_in_service": others, "chance": chance,
        }  # fmt: skip
        if own > others * (1 + MAX_RELATIVE_INCREASE) + MAX_ABSOLUTE_INCREASE and chance < MAX_CHANCE:
            worse.append(f"{mode}: {own:.1%} against {others:.1%}")
    return report, worse


def _held_out_errors(ours: HoldoutPredictions | None, theirs: HoldoutPredictions | None) -> PairedErrors | None:
    """Return the errors of both cross-validations, for the configurations that both held out; None for too few.

    The measured latencies are those of the candidate's training set.
    """
    if ours is None or theirs is None:
        return None
    predicted = (np.array(theirs.errors) + log_latency(theirs.samples)).tolist()
    by_configuration = {sample.configuration(): log for sample, log in zip(theirs.samples, predicted, strict=True)}
    shared = [
        (sample, error, by_configuration[configuration])
        for sample, error in zip(ours.samples, ours.errors, strict=True)
        if (configuration := sample.configuration()) in by_configuration
    ]
    if len(shared) < MIN_SAMPLES:
        return None
    samples, errors, their_logs = zip(*shared, strict=True)
    logs = np.column_stack([errors, np.array(their_logs) - log_latency(samples)])
    return PairedErrors(np.abs(np.expm1(logs)), [sample.family for sample in samples])


def _paired_errors(ours: Sequence[Sample], theirs: Sequence[Sample]) -> PairedErrors | None:
    """Return the errors of models that are fitted to both training sets without the tested families.

    None where there are too few.
    """
    configurations = {sample.configuration() for sample in theirs}
    shared = [sample for sample in ours if sample.configuration() in configurations]
    tested = subsample_models(shared if len(shared) >= MIN_SAMPLES else ours)
    tested_models = {sample.model for sample in tested}
    # Large sets are cut to the tested models, since a subsample of their own may hold none of these.
    training_sets = [
        [sample for sample in samples if sample.model in tested_models] or list(samples)
        for samples in map(subsample_models, (ours, theirs))
    ]
    folds = group_folds([sample.family for sample in tested], _FOLDS)
    tests = [[tested[i] for i in np.flatnonzero(folds == fold)] for fold in np.unique(folds)]
    # Threads suffice, because boosting releases the GIL.
    with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(max_workers=2) as pool:
        both = [pool.map(_predict_unseen, repeat(samples), tests) for samples in training_sets]
        errors: list[tuple[float, float]] = []
        families: list[str] = []
        for test, ours_of_test, theirs_of_test in zip(tests, *both, strict=True):
            if ours_of_test is None or theirs_of_test is None:
                continue
            supported = np.flatnonzero(ours_of_test.supported & theirs_of_test.supported).tolist()
            truth = log_latency(test)
            pairs = (np.abs(np.expm1(found.logs - truth))[supported] for found in (ours_of_test, theirs_of_test))
            errors += zip(*(pair.tolist() for pair in pairs), strict=True)
            families += [test[i].family for i in supported]
    return PairedErrors(np.array(errors), families) if errors else None


def _predict_unseen(samples: Sequence[Sample], test: Sequence[Sample]) -> LatencyPrediction | None:
    """Predict the test samples by a model of all samples but their families; None where too few are left."""
    held_out = {sample.family for sample in test}
    train = [sample for sample in samples if sample.family not in held_out]
    return LatencyModel(train, rounds=ROUNDS).predict(test) if len(train) >= MIN_SAMPLES else None
