"""Times of disaggregated serving, in which some workers compute prompts and others generate.

The formula of `step_times` is applied to both kinds of workers apart, and boosted trees correct it on measured
deployments. Decoding steps wait for no prompt. A first token takes its own prompt, and waits for the prompts queued
before it at the prompt workers, which are fewer than the users.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import lightgbm as lgb
import numpy as np

from predictor.calibration.conformal import Calibration
from predictor.data.fast_path import require_slow_path
from predictor.serving.fold_trees import TREES, predict_trees
from predictor.serving.loads import ENGINES, Deployment, Load
from predictor.serving.measured_loads import MeasuredLoad
from predictor.serving.step_times import Coefficients, step_parts
from predictor.serving.work import Array, Work, work_of

SHIPPED = Path(__file__).with_name("disaggregated.json.xz")
_TREES = TREES | {"n_estimators": 200, "learning_rate": 0.05, "num_leaves": 8, "min_child_samples": 10}
_QUEUED_SHARE = 0.1
"""Share of all users' prompts that an average first token waits for.

Load generators send ten requests per user, of which only the first arrive all at once.
"""
_TOGETHER = 64.0
"""Number of prompts computed together at which their time grows by the same amount with each further prompt."""
_LEAST_S = 1e-6
"""Least time of one further prompt, which is 0 by the formula where reading the weights takes longer than computing."""


@dataclass(frozen=True)
class Parts:
    """Parts of the formula for disaggregated loads, in seconds: arrays with one entry per deployment and load."""

    decode_s: Array
    """One decoding step of the users of a generating copy."""
    prompt_s: Array
    """Time to the first token of a prompt that waits for no other prompt."""
    service_s: Array
    """Time of one further prompt at a prompt worker, over the number of prompt workers per copy."""
    decoding: Work
    """Work of the generating copies."""
    prompting: Work
    """Work of the prompt workers, one prompt each."""

    @property
    def queue_s(self) -> Array:
        """Time in which the prompt workers compute one prompt of each user of a copy."""
        return self.service_s * self.decoding.users

    @property
    def first_s(self) -> Array:
        """Time to the first token by the formula."""
        return self.prompt_s + _QUEUED_SHARE * self.queue_s


def parts_of(cells: Sequence[tuple[Deployment, Load]], coefficients: Coefficients) -> Parts:
    """Return the parts of the formula for deployments that have `prompts`, under their loads."""
    decoding = work_of(cells)
    prompting = work_of([(prompt_deployment(deployment), replace(load, users=1.0)) for deployment, load in cells])
    alone = step_parts(prompting, coefficients)
    several = step_parts(replace(prompting, running=np.full(len(cells), _TOGETHER)), coefficients)
    workers = np.array([float(d.prompts.per_copy) for d, _ in cells if d.prompts is not None])
    return Parts(
        decode_s=step_parts(decoding, coefficients).decode_s,
        prompt_s=alone.alone_s,
        service_s=np.maximum((several.batch_prompts_s - alone.batch_prompts_s) / (_TOGETHER - 1), _LEAST_S) / workers,
        decoding=decoding,
        prompting=prompting,
    )


def prompt_deployment(deployment: Deployment) -> Deployment:
    """Return one prompt worker as a deployment of its own."""
    assert deployment.prompts is not None
    return replace(
        deployment,
        devices=deployment.prompts.devices,
        attention_copies=deployment.prompts.attention_copies,
        prompts=None,
    )


@dataclass(frozen=True)
class DisaggregatedModel:
    """Trees on the formula's log residuals, with the calibrated errors of both on unseen load groups."""

    service_factor: float
    """Factor on the formula's time of one further prompt; at most 1.

    The formula is fitted to prompts that arrive one by one, and too slow for many at once.
    """
    token_trees: lgb.Booster
    first_trees: lgb.Booster
    token_error: Calibration
    first_error: Calibration

    def predict(
        self, cells: Sequence[tuple[Deployment, Load]], coefficients: Coefficients
    ) -> tuple[Array, Array, Array]:
        """Return three arrays with one entry per deployment and load.

        They are milliseconds per output token after the first, milliseconds to the first token, and the share of the
        time for which the prompt workers are busy. Above a share of 1 they cannot keep up.
        """
        parts = parts_of(cells, coefficients)
        token_ms, first_ms = corrected(self.token_trees, self.first_trees, parts)
        whole_s = (first_ms + parts.decoding.output_tokens * token_ms) / 1e3
        return token_ms, first_ms, self.service_factor * parts.queue_s / whole_s


