"""Formula for the time per output token and to the first token, from the roofline times of `work`.

* A decoding step takes max(weights, compute) + cache + exchange + a fixed time per layer and per user. Prompts that
  are computed beside it delay it (chunked prefill).
* A first token takes the time of its own prompt, and waits for other prompts, the step under way, and room in the
  cache.

Each term has a coefficient that is fitted to measured loads. A formula holds for devices and models that nobody
measured, which trees alone would not; trees correct it afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares

from predictor.serving.engines import ENGINES
from predictor.serving.work import VENDORS, Array, Work

PRIORS = {
    "weights": 0.4,  # factor on reading weights at the published bandwidth
    "unit_read": np.log(1 / 6),  # cycles of a compute unit per byte of weights, where that is a limit
    "cache": 0.7,  # factor on reading keys and values
    "compute": 0.9,  # factor on the FLOPs of a step at the published rate
    "layer_s": np.log(10e-6),
    "expert_layer_s": np.log(5e-6),
    "exchange_layer_s": np.log(10e-6),  # per layer, with several devices
    "exchange_doubling_s": np.log(2e-6),  # per layer and doubling of their number
    "exchange": 0.0,  # factor on the exchange at half of the published link rate
    "user_s": np.log(5e-6),
    "prompt": 0.7,  # factor on the FLOPs of a prompt
    "prompt_weights": 0.3,  # factor on reading weights for a prompt
    "prompt_layer_s": np.log(20e-6),
    "prompt_below_8_bits": 0.0,  # further factor on products of fewer than 8 bits
    "beside": 0.0,  # share of a prompt's time by which it delays the steps beside it
    "queue": -2.0,  # prompts that a first token waits for: queue · (other running users) ^ queue_power
    "queue_power": 0.7,
    "steps_waited": 0.0,  # steps that a first token waits for
    "first_token_s": np.log(0.015),  # fixed time of a first token
    **{f"{what}_{engine}": 0.0 for what in ("step", "prompt", "queue") for engine in ENGINES[1:]},
    **{f"{what}_{vendor}": 0.0 for what in ("step", "prompt") for vendor in VENDORS[1:]},
}
"""Prior means of the coefficients, as natural logs, except for `queue_power`, which is no log.

Coefficients of an engine are factors relative to vLLM, those of a vendor relative to NVIDIA.
"""
_PRIOR_WEIGHT = 0.45
"""Weight of a coefficient's deviation from its prior; a log error of a load of mean weight counts 1."""
_FIRST_TOKEN_WEIGHT = 0.5
"""Weight of the errors of first tokens beside those of steps, because they scatter more."""
_SOFT_ERROR = 0.15
"""Log error from which the loss grows linearly (soft L1): some rows are of other deployments than they state."""
_LEAST_GAIN = 1e-6
"""Relative decrease of the loss below which the search ends. Without it some fits ran 3,000 steps for 0.03 %."""
Coefficients = Mapping[str, float]


@dataclass(frozen=True)
class StepParts:
    """Parts of the formula in seconds: arrays with one entry per deployment and load."""

    decode_s: Array
    """One decoding step of all running users, without prompts beside it."""
    prompt_s: Array
    """Computing one prompt."""
    alone_s: Array
    """Time to the first token of a request whose prompt waits for no other prompt."""
    stall_s: Array
    """Time by which one prompt delays the decoding steps beside it."""
    queue_s: Array
    """Time for which a first token waits for the prompts of other running users."""
    batch_prompts_s: Array
    """Computing the prompts of a whole batch together."""


