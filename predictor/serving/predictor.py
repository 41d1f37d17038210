"""The serving predictor: times of a model under a load by a formula, corrected by trees and measured loads near it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path

import numpy as np
from threadpoolctl import ThreadpoolController

from accel_platform.hardware.catalog import DeviceSpec, find_spec
from predictor.calibration.conformal import Calibration
from predictor.data.fast_path import require_slow_path
from predictor.data.packed_json import read_packed, write_packed
from predictor.schemas.responses import Interval
from predictor.serving.device_order import Pairs, between, in_order, no_better, rates_of
from predictor.serving.disaggregated import first_parts, parts_of
from predictor.serving.disaggregated import shipped_model as disaggregated_model
from predictor.serving.engines import MEASURED_BY_REQUESTS
from predictor.serving.fold_trees import FoldTrees, shrinkage
from predictor.serving.loads import Deployment, Load
from predictor.serving.measured_loads import MeasuredLoad
from predictor.serving.neighbors import DEVICE, Names, Neighbors, from_document, points_of, to_document
from predictor.serving.queueing import Pace
from predictor.serving.step_times import fit_step_times, step_parts, step_times
from predictor.serving.work import MOST_COMPUTED, Array, Work, limited_ms, work_of

SHIPPED = Path(__file__).with_name("fitted.json.xz")
_UNMEASURED = "unmeasured"
"""In the place of an engine's version where a model was not measured."""
_LEAST_LOADS = 100
"""Fewest measured loads of a device that others are put in order with: the GB200's 22 contradict each other."""
_LIMIT = 5.0
"""Bound of the log of users over the number that fits: beyond it, more or less room makes no difference."""


@dataclass(frozen=True)
class ServingTimes:
    """Times of one user's request under a load, each with its limits."""

    first_token_ms: Interval
    output_token_ms: Interval
    """Time per token after the first, in ms."""
    engine_version: str | None = None
    """Version of the engine that the times are for; None where none is known."""
    prompts_busy: float | None = None
    """Share of the time for which the workers for prompts are busy; above 1 they cannot keep up. None without any."""


@dataclass(frozen=True)
class LoadTimes:
    """Predicted times, with a row per load."""

    token_ms: Array
    """Time per output token after the first, in ms."""
    first_ms: Array
    deviations: Array
    """Standard deviations of the logs of both times, a column each."""
    least_token_ms: Array
    """Time of a token at published rates, in ms, with as many requests at once as fit."""
    least_first_ms: Array
    """Least time to the first token, in ms: all users' requests at `MOST_COMPUTED`, less the further tokens."""


