"""Fit and evaluation of the serving predictor, on shipped measured loads.

`python -m predictor.serving.fit` writes the predictors that ship with the package, of aggregated and of disaggregated
serving. Run it when the pack, the formula, the features or the spec sheet change.
"""

from __future__ import annotations

import multiprocessing
import signal
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits

from accel_platform.signals import interrupt_with_parent
from predictor.calibration.conformal import Calibration, calibrate
from predictor.serving.disaggregated import SHIPPED as SHIPPED_DISAGGREGATED
from predictor.serving.disaggregated import DisaggregatedModel, fit_times, parts_of
from predictor.serving.disaggregated import save as save_disaggregated
from predictor.serving.disaggregated_loads import load_disaggregated
from predictor.serving.measured_loads import MeasuredLoad, groups_of, load_measured_loads
from predictor.serving.predictor import SHIPPED, LoadTimes, ServingPredictor, fit, save, times_of
from predictor.serving.step_times import Coefficients
from predictor.serving.work import Array

LEVEL = 0.8
"""Share of rows of an unseen device, model or layout that intervals aim to hold."""
_LEAST_ROWS = 20
"""Least rows of a group that intervals are calibrated on, because all groups weigh the same and fewer rows scatter."""
_LEFT_OUT = ("device", "model", "parallelism")
"""Groups that intervals are calibrated on; for whole batches the first two, because layouts tell nothing of them."""


def row_weights(rows: Sequence[MeasuredLoad]) -> Array:
    """Return a weight per row, 1 / sqrt(rows of its load group), divided by the mean over all rows."""
    load_groups = [row.deployment.load_group for row in rows]
    sizes = Counter(load_groups)
    weights = np.array([sizes[load_group] ** -0.5 for load_group in load_groups])
    return np.asarray(weights / weights.mean())


@dataclass(frozen=True)
class LeftOut:
    """Errors on loads whose group was left out, with a row per load."""

    token: Array
    """Logs of predicted over measured times per output token."""
    first: Array
    """Logs of predicted over measured times to the first token; NaN where nobody timed it."""
    deviations: Array
    """Standard deviations that the prediction stated for both logs, a column each."""


def leave_out(rows: Sequence[MeasuredLoad], groups: Sequence[str], *, versions: bool = True) -> LeftOut:
    """Return the errors on each group of a model that was fitted to the other groups.

    Without `versions` the held-out deployments name no version of the engine, so that the newest is taken.
    """
    names = np.array(groups)
    token_ms, first_ms = times_of(rows)
    found = LeftOut(np.zeros(len(rows)), np.zeros(len(rows)), np.zeros((len(rows), 2)))
    outs = [names == name for name in np.unique(names)]
    # Processes, because most of a fit holds the interpreter's lock; new ones, because OpenMP's threads outlive no fork.
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(mp_context=spawn, initializer=_end_with_parent) as pool:
        for out, times in zip(outs, pool.map(partial(_predict_left_out, rows, versions), outs), strict=True):
            found.token[out] = np.log(times.token_ms / token_ms[out])
            found.first[out] = np.log(times.first_ms / first_ms[out])
            found.deviations[out] = times.deviations
    return found


def _end_with_parent() -> None:
    """Let SIGINT end this process at once: Python's handler raises, and the pool would go on to its next task."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    interrupt_with_parent()


def _predict_left_out(rows: Sequence[MeasuredLoad], versions: bool, out: npt.NDArray[np.bool_]) -> LoadTimes:
    """Return the times of the rows that are left out, predicted by a model of the others."""
    with threadpool_limits(1):
        rest, left = ([row for row, here in zip(rows, out, strict=True) if here == wanted] for wanted in (False, True))
        cells = [
            (row.deployment if versions else replace(row.deployment, engine_version=None), row.load) for row in left
        ]
        return fit(rest, row_weights(rest)).predict(cells)


def fit_shipped(rows: Sequence[MeasuredLoad]) -> ServingPredictor:
    """Return the predictor fitted to all rows, with its intervals from the errors on groups that were left out."""
    groups = {name: of for name, of in groups_of(rows).items() if name in _LEFT_OUT}
    left_out = {name: leave_out(rows, of) for name, of in groups.items()}
    timed = np.isfinite([row.first_with_slot_ms for row in rows])
    batch = np.array([row.load.batch for row in rows])

    def calibration(errors: Callable[[LeftOut], Array], here: Array, names: Sequence[str]) -> Calibration:
        values = np.concatenate([np.abs(errors(left_out[name]))[here] for name in names])
        labels = [f"{name} {group}" for name in names for group in np.array(groups[name])[here]]
        sizes = Counter(labels)
        enough = [i for i, label in enumerate(labels) if sizes[label] >= _LEAST_ROWS]
        return calibrate(values[enough], [labels[i] for i in enough], level=LEVEL)

    return ServingPredictor(
        fit(rows, row_weights(rows)),
        token_error=calibration(lambda found: found.token / found.deviations[:, 0], timed, _LEFT_OUT),
        first_error=calibration(lambda found: found.first / found.deviations[:, 1], timed, _LEFT_OUT),
        batch_error=calibration(lambda found: found.token, batch, _LEFT_OUT[:2]),
    )


def leave_out_disaggregated(
    rows: Sequence[MeasuredLoad], groups: Sequence[str], coefficients: Callable[[str], Coefficients]
) -> LeftOut:
    """Return the errors on each group of disaggregated loads of a model that was fitted to the other groups.

    `coefficients` returns, for the name of a group, the coefficients of the formula from aggregated loads that have
    nothing in common with the group.
    """
    names = np.array(groups)
    token_ms, first_ms = times_of(rows)
    found = LeftOut(np.zeros(len(rows)), np.zeros(len(rows)), np.ones((len(rows), 2)))
    for name in np.unique(names):
        out, formula = names == name, coefficients(str(name))
        rest, left = ([row for row, here in zip(rows, out, strict=True) if here == wanted] for wanted in (False, True))
        times = fit_times(rest, parts_of([(row.deployment, row.load) for row in rest], formula), row_weights(rest))
        token, first, _ = times.predict(parts_of([(row.deployment, row.load) for row in left], formula))
        found.token[out], found.first[out] = np.log(token / token_ms[out]), np.log(first / first_ms[out])
    return found


def fit_disaggregated(rows: Sequence[MeasuredLoad], coefficients: Coefficients) -> DisaggregatedModel:
    """Return the model of disaggregated serving, with its intervals from the errors on load groups left out."""
    load_groups = [row.deployment.load_group for row in rows]
    left_out = leave_out_disaggregated(rows, load_groups, lambda _: coefficients)
    parts = parts_of([(row.deployment, row.load) for row in rows], coefficients)
    return DisaggregatedModel(
        fit_times(rows, parts, row_weights(rows)),
        token_error=calibrate(np.abs(left_out.token), load_groups, level=LEVEL),
        first_error=calibrate(np.abs(left_out.first), load_groups, level=LEVEL),
    )


if __name__ == "__main__":
    shipped = fit_shipped(load_measured_loads())
    save(shipped, SHIPPED)
    disaggregated = fit_disaggregated(load_disaggregated(), shipped.model.coefficients)
    save_disaggregated(disaggregated, SHIPPED_DISAGGREGATED)
    for fitted in (shipped, disaggregated):
        sys.stderr.write(f"token: {fitted.token_error}\nfirst: {fitted.first_error}\n")
    sys.stderr.write(f"batch: {shipped.batch_error}\n")
