"""Times of disaggregated serving, in which some workers compute prompts and others generate.

Decoding steps follow the formula of `step_times`, without any prompt beside them. First tokens have a formula of their
own (`first_parts`), and boosted trees correct both. A first token takes its own prompt, and waits

* for the prompts of the other users, which all come at once at the beginning of a measurement,
* where the prompt workers are always busy, for as long as users then spend in their queue (the time of all users'
  prompts one after another, less that of the answers),
* for a slot of a generating copy, where its engine generates for fewer requests at once than it has users.

Each of these terms has coefficients that are fitted to measured disaggregated loads (`FIRST_PRIORS`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import lightgbm as lgb
import numpy as np
from scipy.special import ndtr

from predictor.calibration.conformal import Calibration
from predictor.data.fast_path import require_slow_path
from predictor.data.packed_json import read_packed, write_packed
from predictor.serving.engines import ENGINES
from predictor.serving.fold_trees import TREES, predict_trees
from predictor.serving.loads import Deployment, Load
from predictor.serving.measured_loads import MeasuredLoad
from predictor.serving.step_times import Coefficients, least_errors, step_parts
from predictor.serving.work import VENDORS, Array, Work, work_of

SHIPPED = Path(__file__).with_name("disaggregated.json.xz")
_ENGINES = ENGINES[:3]
"""Engines with measured disaggregated loads."""
_VENDORS = VENDORS[:2]
_TREES = TREES | {"n_estimators": 200, "learning_rate": 0.05, "num_leaves": 8, "min_child_samples": 10}
FIRST_PRIORS: dict[str, tuple[float, float]] = {
    "start_layer_s": (np.log(3e-3), 0.3),  # per layer, before a prompt and for the transfer of its keys and values
    "start_devices": (0.5, 1.0),  # power of a prompt worker's devices in it; no log
    "prompt": (np.log(3.0), 0.3),  # factor on the FLOPs of a prompt
    "prompt_below_8_bits": (np.log(1.5), 0.5),  # further factor on products of fewer than 8 bits
    "prompt_layer_s": (np.log(1e-4), 0.5),
    "attention_copies": (np.log(0.05), 0.5),  # share of a prompt's time that each further attention copy adds to it
    "burst": (np.log(0.075), 1.0),  # share of all users' prompts that an average first token waits for
    "always_busy": (np.log(6.0), 0.5),  # sharpness of the bend where prompt workers begin to be always busy
    "slot": (0.0, 1.0),  # factor on the wait for a slot
    **{f"{what}_{engine}": (0.0, 1.0) for what in ("start", "prompt") for engine in _ENGINES},
    **{f"prompt_{vendor}": (0.0, 1.0) for vendor in _VENDORS[1:]},
}
"""Prior means of the coefficients of first tokens as natural logs, and the weights of deviations from them.

Coefficients of engines are factors on the common one, those of a vendor relative to NVIDIA. The mean of `burst` is that
of gpt-oss-120b's loads, whose prompt workers are seldom busy. Load generators send ten requests per user, of which only
the first arrive all at once.
"""
_PRIOR_WEIGHT = 0.5
"""Weight of a coefficient's deviation from its prior; a log error of a load of mean weight counts 1."""


@dataclass(frozen=True)
class Parts:
    """Work and waits of deployments under their loads: arrays with one entry per deployment and load."""

    decode_s: Array
    """Seconds of one decoding step of the users of a generating copy, by the formula."""
    workers: Array
    """Number of prompt workers per copy."""
    slot_answers: Array
    """Wait for a slot of a generating copy, as a ratio to the time of an answer."""
    decoding: Work
    """Work of the generating copies."""
    prompting: Work
    """Work of the prompt workers, one prompt each."""