@dataclass(frozen=True)
class ServingModel:
    """The fitted formula, trees on its log residuals, and a Gaussian process on the residuals of both."""

    coefficients: dict[str, float]
    trees: FoldTrees
    tree_shares: tuple[float, ...]
    """Factor of `shrinkage` on the trees' predictions for load groups that they did not see, one for each time."""
    neighbors: Neighbors

    def predict(self, cells: Sequence[tuple[Deployment, Load]]) -> LoadTimes:
        """Return the times of each deployment under its load, no shorter than those of a better device."""
        work = work_of(cells)
        logs, deviations = self._log_times(cells, work)
        by_requests = [i for i, cell in enumerate(cells) if _timed_by_requests(*cell)]
        if by_requests:
            chosen = [cells[i] for i in by_requests]
            logs[by_requests] = self._in_device_order(chosen, work.waiting[by_requests], logs[by_requests])
        token, first = np.exp(logs).T
        # Corrections learned on devices of much bandwidth would make one of little bandwidth faster than it can be. And
        # each time is corrected by itself: their sum may be less than devices need for many users' long prompts.
        token_ms, first_ms = limited_ms(work, token, first)
        least_first = np.maximum(1e3 * work.requests_s(MOST_COMPUTED) - (work.output_tokens - 1) * token_ms, 0.0)
        return LoadTimes(token_ms, first_ms, deviations, 1e3 * work.step_light_s, np.minimum(least_first, first_ms))

    def _log_times(self, cells: Sequence[tuple[Deployment, Load]], work: Work) -> tuple[Array, Array]:
        """Return the logs of both times in ms as learned for each deployment alone, and their standard deviations.

        The trees alone answer for batches, and for engines whose loads were not measured request by request.
        """
        token, first = step_times(work, self.coefficients)
        x = _features(work, token, first)
        carried, deviations = self.neighbors.predict(points_of(cells, x))
        by_requests = np.array([_timed_by_requests(*cell) for cell in cells])
        # The Gaussian process adds the offset of a load group, so trees that saw the group would count it twice.
        by_trees = self.trees.predict(x, [deployment.load_group for deployment, _ in cells], unseen=by_requests)
        residuals = np.where(by_requests[:, None], by_trees * self.tree_shares + carried, by_trees)
        return np.log(np.column_stack([token, first])) + residuals, deviations

    def _in_device_order(self, cells: Sequence[tuple[Deployment, Load]], waiting: Array, logs: Array) -> Array:
        """Return the log times of loads, moved to where a better device is no slower.

        The measured devices are put in order for each load, whichever of them is asked about. Any other device lies
        between those that are better and those that are no better. Two devices on which the model was measured with one
        version of the engine may stay as they are.
        """
        devices = self._reference_devices
        anywhere = [(replace(deployment, device=devices[0]), load) for deployment, load in cells]
        place = {cell: i for i, cell in enumerate(dict.fromkeys(anywhere))}
        by_device = [
            self._known_on([(replace(deployment, device=device), load) for deployment, load in place])
            for device in devices
        ]
        known, weights, rates, fits, versions = (np.stack(of, axis=1) for of in zip(*by_device, strict=True))
        # Versions that nobody stated may be different ones.
        stated = (versions != _UNMEASURED) & (versions != "")
        same_version = (versions[:, :, None] == versions[:, None, :]) & stated[:, :, None]
        order = no_better(rates[:, :, None], rates[:, None, :]) & ~same_version
        rows = np.array([place[cell] for cell in anywhere])
        own_rates, own_fits = rates_of([deployment for deployment, _ in cells]), waiting <= 1
        worse, better = no_better(rates[rows], own_rates[:, None]), no_better(own_rates[:, None], rates[rows])
        names = np.array([device.name for device in devices])
        here = np.array([deployment.device.name for deployment, _ in cells])[:, None] == names
        moved = []
        # Where users wait on the lesser device, fewer of them run at once there, which makes its steps shorter.
        for column, order_fits, of_worse, of_better in (
            (0, order & fits[:, :, None], worse & fits[rows], better & own_fits[:, None]),
            (1, order, worse, better),
        ):
            others = in_order(known[:, :, column], weights[:, :, column], order_fits)[rows]
            elsewhere = between(logs[:, column], others, of_worse, of_better)
            moved.append(np.where(here.any(axis=1), np.sum(np.where(here, others, 0.0), axis=1), elsewhere))
        return np.column_stack(moved)

    def _known_on(self, cells: Sequence[tuple[Deployment, Load]]) -> tuple[Array, Array, Array, Pairs, Names]:
        """Return what is known of loads on a measured device, each as an array by load.

        They are log times, their weights, the device's rates, whether all users fit, and the version of the engine that
        the model was measured with.
        """
        work = work_of(cells)
        logs, deviations = self._log_times(cells, work)
        versions = [self.neighbors.measured_version(deployment) for deployment, _ in cells]
        named = np.array([_UNMEASURED if version is None else version for version in versions])
        return logs, deviations**-2, rates_of([deployment for deployment, _ in cells]), work.waiting <= 1, named

    @cached_property
    def _reference_devices(self) -> list[DeviceSpec]:
        """Devices on which many loads were measured request by request."""
        counts = Counter(self.neighbors.points.names[:, DEVICE].tolist())
        names = sorted(name for name, count in counts.items() if count >= _LEAST_LOADS)
        specs = [spec for name in names if (spec := find_spec(name)) is not None]
        return [spec for spec in specs if spec.vendor in MEASURED_BY_REQUESTS]


def _timed_by_requests(deployment: Deployment, load: Load) -> bool:
    return deployment.measured_by_requests and not load.batch