def step_parts(work: Work, coefficients: Coefficients) -> StepParts:
    """Return the parts that `step_times` adds up."""
    value = _values(coefficients)

    def by_engine(what: str) -> Array:
        """Return the factor of each row's engine on a step, prompt or queue."""
        factors = [1.0, *(value[f"{what}_{engine}"] for engine in ENGINES[1:])]
        return np.asarray(sum(f * here for f, here in zip(factors, work.engine, strict=True)))

    def by_engine_and_vendor(what: str) -> Array:
        """Return the factor of each row's engine and vendor on a step or prompt."""
        others = sum((value[f"{what}_{v}"] - 1) * here for v, here in zip(VENDORS[1:], work.vendor[1:], strict=True))
        return np.asarray(by_engine(what) * (1 + others))

    running, several = work.running, (work.devices > 1).astype(float)
    layers_s = (
        work.layers * value["layer_s"]
        + work.expert_layers * value["expert_layer_s"]
        + work.layers * several * (value["exchange_layer_s"] + value["exchange_doubling_s"] * np.log2(work.devices))
    )
    exchange = value["exchange"] * work.exchange_s
    read = np.maximum(value["weights"] * work.weights_s, value["unit_read"] * work.unit_read_s)
    # On NVIDIA's devices llama.cpp differs from vLLM in its rate of reading (`unit_read_s`); elsewhere its kernels are
    # ports, with a factor of their own.
    at_home = (work.engine[ENGINES.index("llama.cpp")] > 0) & (work.vendor[0] > 0)
    decode = np.where(at_home, 1.0, by_engine_and_vendor("step")) * (
        np.maximum(read, value["compute"] * work.step_compute_s)
        + value["cache"] * work.cache_s
        + layers_s
        + exchange * running
        + value["user_s"] * running
    )
    few_bits_factor = np.where(work.below_8_bits > 0, value["prompt_below_8_bits"], 1.0)

    def prompts(together: Array) -> Array:
        """Return the time of computing so many prompts together, for which the weights are read once."""
        return by_engine_and_vendor("prompt") * (
            np.maximum(
                value["prompt"] * few_bits_factor * work.prompt_compute_s * together,
                value["prompt_weights"] * work.prompt_weights_s,
            )
            + exchange * work.computed_tokens * together
            + value["prompt_layer_s"] * work.layers
        )

    prompt = prompts(np.ones_like(running))
    prompts_waited = value["queue"] * by_engine("queue") * np.maximum(running - 1, 0) ** value["queue_power"]
    stall = value["beside"] * prompt
    step = decode + stall * running / work.output_tokens
    alone = prompt + value["steps_waited"] * step + value["first_token_s"]
    return StepParts(decode, prompt, alone, stall, prompt * prompts_waited, prompts(running))


def step_times(work: Work, coefficients: Coefficients) -> tuple[Array, Array]:
    """Return two arrays: milliseconds per output token after the first, and milliseconds to the first token.

    For a single batch the first array holds the time of the whole batch over the output tokens of a request.
    """
    parts = step_parts(work, coefficients)
    step = parts.decode_s + parts.stall_s * work.running / work.output_tokens
    whole = parts.prompt_s + work.output_tokens * step
    first = parts.alone_s + parts.queue_s + np.maximum(work.waiting - 1, 0) * whole
    in_batch = np.maximum(work.waiting, 1) * (parts.decode_s + parts.batch_prompts_s / work.output_tokens)
    return 1e3 * np.where(work.batch > 0, in_batch, step), 1e3 * first


def _values(coefficients: Coefficients) -> dict[str, float]:
    """Return the coefficients without their logs."""
    return {name: coefficients[name] if name == "queue_power" else float(np.exp(coefficients[name])) for name in PRIORS}


def fit_step_times(work: Work, token_ms: Array, first_ms: Array, weights: Array) -> dict[str, float]:
    """Return the coefficients that fit measured loads best, with weights per load.

    `first_ms` is NaN where nobody timed the first token.
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

    return dict(zip(names, least_errors(errors, prior), strict=True))


def least_errors(errors: Callable[[Array], Array], start: Array) -> list[float]:
    """Return the coefficients of the least log errors, searched from `start`; large errors count less."""
    found = least_squares(errors, start, loss="soft_l1", f_scale=_SOFT_ERROR, ftol=_LEAST_GAIN)
    return [float(value) for value in found.x]