def parts_of(cells: Sequence[tuple[Deployment, Load]], coefficients: Coefficients) -> Parts:
    """Return the parts of deployments that have `prompts`, under their loads."""
    decoding = work_of(cells)
    return Parts(
        decode_s=step_parts(decoding, coefficients).decode_s,
        workers=np.array([float(d.prompts.per_copy) for d, _ in cells if d.prompts is not None]),
        slot_answers=np.array([_slot_answers(deployment, load.users) for deployment, load in cells]),
        decoding=decoding,
        prompting=work_of([(prompt_deployment(deployment), replace(load, users=1.0)) for deployment, load in cells]),
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


def _slot_answers(deployment: Deployment, users: float) -> float:
    """Return the wait of a request for a slot of its copy, as a ratio to the time of an answer; 0 without slots.

    Requests are spread over the copies at random, so the number at one copy is normally distributed. By Little's law,
    wait over answer equals waiting over running requests.
    """
    if deployment.slots is None:
        return 0.0
    slots, copies = deployment.slots.per_copy, deployment.slots.copies
    deviation = max(np.sqrt(users * (1 - 1 / copies)), np.finfo(float).eps)
    beyond = (users - slots) / deviation
    waiting = deviation * (np.exp(-(beyond**2) / 2) / np.sqrt(2 * np.pi) + beyond * ndtr(beyond)) / users
    return float(waiting / (1 - waiting))


@dataclass(frozen=True)
class FirstParts:
    """Parts of a first token's time in seconds: arrays with one entry per deployment and load."""

    alone_s: Array
    """A prompt that waits for no other."""
    queue_s: Array
    """All users' prompts, one after another at the prompt workers."""
    slot_s: Array
    """Wait for a slot of a generating copy."""
    answer_s: Array
    """Time of an answer after its first token."""
    first_s: Array
    """The whole time to the first token."""

    @property
    def busy(self) -> Array:
        """Share of the time for which prompt workers are busy if no prompt waits; above 1 they cannot keep up."""
        return self.queue_s / (self.alone_s + self.slot_s + self.answer_s)


def first_parts(parts: Parts, answer_s: Array, coefficients: Coefficients) -> FirstParts:
    """Return the parts of first tokens; `answer_s` is the time of each answer after its first token, in seconds."""
    work = parts.prompting
    value = {name: np.exp(coefficients[name]) for name in FIRST_PRIORS}

    def by_engine(what: str) -> Array:
        factors = zip(_ENGINES, work.engine[: len(_ENGINES)], strict=True)
        return np.asarray(sum(value[f"{what}_{engine}"] * here for engine, here in factors))

    others = zip(_VENDORS[1:], work.vendor[1 : len(_VENDORS)], strict=True)
    vendor = 1 + sum((value[f"prompt_{vendor}"] - 1) * here for vendor, here in others)
    few_bits = np.where(work.below_8_bits > 0, value["prompt_below_8_bits"], 1.0)
    prompt_s = (
        value["prompt"] * by_engine("prompt") * vendor * few_bits * work.prompt_compute_s
        + value["prompt_layer_s"] * work.layers
    )
    start_s = value["start_layer_s"] * by_engine("start") * work.layers * work.devices ** coefficients["start_devices"]
    alone_s = start_s + prompt_s * (1 + value["attention_copies"] * (work.copies - 1))
    slot_s = value["slot"] * parts.slot_answers * answer_s
    queue_s = prompt_s / parts.workers * parts.decoding.users
    rest_s, sharpness = alone_s + slot_s + answer_s, value["always_busy"]
    shorter, longer = np.minimum(queue_s, rest_s), np.maximum(queue_s, rest_s)
    # A user's turn comes again after all users' prompts, or after the rest of the request: whichever takes longer, with
    # a smooth bend between both.
    round_s = longer * (1 + (shorter / longer) ** sharpness) ** (1 / sharpness)
    first_s = alone_s + value["burst"] * queue_s + slot_s + (round_s - rest_s)
    return FirstParts(alone_s, queue_s, slot_s, answer_s, first_s)


def _fit_first(parts: Parts, answer_s: Array, first_s: Array, weights: Array) -> dict[str, float]:
    """Return the coefficients of first tokens that fit measured ones best."""
    prior, weight = np.array(list(FIRST_PRIORS.values())).T

    def errors(values: Array) -> Array:
        found = first_parts(parts, answer_s, dict(zip(FIRST_PRIORS, values, strict=True)))
        return np.concatenate([weights * np.log(found.first_s / first_s), _PRIOR_WEIGHT * weight * (values - prior)])

    return dict(zip(FIRST_PRIORS, least_errors(errors, prior), strict=True))


@dataclass(frozen=True)
class FittedTimes:
    """Coefficients of the formula of first tokens, and trees on the log residuals of both formulas."""

    token_trees: lgb.Booster
    first_coefficients: Mapping[str, float]
    first_trees: lgb.Booster

    def predict(self, parts: Parts) -> tuple[Array, Array, FirstParts]:
        """Return the milliseconds per output token and to the first token, and the parts of the latter's formula."""
        token_s = parts.decode_s * np.exp(predict_trees(self.token_trees, token_features(parts)))
        first = first_parts(parts, token_s * parts.decoding.output_tokens, self.first_coefficients)
        corrections = predict_trees(self.first_trees, first_features(parts, first))
        return 1e3 * token_s, 1e3 * first.first_s * np.exp(corrections), first


def fit_times(rows: Sequence[MeasuredLoad], parts: Parts, weights: Array) -> FittedTimes:
    """Fit both times to measured loads; each row counts by its weight."""
    token_s, first_s = (np.array([getattr(row, name) for row in rows]) / 1e3 for name in ("token_ms", "first_ms"))
    answer_s = token_s * parts.decoding.output_tokens
    coefficients = _fit_first(parts, answer_s, first_s, weights)
    first = first_parts(parts, answer_s, coefficients)
    token_trees, first_trees = (
        lgb.LGBMRegressor(**_TREES).fit(x, np.log(measured / formula), sample_weight=weights).booster_
        for x, measured, formula in (
            (token_features(parts), token_s, parts.decode_s),
            (first_features(parts, first), first_s, first.first_s),
        )
    )
    return FittedTimes(token_trees, coefficients, first_trees)


@dataclass(frozen=True)
class DisaggregatedModel:
    """Fitted times, with their calibrated errors on unseen load groups."""

    times: FittedTimes
    token_error: Calibration
    first_error: Calibration

    def predict(
        self, cells: Sequence[tuple[Deployment, Load]], coefficients: Coefficients
    ) -> tuple[Array, Array, Array]:
        """Return three arrays with one entry per deployment and load.

        They are milliseconds per output token after the first, milliseconds to the first token, and the share of time
        that prompt workers are busy. Above a share of 1 they cannot keep up.
        """
        token_ms, first_ms, first = self.times.predict(parts_of(cells, coefficients))
        return token_ms, first_ms, first.busy


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
            *work.engine[1 : len(_ENGINES)],
        ]
    )