@dataclass(frozen=True)
class ServingPredictor:
    """A serving model with its calibrated errors on unseen devices, models and layouts."""

    model: ServingModel
    token_error: Calibration
    """Calibration whose half width is in standard deviations of the log."""
    first_error: Calibration
    """Calibration whose half width is in standard deviations of the log."""
    batch_error: Calibration
    """Calibration on batches, which stand for loads where no load was measured request by request."""

    def predict(self, cells: Sequence[tuple[Deployment, Load]]) -> list[ServingTimes]:
        """Return the times of each deployment under its load."""
        times: dict[int, ServingTimes] = {}
        # In one thread, because more wait for each other on a busy host: an answer takes half the CPU time.
        with _linear_algebra().limit(limits=1, user_api="blas"):
            for aggregated, predict in ((True, self._aggregated), (False, self._disaggregated)):
                rows = [i for i, (deployment, _) in enumerate(cells) if (deployment.prompts is None) is aggregated]
                times |= zip(rows, predict([cells[i] for i in rows]) if rows else (), strict=True)
        return [times[i] for i in range(len(cells))]

    def _disaggregated(self, cells: Sequence[tuple[Deployment, Load]]) -> list[ServingTimes]:
        model = disaggregated_model()
        token, first = model.token_error, model.first_error
        return [
            ServingTimes(
                _interval(first_ms, first.half_width, first.level),
                _interval(token_ms, token.half_width, token.level),
                prompts_busy=float(busy),
            )
            for token_ms, first_ms, busy in zip(*model.predict(cells, self.model.coefficients), strict=True)
        ]

    def _aggregated(self, cells: Sequence[tuple[Deployment, Load]]) -> list[ServingTimes]:
        times = self.model.predict(cells)
        return [self._with_intervals(deployment, times, row) for row, (deployment, _) in enumerate(cells)]

    def _with_intervals(self, deployment: Deployment, times: LoadTimes, row: int) -> ServingTimes:
        """Return the times of a row as intervals, of level None where no measured load tells how often they hold."""
        token_width, first_width = (
            error.half_width * deviation
            for error, deviation in zip((self.token_error, self.first_error), times.deviations[row], strict=True)
        )
        token_level: float | None = self.token_error.level
        first_level: float | None = self.first_error.level
        version = deployment.engine_version or self.model.neighbors.newest_version(deployment)
        if not deployment.measured_by_requests:
            # The errors of whole batches stand for those of loads, and no first token was timed.
            batch = self.batch_error
            token_width, first_width = max(token_width, batch.half_width), max(first_width, batch.half_width)
            token_level, first_level, version = min(self.token_error.level, batch.level), None, None
        elif deployment.stages > 1:
            token_level = first_level = None  # because no pipeline was measured
        return ServingTimes(
            _interval(times.first_ms[row], first_width, first_level, times.least_first_ms[row]),
            _interval(times.token_ms[row], token_width, token_level, times.least_token_ms[row]),
            version,
        )

    def pace(self, deployment: Deployment, load: Load, most_running: int, times: ServingTimes, copies: int) -> Pace:
        """Return the pace of the deployment for the simulation, with up to `most_running` requests at once.

        Steps and prompts are those of the formula, scaled so that this load takes its typical `times`. `copies` that
        share workers for prompts are paced together, because their prompts wait for each other.
        """
        if deployment.prompts is not None:
            return self._disaggregated_pace(deployment, load, most_running, times, copies)
        work, coefficients = work_of([(deployment, load)]), self.model.coefficients
        ([token_ms], [first_ms]), parts = step_times(work, coefficients), step_parts(work, coefficients)
        token_factor, first_factor = times.output_token_ms.p50 / token_ms, times.first_token_ms.p50 / first_ms
        return Pace(
            step_s=self._steps_s(deployment, load, most_running, token_factor),
            prompt_s=float(first_factor * parts.alone_s[0]),
            stall_s=float(token_factor * parts.stall_s[0]) / deployment.stages,
            room_tokens=most_running * (load.input_tokens + load.output_tokens),
        )

    def _disaggregated_pace(
        self, deployment: Deployment, load: Load, most_running: int, times: ServingTimes, copies: int
    ) -> Pace:
        parts = parts_of([(deployment, load)], self.model.coefficients)
        answer_s = np.array([times.output_token_ms.p50 * load.output_tokens / 1e3])
        first = first_parts(parts, answer_s, disaggregated_model().times.first_coefficients)
        factor = times.output_token_ms.p50 / 1e3 / float(parts.decode_s[0])
        steps_s = self._steps_s(deployment, load, most_running, factor)
        return Pace(
            # Requests are spread evenly over the copies.
            step_s=np.repeat(steps_s, copies).tolist(),
            prompt_s=float(first.alone_s[0]),
            stall_s=float(first.queue_s[0]) / load.users / copies,
            room_tokens=copies * most_running * (load.input_tokens + load.output_tokens),
            prompts_apart=True,
        )

    def _steps_s(self, deployment: Deployment, load: Load, most_running: int, factor: float) -> list[float]:
        """Return the seconds of a step of 1, 2, ... running requests, times a factor."""
        # Worked out for 1, 2, 4, ... requests; between these steps are nearly straight.
        counts = np.unique(np.append(2.0 ** np.arange(math.log2(most_running)), most_running))
        work = work_of([(deployment, replace(load, users=n)) for n in counts])
        steps = step_parts(work, self.model.coefficients).decode_s
        found: list[float] = (factor * np.interp(np.arange(1, most_running + 1), counts, steps)).tolist()
        return found