def corrected(token_trees: lgb.Booster, first_trees: lgb.Booster, parts: Parts) -> tuple[Array, Array]:
    """Return the formula's times per output token and to the first token in milliseconds, corrected by the trees."""
    token, first = (
        1e3 * base * np.exp(predict_trees(trees, x))
        for trees, base, x in (
            (token_trees, parts.decode_s, token_features(parts)),
            (first_trees, parts.first_s, first_features(parts)),
        )
    )
    return token, first


def fit_trees(rows: Sequence[MeasuredLoad], parts: Parts) -> tuple[lgb.Booster, lgb.Booster]:
    """Fit trees to the log residuals of the formula: of the times per output token, and to the first token."""
    token_ms, first_ms = (np.array([getattr(row, name) for row in rows]) for name in ("token_ms", "first_ms"))
    token, first = (
        lgb.LGBMRegressor(**_TREES).fit(x, np.log(measured / 1e3 / base)).booster_
        for x, measured, base in (
            (token_features(parts), token_ms, parts.decode_s),
            (first_features(parts), first_ms, parts.first_s),
        )
    )
    return token, first


def token_features(parts: Parts) -> Array:
    """Return the features of the trees for the time per output token, one row per load: ratios and logs."""
    work = parts.decoding
    return np.column_stack(
        [
            np.log(work.running),
            np.log(np.maximum(work.waiting, 1e-3)),
            np.log((work.cache_s + 1e-9) / work.weights_s),
            np.log(work.step_compute_s / (work.weights_s + work.cache_s)),
            np.log(work.devices),
            np.log(work.copies),
            np.log(work.input_tokens),
            np.log(work.output_tokens),
            np.log(work.layers * 1e-5 / parts.decode_s),
            np.log(parts.decode_s),
            *work.engine[1 : len(ENGINES)],
        ]
    )


def first_features(parts: Parts) -> Array:
    """Return the features of the trees for the time to the first token, one row per load: ratios and logs."""
    work, decoding = parts.prompting, parts.decoding
    whole_s = parts.prompt_s + decoding.output_tokens * parts.decode_s
    return np.column_stack(
        [
            np.log(parts.queue_s / parts.prompt_s),
            np.log(parts.prompt_s),
            np.log(parts.queue_s / whole_s),
            np.log(whole_s),
            np.log(work.input_tokens),
            np.log(work.output_tokens),
            np.log(work.devices),
            np.log(work.copies),
            np.log(work.prompt_compute_s / work.prompt_weights_s),
            *work.engine[1 : len(ENGINES)],
        ]
    )


@cache
def shipped_model() -> DisaggregatedModel:
    """Load the model that ships with the package. Raises SlowPathRequired on the fast path."""
    require_slow_path()
    content = json.loads(lzma.decompress(SHIPPED.read_bytes()))
    return DisaggregatedModel(
        content["service_factor"],
        lgb.Booster(model_str=content["token_trees"]),
        lgb.Booster(model_str=content["first_trees"]),
        Calibration(**content["token_error"]),
        Calibration(**content["first_error"]),
    )


def save(model: DisaggregatedModel, path: Path) -> None:
    """Write a model as compressed JSON; equal models give equal bytes."""
    content = {
        "service_factor": model.service_factor,
        "token_trees": model.token_trees.model_to_string(num_iteration=-1),
        "first_trees": model.first_trees.model_to_string(num_iteration=-1),
        "token_error": model.token_error.model_dump(),
        "first_error": model.first_error.model_dump(),
    }
    path.write_bytes(lzma.compress(json.dumps(content, sort_keys=True).encode(), preset=9))
