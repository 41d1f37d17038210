"""How good the learner is, on cases of anybody's: every split, against every baseline, in one run. Nothing is saved.

Errors are of the rate (items per second): |predicted - true| / true. A latency's error is the same to first order.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import kendalltau

from accel_platform.errors import InvalidInput
from predictor.calibration.conformal import quantile, worst_group_quantile
from predictor.calibration.cv_splits import SPLITS, Indices
from predictor.data.samples import Sample
from predictor.models.baselines import BASELINES
from predictor.models.latency_model import MIN_DEVICE_SAMPLES, LatencyModel, log_latency
from predictor.schemas.responses import Interval
from predictor.training.train import fit_predictor

Array = npt.NDArray[np.float64]
_MIN_SAMPLES = MIN_DEVICE_SAMPLES
_NEW_DEVICE_SPLITS = ("unseen hardware", "unseen hardware + 10", "both unseen")


@dataclass(frozen=True)
class EvaluationResult:
    """Every case that a split asked about, in one order, in natural logs of milliseconds."""

    split: str
    samples: tuple[Sample, ...]
    truth: Array
    predicted: Array
    half_width: Array
    """Of the interval around the prediction; NaN where there was nothing to calibrate on."""
    supported: npt.NDArray[np.bool_]
    baselines: dict[str, Array]


def evaluate_splits(samples: Sequence[Sample], say: Callable[[str], None]) -> list[EvaluationResult]:
    """Every split that these cases allow. Raises InvalidInput where they are too few."""
    _require_enough(samples)
    found = []
    for name, split in SPLITS.items():
        rounds = list(split(samples))
        if rounds:
            say(f"{name}: {len(rounds)} rounds over {len(samples)} cases")
            found.append(_evaluate_split(name, samples, rounds))
    return found


def evaluate_train_test(
    train: Sequence[Sample], test: Sequence[Sample], say: Callable[[str], None]
) -> EvaluationResult:
    """Learn from one set of cases and be asked about another: as training does, and as the service answers.

    Intervals come from the first set alone, by what each test case lacks there. Raises InvalidInput where the first are
    too few or the second none.
    """
    _require_enough(train)
    if not test:
        raise InvalidInput("The test set holds no usable figure whose model's cost and device are known.")
    predictor, _, _ = fit_predictor(
        {mode: [c for c in train if c.mode == mode] for mode in sorted({c.mode for c in train})}, [], say
    )
    told = predictor.predict(test)
    figures = [j.latency_ms or Interval(p50=math.nan) for j in told]
    predicted = np.log([figure.p50 for figure in figures])
    highs = np.array([math.nan if figure.high is None else figure.high for figure in figures])
    return EvaluationResult(
        split="train and test",
        samples=tuple(test),
        truth=log_latency(test),
        predicted=predicted,
        half_width=np.log(highs) - predicted,
        supported=np.array([judgement.supported for judgement in told], dtype=bool),
        baselines={name: run(train, test) for name, run in BASELINES.items()},
    )


def evaluation_metrics(asked: EvaluationResult) -> dict[str, Any]:
    """The figures of one split; `supported` is the share of cases that the learner stands behind."""
    error = _relative_error(asked.predicted, asked.truth)
    behind = asked.supported
    limits = np.isfinite(asked.half_width) & behind
    inside = np.abs(asked.predicted - asked.truth) <= asked.half_width
    return {
        "split": asked.split,
        "cases": len(asked.samples),
        **_error_metrics(asked.predicted, asked),
        "median_ape_supported": float(np.median(error[behind])) if behind.any() else None,
        "supported": float(behind.mean()),
        "coverage": float(inside[limits].mean()) if limits.any() else None,
        "interval_high_over_low": float(np.median(np.exp(2 * asked.half_width[limits]))) if limits.any() else None,
        "median_ape_by_device": _aggregate_by([sample.device for sample in asked.samples], error),
        "coverage_by_device": _aggregate_by(
            list(np.array([c.device for c in asked.samples])[limits]), inside[limits], np.mean
        ),
        "median_ape_by_family": _aggregate_by([sample.family for sample in asked.samples], error),
        "baselines": {name: _error_metrics(logs, asked) for name, logs in asked.baselines.items()},
    }


def _error_metrics(logs: Array, asked: EvaluationResult) -> dict[str, Any]:
    error = _relative_error(logs, asked.truth)
    return {
        "median_ape": float(np.median(error)),
        "mean_ape": float(np.mean(error)),
        "kendall_tau": _mean_kendall_tau(asked.samples, logs, asked.truth),
        "top1_regret": _mean_top1_regret(asked.samples, logs, asked.truth),
    }


def _evaluate_split(
    name: str, samples: Sequence[Sample], rounds: Sequence[tuple[Indices, Indices]]
) -> EvaluationResult:
    logs = log_latency(samples)
    predicted = np.full(len(samples), np.nan)
    supported = np.zeros(len(samples), dtype=bool)
    baselines = {baseline: np.full(len(samples), np.nan) for baseline in BASELINES}
    turn = np.full(len(samples), -1)
    for number, (train, test) in enumerate(rounds):
        known, asked = [samples[i] for i in train.tolist()], [samples[i] for i in test.tolist()]
        told = LatencyModel(known).predict(asked)
        predicted[test], supported[test], turn[test] = told.logs, told.supported, number
        for baseline, run in BASELINES.items():
            baselines[baseline][test] = run(known, asked)
    at = np.flatnonzero(turn >= 0).tolist()
    return EvaluationResult(
        split=name,
        samples=tuple(samples[i] for i in at),
        truth=logs[at],
        predicted=predicted[at],
        half_width=_half_widths(np.abs(predicted - logs)[at], turn[at], supported[at], name, [samples[i] for i in at]),
        supported=supported[at],
        baselines={baseline: values[at] for baseline, values in baselines.items()},
    )


def _half_widths(
    errors: Array, turn: npt.NDArray[np.integer], supported: npt.NDArray[np.bool_], name: str, samples: Sequence[Sample]
) -> Array:
    """Conformal, cross-fitted: each round's interval from the errors of the other rounds, whose groups are as new.

    Where the device itself is new, the errors of one other device say little of the next: the largest over the other
    devices of their own quantiles is taken.
    """
    widths = np.full(len(errors), np.nan)
    new_device = name in _NEW_DEVICE_SPLITS
    group = np.unique([sample.device for sample in samples], return_inverse=True)[1] if new_device else turn
    for here in np.unique(group):
        others = (group != here) & supported
        if not others.any():
            continue
        if new_device:
            widths[group == here] = worst_group_quantile(errors[others], group[others])
        else:
            widths[group == here] = quantile(errors[others])
    return widths


def _relative_error(logs: Array, truth: Array) -> Array:
    return np.asarray(np.abs(np.expm1(truth - logs)))


def _mean_kendall_tau(samples: Sequence[Sample], logs: Array, truth: Array) -> float | None:
    """Kendall's tau of the rates per item within each device, averaged over cases."""
    batch = np.log([sample.batch_size for sample in samples])
    rows: dict[str, list[int]] = defaultdict(list)
    for i, sample in enumerate(samples):
        rows[sample.device].append(i)
    found = [
        (len(at), kendalltau((logs - batch)[at], (truth - batch)[at]).statistic) for at in rows.values() if len(at) > 1
    ]
    found = [(count, tau) for count, tau in found if np.isfinite(tau)]
    return float(np.average([tau for _, tau in found], weights=[n for n, _ in found])) if found else None


