"""Evaluation of the latency model on any samples: every split, against every baseline, in one run.

Errors are of the rate (items per second): |predicted - true| / true. A latency's error is the same to first order.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.stats import kendalltau

from accel_platform.errors import InvalidInput
from accel_platform.table_io.values import count_of
from predictor.calibration.cv_splits import SPLITS, Indices
from predictor.calibration.failure_model import FailureModel
from predictor.calibration.predictor import Predictor
from predictor.data.samples import Sample
from predictor.models.baselines import BASELINES
from predictor.models.latency_model import MIN_DEVICE_SAMPLES, log_latency
from predictor.schemas.responses import Interval
from predictor.training.train import fit_modes

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class EvaluationResult:
    """Predictions of one split's test samples, in natural logs of milliseconds."""

    split: str
    samples: tuple[Sample, ...]
    truth: Array
    predicted: Array
    half_width: Array
    """Half width of each interval as served; NaN where there was nothing to calibrate on."""
    level: Array
    """Share that each interval promises to hold; NaN without one."""
    supported: npt.NDArray[np.bool_]
    baselines: dict[str, Array]


def evaluate_splits(samples: Sequence[Sample], notify: Callable[[str], None]) -> list[EvaluationResult]:
    """Evaluate every split that these samples allow. Raises InvalidInput for too few samples."""
    _require_enough(samples)
    results = []
    for name, split in SPLITS.items():
        rounds = list(split(samples))
        if rounds:
            notify(f"{name}: {count_of(len(rounds), 'round')} over {count_of(len(samples), 'figure')}")
            results.append(_evaluate_split(name, samples, rounds, notify))
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
    served = _predict_as_served(train, test, notify)
    return EvaluationResult(
        split="train and test",
        samples=tuple(test),
        truth=log_latency(test),
        **served._asdict(),
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
        "coverage_aimed_at": float(result.level[limits].mean()) if limits.any() else None,
        "interval_high_over_low": float(np.median(np.exp(2 * result.half_width[limits]))) if limits.any() else None,
        "median_ape_by_device": _aggregate_by([sample.device for sample in result.samples], error),
        "coverage_by_device": _aggregate_by(
            list(np.array([c.device for c in result.samples])[limits]), inside[limits], np.mean
        ),
        "coverage_by_family": _aggregate_by(
            list(np.array([c.family for c in result.samples])[limits]), inside[limits], np.mean
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
    name: str, samples: Sequence[Sample], rounds: Sequence[tuple[Indices, Indices]], notify: Callable[[str], None]
) -> EvaluationResult:
    logs = log_latency(samples)
    predicted = np.full(len(samples), np.nan)
    half_width, level = np.full(len(samples), np.nan), np.full(len(samples), np.nan)
    supported = np.zeros(len(samples), dtype=bool)
    baselines = {baseline: np.full(len(samples), np.nan) for baseline in BASELINES}
    is_tested = np.zeros(len(samples), dtype=bool)
    for number, (train, test) in enumerate(rounds):
        train_samples, test_samples = [samples[i] for i in train.tolist()], [samples[i] for i in test.tolist()]
        served = _predict_as_served(train_samples, test_samples, _silent)
        predicted[test], half_width[test], level[test], supported[test] = served
        is_tested[test] = True
        for baseline, run in BASELINES.items():
            baselines[baseline][test] = run(train_samples, test_samples)
        notify(f"{name}: round {number + 1} of {len(rounds)}")
    tested = np.flatnonzero(is_tested).tolist()
    return EvaluationResult(
        split=name,
        samples=tuple(samples[i] for i in tested),
        truth=logs[tested],
        predicted=predicted[tested],
        half_width=half_width[tested],
        level=level[tested],
        supported=supported[tested],
        baselines={baseline: values[tested] for baseline, values in baselines.items()},
    )


class _ServedPredictions(NamedTuple):
    """Answers of a service to test samples, with the fields of an `EvaluationResult`."""

    predicted: Array
    half_width: Array
    level: Array
    supported: npt.NDArray[np.bool_]


def _predict_as_served(
    train: Sequence[Sample], test: Sequence[Sample], notify: Callable[[str], None]
) -> _ServedPredictions:
    """Return the answers of a service trained on these samples.

    Half widths are calibrated on the training samples alone, by the regime of each test sample. They are NaN where
    there was nothing to calibrate on; such a sample counts as unsupported.
    """
    modes, _, _ = fit_modes(
        {mode: [s for s in train if s.mode == mode] for mode in sorted({s.mode for s in train})}, notify
    )
    predictor = Predictor("", "", len(train), (), modes, None, FailureModel.fit([], [], None))
    predictions = predictor.predict(test)
    intervals = [prediction.latency_ms or Interval(p50=math.nan) for prediction in predictions]
    predicted = np.log([interval.p50 for interval in intervals])
    highs = np.array([math.nan if interval.high is None else interval.high for interval in intervals])
    supported = np.array([prediction.supported for prediction in predictions], dtype=bool)
    levels = np.array([math.nan if interval.level is None else interval.level for interval in intervals])
    return _ServedPredictions(predicted, np.log(highs) - predicted, levels, supported)


def _silent(_: str) -> None:
    """Drop a progress message of one round, because the rounds of a split are reported as a whole."""


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
    if len(samples) < MIN_DEVICE_SAMPLES or len(families) < 3:
        raise InvalidInput(
            f"{len(samples)} usable figures of {len(families)} model families are too few to evaluate: at least "
            f"{MIN_DEVICE_SAMPLES} of 3 are needed, with known devices and models whose cost is stated."
        )
