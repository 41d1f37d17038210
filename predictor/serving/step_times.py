"""Times of serving from work: one decoding step and the first token, by a formula whose coefficients are fitted.

A step reads weights and cache, computes, exchanges activations and pays a fixed time per layer; beside it run parts of
the prompts that arrive meanwhile (chunked prefill). A first token waits for its prompt, for prompts before it, for the
step under way, and for room in the cache. A formula, and not trees alone, because it holds for devices and models that
nobody measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares

from predictor.serving.loads import ENGINES
from predictor.serving.work import VENDORS, Array, Work

PRIORS = {
    "weights": 0.4,  # reading weights, over the published bandwidth
    "cache": 0.7,
    "compute": 0.9,  # products of a step, over the published rate
    "layer_s": np.log(10e-6),
    "expert_layer_s": np.log(5e-6),
    "exchange_layer_s": np.log(10e-6),
    "exchange_doubling_s": np.log(2e-6),
    "exchange": 0.0,  # over half of the link's rate of both directions
    "user_s": np.log(5e-6),
    "prompt": 0.7,
    "prompt_weights": 0.3,
    "prompt_layer_s": np.log(20e-6),
    "prompt_below_8_bits": 0.0,
    "beside": 0.0,  # share of prompts' time that steps beside them wait
    "queue": -2.0,  # share of the other running users' prompts that a first token waits for
    "queue_power": 0.7,
    "steps_waited": 0.0,
    "first_token_s": np.log(0.015),
    **{f"{what}_{engine}": 0.0 for what in ("step", "prompt", "queue") for engine in ENGINES[1:]},
    **{f"{what}_{vendor}": 0.0 for what in ("step", "prompt") for vendor in VENDORS[1:]},
}
"""Coefficients before anything is learned; natural logs, but for `queue_power`. Those of an engine are over vLLM's,
those of a vendor over NVIDIA's."""
_PRIOR_WEIGHT = 0.45
_FIRST_TOKEN_WEIGHT = 0.5
"""Weight of errors of first tokens beside those of steps: they scatter more."""
_SOFT_ERROR = 0.15
"""Log error from which one row counts less than its square: some rows are of other deployments than they say."""
_LEAST_GAIN = 1e-6
"""Share of the loss below which a step ends the search: it crept on for 3,000 steps, for 0.03 %, without some GPUs."""
_EIGHT_BITS = 1.0
Coefficients = Mapping[str, float]


@dataclass(frozen=True)
class StepParts:
    """What the times of a load are made of; columns with a row per deployment and load, in seconds."""

    decode_s: Array
    """One step of all running users, without prompts beside it."""
    prompt_s: Array
    """One prompt."""
    alone_s: Array
    """The first token of a request whose prompt waits for no other: it waits for the step under way."""
    stall_s: Array
    """What one prompt holds up the steps beside it."""
    queue_s: Array
    """What a first token waits for the prompts of other running users."""
    batch_prompts_s: Array
    """The prompts of a whole batch."""


def step_parts(work: Work, coefficients: Coefficients) -> StepParts:
    """Return the parts from which `step_times` makes up its times."""
    value = _values(coefficients)

    def by_engine(what: str) -> Array:
        factors = [1.0, *(value[f"{what}_{engine}"] for engine in ENGINES[1:])]
        return np.asarray(sum(f * here for f, here in zip(factors, work.engine, strict=True)))

    def by_both(what: str) -> Array:
        others = sum((value[f"{what}_{v}"] - 1) * here for v, here in zip(VENDORS[1:], work.vendor[1:], strict=True))
        return np.asarray(by_engine(what) * (1 + others))

    running, several = work.running, (work.devices > 1).astype(float)
    layers_s = (
        work.layers * value["layer_s"]
        + work.expert_layers * value["expert_layer_s"]
        + work.layers * several * (value["exchange_layer_s"] + value["exchange_doubling_s"] * np.log2(work.devices))
    )
    exchange = value["exchange"] * work.exchange_s
    decode = by_both("step") * (
        np.maximum(value["weights"] * work.weights_s, value["compute"] * work.step_compute_s)
        + value["cache"] * work.cache_s
        + layers_s
        + exchange * running
        + value["user_s"] * running
    )
    slower = np.where(work.weight_bytes < _EIGHT_BITS, value["prompt_below_8_bits"], 1.0)

    def prompts(together: Array) -> Array:
        return by_both("prompt") * (
            np.maximum(
                value["prompt"] * slower * work.prompt_compute_s * together,
                value["prompt_weights"] * work.prompt_weights_s,
            )
            + exchange * work.computed_tokens * together
            + value["prompt_layer_s"] * work.layers
        )

    prompt = prompts(np.ones_like(running))
    others = value["queue"] * by_engine("queue") * np.maximum(running - 1, 0) ** value["queue_power"]
    stall = value["beside"] * prompt
    step = decode + stall * running / work.output_tokens
    alone = prompt + value["steps_waited"] * step + value["first_token_s"]
    return StepParts(decode, prompt, alone, stall, prompt * others, prompts(running))


def step_times(work: Work, coefficients: Coefficients) -> tuple[Array, Array]:
    """Return milliseconds per output token after the first, and to the first token, per row.

    Of a batch the first are milliseconds of the whole batch per output token of a request.
    """
    parts = step_parts(work, coefficients)
    step = parts.decode_s + parts.stall_s * work.running / work.output_tokens
    whole = parts.prompt_s + work.output_tokens * step
    first = parts.alone_s + parts.queue_s + np.maximum(work.waiting - 1, 0) * whole
    in_batch = np.maximum(work.waiting, 1) * (parts.decode_s + parts.batch_prompts_s / work.output_tokens)
    return 1e3 * np.where(work.batch > 0, in_batch, step), 1e3 * first


def _values(coefficients: Coefficients) -> dict[str, float]:
    return {name: coefficients[name] if name == "queue_power" else float(np.exp(coefficients[name])) for name in PRIORS}


def fit_step_times(work: Work, token_ms: Array, first_ms: Array, weights: Array) -> dict[str, float]:
    """Return the coefficients that these measured loads teach; each row counts by its weight.

    A first token that nobody timed is NaN.
    """
    known = np.isfinite(first_ms)
    names = list(PRIORS)
    prior = np.array([PRIORS[name] for name in names])

    def errors(values: Array) -> Array:
        token, first = step_times(work, dict(zip(names, values, strict=True)))
        return np.concatenate(
            [
                weights * np.log(token / token_ms),
                _FIRST_TOKEN_WEIGHT * (weights * np.log(first / first_ms))[known],
                _PRIOR_WEIGHT * (values - prior),
            ]
        )

    found = least_squares(errors, prior, loss="soft_l1", f_scale=_SOFT_ERROR, ftol=_LEAST_GAIN).x
    return dict(zip(names, map(float, found), strict=True))
