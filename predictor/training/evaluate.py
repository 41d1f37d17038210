"""Evaluation of the latency model on any samples: every split, against every baseline, in one run.

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
    """Predictions of one split's test samples, in natural logs of milliseconds."""

    split: str
    samples: tuple[Sample, ...]
    truth: Array
    predicted: Array
    half_width: Array
    """Half width of each interval; NaN where there was nothing to calibrate on."""
    supported: npt.NDArray[np.bool_]
    baselines: dict[str, Array]


def evaluate_splits(samples: Sequence[Sample], notify: Callable[[str], None]) -> list[EvaluationResult]:
    """Evaluate every split that these samples allow. Raises InvalidInput for too few samples."""
    _require_enough(samples)
    results = []
    for name, split in SPLITS.items():
        rounds = list(split(samples))
        if rounds:
            notify(f"{name}: {len(rounds)} rounds over {len(samples)} cases")
            results.append(_evaluate_split(name, samples, rounds))
    return results


def evaluate_train_test(
    train: Sequence[Sample], test: Sequence[Sample], notify: Callable[[str], None]
) -> EvaluationResult:
    """Train on one set of samples and test on another, as training and service do.

    Intervals are calibrated on the training set alone, by the regime of each test sample. Raises InvalidInput for too
    few training samples or an empty test set.
    """
    _require_enough(train)
    if not test:
        raise InvalidInput("The test set holds no usable figure whose model's cost and device are known.")
    predictor, _, _ = fit_predictor(
        {mode: [c for c in train if c.mode == mode] for mode in sorted({c.mode for c in train})}, [], notify
    )
    predictions = predictor.predict(test)
    intervals = [prediction.latency_ms or Interval(p50=math.nan) for prediction in predictions]
    predicted = np.log([interval.p50 for interval in intervals])
    highs = np.array([math.nan if interval.high is None else interval.high for interval in intervals])
    return EvaluationResult(
        split="train and test",
        samples=tuple(test),
        truth=log_latency(test),
        predicted=predicted,
        half_width=np.log(highs) - predicted,
        supported=np.array([prediction.supported for prediction in predictions], dtype=bool),
        baselines={name: run(train, test) for name, run in BASELINES.items()},
    )


def evaluation_metrics(result: EvaluationResult) -> dict[str, Any]:
    """Return the metrics of one split; `supported` is the share of supported samples."""
    error = _relative_error(result.predicted, result.truth)
    supported = result.supported
    limits = np.isfinite(result.half_width) & supported
    inside = np.abs(result.predicted - result.truth) <= result.half_width
    return {
        "split": result.split,
        "cases": len(result.samples),
        **_error_metrics(result.predicted, result),
        "median_ape_supported": float(np.median(error[supported])) if supported.any() else None,
        "supported": float(supported.mean()),
        "coverage": float(inside[limits].mean()) if limits.any() else None,
        "interval_high_over_low": float(np.median(np.exp(2 * result.half_width[limits]))) if limits.any() else None,
        "median_ape_by_device": _aggregate_by([sample.device for sample in result.samples], error),
        "coverage_by_device": _aggregate_by(
            list(np.array([c.device for c in result.samples])[limits]), inside[limits], np.mean
        ),
        "median_ape_by_family": _aggregate_by([sample.family for sample in result.samples], error),
        "baselines": {name: _error_metrics(logs, result) for name, logs in result.baselines.items()},
    }


def _error_metrics(logs: Array, result: EvaluationResult) -> dict[str, Any]:
    error = _relative_error(logs, result.truth)
    return {
        "median_ape": float(np.median(error)),
        "mean_ape": float(np.mean(error)),
        "kendall_tau": _mean_kendall_tau(result.samples, logs, result.truth),
        "top1_regret": _mean_top1_regret(result.samples, logs, result.truth),
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
        train_samples, test_samples = [samples[i] for i in train.tolist()], [samples[i] for i in test.tolist()]
        prediction = LatencyModel(train_samples).predict(test_samples)
        predicted[test], supported[test], turn[test] = prediction.logs, prediction.supported, number
        for baseline, run in BASELINES.items():
            baselines[baseline][test] = run(train_samples, test_samples)
    tested = np.flatnonzero(turn >= 0).tolist()
    tested_samples = [samples[i] for i in tested]
    errors = np.abs(predicted - logs)[tested]
    return EvaluationResult(
        split=name,
        samples=tuple(tested_samples),
        truth=logs[tested],
        predicted=predicted[tested],
        half_width=_half_widths(errors, turn[tested], supported[tested], name, tested_samples),
        supported=supported[tested],
        baselines={baseline: values[tested] for baseline, values in baselines.items()},
    )


def _half_widths(
    errors: Array, turn: npt.NDArray[np.integer], supported: npt.NDArray[np.bool_], name: str, samples: Sequence[Sample]
) -> Array:
    """Return cross-fitted conformal half widths: each round's from the errors of the other rounds.

    For new devices it is the largest of the other devices' own quantiles, because the errors of one device say little
    of the next.
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
    """Return Kendall's tau of the rates within each device, averaged over samples; None where undefined."""
    batch = np.log([sample.batch_size for sample in samples])
    rows: dict[str, list[int]] = defaultdict(list)
    for i, sample in enumerate(samples):
        rows[sample.device].append(i)
    taus = [
        (len(at), kendalltau((logs - batch)[at], (truth - batch)[at]).statistic) for at in rows.values() if len(at) > 1
    ]
    taus = [(count, tau) for count, tau in taus if np.isfinite(tau)]
    return float(np.average([tau for _, tau in taus], weights=[count for count, _ in taus])) if taus else None


def _mean_top1_regret(samples: Sequence[Sample], logs: Array, truth: Array) -> float | None:
    """Return how much longer an item takes at the predicted best setting than at the true best, as a fraction.

    It is the mean over workloads that were tested in several settings; None where there are none.
    """
    batch = np.log([sample.batch_size for sample in samples])
    rows: dict[Any, list[int]] = defaultdict(list)
    for i, sample in enumerate(samples):
        rows[sample.workload_key].append(i)
    regrets = []
    for at in rows.values():
        if len({(samples[i].device, samples[i].compiler, samples[i].layout, samples[i].backend) for i in at}) > 1:
            predicted, true = (logs - batch)[at], (truth - batch)[at]
            regrets.append(float(np.expm1(true[predicted.argmin()] - true.min())))
    return float(np.mean(regrets)) if regrets else None


def _aggregate_by(names: Sequence[str], values: Any, aggregate: Callable[[Any], Any] = np.median) -> dict[str, float]:
    labels = np.array(names)
    return {str(name): float(aggregate(np.asarray(values)[labels == name])) for name in np.unique(labels)}


def _require_enough(samples: Sequence[Sample]) -> None:
    families = {sample.family for sample in samples}
    if len(samples) < _MIN_SAMPLES or len(families) < 3:
        raise InvalidInput(
            f"{len(samples)} usable figures of {len(families)} model families are too few to evaluate: at least "
            f"{_MIN_SAMPLES} of 3 are needed, with known devices and models whose cost is stated."
        )