def _mean_top1_regret(samples: Sequence[Sample], logs: Array, truth: Array) -> float | None:
    """How much longer an item takes where the prediction sends it than where it were fastest: the mean over the works
    that were asked about on several devices or in several ways."""
    batch = np.log([sample.batch_size for sample in samples])
    rows: dict[Any, list[int]] = defaultdict(list)
    for i, sample in enumerate(samples):
        rows[sample.shape].append(i)
    lost = []
    for at in rows.values():
        if len({(samples[i].device, samples[i].compiler, samples[i].layout, samples[i].backend) for i in at}) > 1:
            seen, real = (logs - batch)[at], (truth - batch)[at]
            lost.append(float(np.expm1(real[seen.argmin()] - real.min())))
    return float(np.mean(lost)) if lost else None


def _aggregate_by(names: Sequence[str], values: Any, how: Callable[[Any], Any] = np.median) -> dict[str, float]:
    labels = np.array(names)
    return {str(name): float(how(np.asarray(values)[labels == name])) for name in np.unique(labels)}


def _require_enough(samples: Sequence[Sample]) -> None:
    families = {sample.family for sample in samples}
    if len(samples) < _MIN_SAMPLES or len(families) < 3:
        raise InvalidInput(
            f"{len(samples)} usable figures of {len(families)} model families are too few to judge anything: at least "
            f"{_MIN_SAMPLES} of 3 are needed, with known devices and models whose cost is stated."
        )
