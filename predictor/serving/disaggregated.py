"""Times of disaggregated serving: the formula of steps and prompts apart, corrected by trees on measured deployments.

Steps of the copies that generate wait for no prompt. A first token waits for its prompt and for those before it at the
workers that compute prompts, which are fewer than the users.
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
"""Share of all users' prompts that a first token waits for: clients send ten requests a user, the first all at once."""
_TOGETHER = 64.0
"""Prompts computed together from which one more costs as much as the next."""


_LEAST_S = 1e-6
"""Least time of one more prompt: its tokens may be too few to take longer than reading the weights does anyway."""


@dataclass(frozen=True)
class Parts:
    """Parts of the times of disaggregated loads, in seconds; columns with a row per deployment and load."""

    decode_s: Array
    """One step of the running users of a copy."""
    prompt_s: Array
    """The first token of a prompt that waits for no other."""
    service_s: Array
    """Time of one more prompt at a worker, over the workers of a copy."""
    decoding: Work
    prompting: Work

    @property
    def queue_s(self) -> Array:
        """Computing the prompts of all users of a copy."""
        return self.service_s * self.decoding.users

    @property
    def first_s(self) -> Array:
        """To the first token, as far as the formula goes."""
        return self.prompt_s + _QUEUED_SHARE * self.queue_s


def parts_of(cells: Sequence[tuple[Deployment, Load]], coefficients: Coefficients) -> Parts:
    """Return the parts of deployments with workers for prompts under their loads."""
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
    """Return one of the workers that compute prompts, as a deployment of its own."""
    assert deployment.prompts is not None
    return replace(
        deployment,
        devices=deployment.prompts.devices,
        attention_copies=deployment.prompts.attention_copies,
        prompts=None,
    )


@dataclass(frozen=True)
class DisaggregatedModel:
    """Trees on what the formula leaves, and how far both err on unseen campaigns."""

    service_factor: float
    """Ratio of the time of one more prompt to the formula's, which is fitted to prompts that come one by one."""
    token_trees: lgb.Booster
    first_trees: lgb.Booster
    token_error: Calibration
    first_error: Calibration

    def predict(
        self, cells: Sequence[tuple[Deployment, Load]], coefficients: Coefficients
    ) -> tuple[Array, Array, Array]:
        """Return milliseconds per output token after the first, and to the first token, and the share of the time for
        which the workers for prompts are busy, per row. Above a share of 1 they cannot keep up.
        """
        parts = parts_of(cells, coefficients)
        token_ms, first_ms = corrected(self.token_trees, self.first_trees, parts)
        whole_s = (first_ms + parts.decoding.output_tokens * token_ms) / 1e3
        return token_ms, first_ms, self.service_factor * parts.queue_s / whole_s


def corrected(token_trees: lgb.Booster, first_trees: lgb.Booster, parts: Parts) -> tuple[Array, Array]:
    """Return the formula's times in milliseconds, times what the trees say."""
    token, first = (
        1e3 * base * np.exp(predict_trees(trees, x))
        for trees, base, x in (
            (token_trees, parts.decode_s, token_features(parts)),
            (first_trees, parts.first_s, first_features(parts)),
        )
    )
    return token, first


def fit_trees(rows: Sequence[MeasuredLoad], parts: Parts) -> tuple[lgb.Booster, lgb.Booster]:
    """Return trees on what the formula leaves of the times per output token, and to the first."""
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
    """Return ratios and logs that the correction of steps goes by, a row per load."""
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
    """Return ratios and logs that the correction of first tokens goes by, a row per load."""
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
    """Return the model that comes with the package."""
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
    """Write a model; equal ones give equal bytes."""
    content = {
        "service_factor": model.service_factor,
        "token_trees": model.token_trees.model_to_string(num_iteration=-1),
        "first_trees": model.first_trees.model_to_string(num_iteration=-1),
        "token_error": model.token_error.model_dump(),
        "first_error": model.first_error.model_dump(),
    }
    path.write_bytes(lzma.compress(json.dumps(content, sort_keys=True).encode(), preset=9))
