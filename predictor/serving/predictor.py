"""The serving predictor: times of a served model under a load, the formula's corrected by trees, with intervals."""

from __future__ import annotations

import json
import lzma
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import lightgbm as lgb
import numpy as np

from predictor.calibration.conformal import Calibration
from predictor.data.fast_path import require_slow_path
from predictor.schemas.responses import Interval
from predictor.serving.loads import Deployment, Load
from predictor.serving.queueing import Pace
from predictor.serving.step_times import fit_step_times, step_parts, step_times
from predictor.serving.work import Array, Work, work_of

SHIPPED = Path(__file__).with_name("fitted.json.xz")
TREES: dict[str, Any] = {
    "objective": "l1", "n_estimators": 300, "learning_rate": 0.04, "num_leaves": 31, "min_child_samples": 30,
    "extra_trees": True, "subsample": 0.8, "subsample_freq": 1, "colsample_bytree": 0.5, "verbose": -1,
    "deterministic": True, "random_state": 0,
}  # fmt: skip
_LIMIT = 5.0
"""Logs of ratios beyond this are taken for it: a user in a thousandth of the room is as alone as one in a hundredth."""


@dataclass(frozen=True)
class ServingTimes:
    """Times of one user's request under a load, each with its limits."""

    first_token_ms: Interval
    output_token_ms: Interval
    """Per token after the first."""


@dataclass(frozen=True)
class ServingPredictor:
    """The fitted formula, the trees on what it leaves, and how far both err on unseen devices and models."""

    coefficients: dict[str, float]
    token_trees: lgb.Booster
    first_trees: lgb.Booster
    token_error: Calibration
    first_error: Calibration
    batch_error: Calibration
    """Of batches, which stand for loads where no load was measured request by request."""

    def predict(self, cells: Sequence[tuple[Deployment, Load]]) -> list[ServingTimes]:
        """Return the times of each deployment under its load."""
        token, first = predict_times(work_of(cells), self.coefficients, self.token_trees, self.first_trees)
        return [
            self._loaded(t, f) if deployment.loaded else self._batched(t, f)
            for (deployment, _), t, f in zip(cells, token, first, strict=True)
        ]

    def paces(self, cells: Sequence[tuple[Deployment, Load]], most_running: Sequence[int]) -> list[Pace]:
        """Return how long each deployment takes under its load, at up to so many requests that run at once.

        Steps and prompts are the formula's, corrected as the trees correct the whole load.
        """
        works = work_of(cells)
        formula = step_times(works, self.coefficients)
        predicted = predict_times(works, self.coefficients, self.token_trees, self.first_trees)
        token_factor, first_factor = (mine / its for mine, its in zip(predicted, formula, strict=True))
        parts = step_parts(works, self.coefficients)
        paces = []
        for i, (deployment, load) in enumerate(cells):
            # Steps of 1, 2, 4, ... requests; between these they are nearly straight.
            counts = np.unique(np.append(2.0 ** np.arange(math.log2(most_running[i])), most_running[i]))
            steps = step_parts(work_of([(deployment, replace(load, users=n)) for n in counts]), self.coefficients)
            running = np.arange(1, most_running[i] + 1)
            paces.append(
                Pace(
                    step_s=(token_factor[i] * np.interp(running, counts, steps.decode_s)).tolist(),
                    prompt_s=float(first_factor[i] * parts.alone_s[i]),
                    stall_s=float(token_factor[i] * parts.stall_s[i]),
                    room_tokens=most_running[i] * (load.input_tokens + load.output_tokens),
                )
            )
        return paces

    def _loaded(self, token_ms: float, first_ms: float) -> ServingTimes:
        return ServingTimes(_interval(first_ms, self.first_error), _interval(token_ms, self.token_error))

    def _batched(self, token_ms: float, first_ms: float) -> ServingTimes:
        """Return times with the wider limits; nobody knows how often the first token's hold, so its level is None."""
        widest = max(self.first_error, self.batch_error, key=_width)
        first = _interval(first_ms, widest).model_copy(update={"level": None})
        return ServingTimes(first, _interval(token_ms, max(self.token_error, self.batch_error, key=_width)))


def fit(
    work: Work, token_ms: Array, first_ms: Array, weights: Array, *, threads: int = 0
) -> tuple[dict[str, float], lgb.Booster, lgb.Booster]:
    """Return coefficients and both corrections learned from measured loads."""
    coefficients = fit_step_times(work, token_ms, first_ms, weights)
    token, first = step_times(work, coefficients)
    x = _features(work, token, first)
    token_trees, first_trees = (
        lgb.LGBMRegressor(**TREES, n_jobs=threads)
        .fit(x[known], np.log(measured / formula)[known], sample_weight=weights[known])
        .booster_
        for measured, formula, known in (
            (token_ms, token, np.isfinite(token_ms)),
            (first_ms, first, np.isfinite(first_ms)),
        )
    )
    return coefficients, token_trees, first_trees


def predict_times(
    work: Work, coefficients: dict[str, float], token_trees: lgb.Booster, first_trees: lgb.Booster
) -> tuple[Array, Array]:
    """Return milliseconds per output token and to the first token, per row."""
    token, first = step_times(work, coefficients)
    x = _features(work, token, first)
    # One thread, because several take longer than so few rows do.
    corrected = (
        formula * np.exp(np.asarray(trees.predict(x, num_threads=1)))
        for formula, trees in ((token, token_trees), (first, first_trees))
    )
    token, first = corrected
    return token, first


def _features(work: Work, token_ms: Array, first_ms: Array) -> Array:
    """Return one row of ratios and logs per row: a device nobody measured has other rates, but ratios as others."""
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


def _width(error: Calibration) -> float:
    return error.half_width


def _interval(milliseconds: float, error: Calibration) -> Interval:
    width = math.exp(error.half_width)
    return Interval(
        p50=float(milliseconds),
        low=float(milliseconds) / width,
        high=float(milliseconds) * width,
        level=round(error.level, 3),
    )


@cache
def shipped_predictor() -> ServingPredictor:
    """Return the predictor that comes with the package."""
    require_slow_path()
    return load(SHIPPED)


def save(predictor: ServingPredictor, path: Path) -> None:
    """Write a predictor; equal ones give equal bytes."""
    content = {
        "coefficients": predictor.coefficients,
        "token_trees": predictor.token_trees.model_to_string(num_iteration=-1),
        "first_trees": predictor.first_trees.model_to_string(num_iteration=-1),
        "token_error": predictor.token_error.model_dump(),
        "first_error": predictor.first_error.model_dump(),
        "batch_error": predictor.batch_error.model_dump(),
    }
    path.write_bytes(lzma.compress(json.dumps(content, sort_keys=True).encode(), preset=9))


def load(path: Path) -> ServingPredictor:
    """Return a predictor that `save` wrote."""
    content = json.loads(lzma.decompress(path.read_bytes()))
    return ServingPredictor(
        content["coefficients"],
        lgb.Booster(model_str=content["token_trees"]),
        lgb.Booster(model_str=content["first_trees"]),
        Calibration(**content["token_error"]),
        Calibration(**content["first_error"]),
        Calibration(**content["batch_error"]),
    )