def first_features(parts: Parts, first: FirstParts) -> Array:
    """Return the features of the trees for the time to the first token, one row per load: ratios and logs."""
    work = parts.prompting
    return np.column_stack(
        [
            np.log(first.queue_s / first.alone_s),
            np.log(first.alone_s),
            np.log(first.queue_s / (first.answer_s + first.alone_s)),
            np.log(first.answer_s + first.first_s),
            np.log(first.slot_s / first.first_s + 1e-3),
            np.log(work.input_tokens),
            np.log(work.output_tokens),
            np.log(work.devices),
            np.log(work.copies),
            np.log(parts.decoding.running),
            *work.engine[1 : len(_ENGINES)],
        ]
    )


@cache
def shipped_model() -> DisaggregatedModel:
    """Load the model that ships with the package. Raises SlowPathRequired on the fast path."""
    require_slow_path()
    content = read_packed(SHIPPED)
    return DisaggregatedModel(
        FittedTimes(
            lgb.Booster(model_str=content["token_trees"]),
            content["first_coefficients"],
            lgb.Booster(model_str=content["first_trees"]),
        ),
        Calibration(**content["token_error"]),
        Calibration(**content["first_error"]),
    )


def save(model: DisaggregatedModel, path: Path) -> None:
    """Write a model as compressed JSON; equal models give equal bytes."""
    content = {
        "token_trees": model.times.token_trees.model_to_string(num_iteration=-1),
        "first_coefficients": model.times.first_coefficients,
        "first_trees": model.times.first_trees.model_to_string(num_iteration=-1),
        "token_error": model.token_error.model_dump(),
        "first_error": model.first_error.model_dump(),
    }
    write_packed(content, path)