def fit(rows: Sequence[MeasuredLoad], weights: Array) -> ServingModel:
    """Fit the model to measured loads, with a weight per row."""
    cells = [(row.deployment, row.load) for row in rows]
    work, token_ms, first_ms = work_of(cells), *times_of(rows)
    coefficients = fit_step_times(work, token_ms, first_ms, weights)
    token, first = step_times(work, coefficients)
    x = _features(work, token, first)
    residuals = np.log(np.column_stack([token_ms / token, first_ms / first]))
    trees, by_trees = FoldTrees.fit(x, residuals, weights, [row.deployment.load_group for row in rows])
    timed = np.flatnonzero(np.isfinite(first_ms))
    points, to_explain, explained = points_of([cells[i] for i in timed], x[timed]), residuals[timed], by_trees[timed]
    shares = tuple(shrinkage(*columns, weights[timed]) for columns in zip(explained.T, to_explain.T, strict=True))
    neighbors = Neighbors.fit(points, to_explain - explained * shares, weights[timed])
    return ServingModel(coefficients, trees, shares, neighbors)


def times_of(rows: Sequence[MeasuredLoad]) -> tuple[Array, Array]:
    """Return the measured ms per output token and to the first token; NaN where nobody timed the first."""
    return np.array([row.token_ms for row in rows]), np.array([row.first_with_slot_ms for row in rows])


def _features(work: Work, token_ms: Array, first_ms: Array) -> Array:
    """Return the features of the trees, a row per load.

    They are ratios and logs, because an unmeasured device has other rates than the measured ones, but similar ratios.
    """
    prompt_ms = 1e3 * work.prompt_compute_s
    return np.column_stack(
        [
            np.log(work.running),
            np.clip(np.log(work.waiting), -_LIMIT, _LIMIT),
            np.log(work.step_compute_s / (work.weights_s + work.cache_s)),
            np.log((work.cache_s + 1e-9) / work.weights_s),
            np.log(work.layers * 1e-2 / token_ms),
            np.log(prompt_ms * work.running / work.output_tokens / token_ms),
            np.log(work.layers * 1e-2 / prompt_ms),
            np.log(work.input_tokens),
            np.log(work.output_tokens),
            np.log(work.input_tokens / work.output_tokens),
            np.log(work.devices),
            np.log(work.copies),
            np.log(work.sparsity),
            work.weight_bytes,
            np.log(work.input_tokens / work.devices),
            np.log(token_ms / prompt_ms),
            np.log(first_ms / prompt_ms),
            work.batch,
            *work.engine,
            *work.vendor,
        ]
    )


def _interval(milliseconds: float, half_width: float, level: float | None, least: float = 0.0) -> Interval:
    factor = math.exp(half_width)
    return Interval(
        p50=float(milliseconds),
        low=max(float(milliseconds) / factor, float(least)),
        high=float(milliseconds) * factor,
        level=level,
    )


@cache
def _linear_algebra() -> ThreadpoolController:
    """Return the controller of NumPy's and SciPy's threads; finding their libraries takes milliseconds."""
    return ThreadpoolController()


@cache
def shipped_predictor() -> ServingPredictor:
    """Return the predictor that comes with the package."""
    require_slow_path()
    return load(SHIPPED)


def save(predictor: ServingPredictor, path: Path) -> None:
    """Write a predictor as compressed JSON; equal predictors give equal bytes."""
    content = {
        "coefficients": predictor.model.coefficients,
        "trees": predictor.model.trees.to_document(),
        "tree_shares": predictor.model.tree_shares,
        "neighbors": to_document(predictor.model.neighbors),
        "token_error": predictor.token_error.model_dump(),
        "first_error": predictor.first_error.model_dump(),
        "batch_error": predictor.batch_error.model_dump(),
    }
    write_packed(content, path)


def load(path: Path) -> ServingPredictor:
    """Return a predictor that `save` wrote."""
    content = read_packed(path)
    return ServingPredictor(
        ServingModel(
            content["coefficients"],
            FoldTrees.from_document(content["trees"]),
            tuple(content["tree_shares"]),
            from_document(content["neighbors"]),
        ),
        Calibration(**content["token_error"]),
        Calibration(**content["first_error"]),
        Calibration(**content["batch_error"]),
    )
