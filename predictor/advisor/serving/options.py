"""Options of a serving answer: times, percentiles, cost and evidence of one plan, and the goals that it misses."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from accel_platform.hardware.rents import most_rented_together
from accel_platform.table_io.values import rounded
from predictor.advisor.intervals import divide, scale
from predictor.advisor.serving.capacity import end_to_end_ms
from predictor.advisor.serving.deployments import DeploymentPlan
from predictor.advisor.serving.launch import lacks_bfloat16, launch_command, runs_own_code
from predictor.advisor.serving.similar_loads import SimilarLoads
from predictor.schemas.responses import Interval
from predictor.schemas.serving import Memory, Percentile, ServingGoals, ServingOption, SlowRequests
from predictor.serving.disaggregated import shipped_model
from predictor.serving.engines import TURING
from predictor.serving.predictor import ServingTimes, shipped_predictor
from predictor.serving.queueing import RequestTimes
from predictor.serving.work import Array

_FEW_MODELS = 3
"""Number of models measured in a quantization below which nothing tells how others do in it."""


@dataclass(frozen=True)
class ServingCandidate:
    """Deployment plan with the times of its typical request."""

    plan: DeploymentPlan
    times: ServingTimes
    measured: bool
    """True if the times were measured under this very load, False if they are predicted."""

    @property
    def end_to_end_ms(self) -> Interval:
        """Time to the last token. The limits of its two parts add up, because both may be off in the same direction."""
        first, token = self.times.first_token_ms, self.times.output_token_ms
        more = self.plan.load.output_tokens - 1
        return Interval(
            p50=end_to_end_ms(self.times, self.plan.load),
            low=None if first.low is None or token.low is None else first.low + more * token.low,
            high=None if first.high is None or token.high is None else first.high + more * token.high,
            level=None if first.level is None or token.level is None else min(first.level, token.level),
        )

    @property
    def requests_per_s(self) -> Interval:
        """Requests answered by all copies: all that arrive, or users over the seconds of a request (Little's law)."""
        if self.plan.arriving_per_s is not None:
            return Interval(p50=self.plan.arriving_per_s * self.plan.copies)
        return divide(1e3 * self.plan.load.users * self.plan.copies, self.end_to_end_ms)

    @property
    def output_tokens_per_s(self) -> Interval:
        """Output tokens of the whole deployment."""
        return scale(self.requests_per_s, self.plan.load.output_tokens)

    @property
    def usd_per_hour(self) -> float | None:
        """Rent of all devices."""
        return None if self.plan.rent is None else self.plan.rent.usd_per_hour

    @property
    def watts(self) -> float | None:
        """Thermal design power of all devices."""
        power = self.plan.deployment.device.tdp_w
        return None if power is None else power * self.plan.devices

    @property
    def usd_per_million_output_tokens(self) -> Interval | None:
        """The whole rent over the output tokens."""
        rent = self.usd_per_hour
        return None if rent is None else divide(rent / 3600 * 1e6, self.output_tokens_per_s)

    @property
    def j_per_output_token(self) -> Interval | None:
        """Thermal design power over the output tokens."""
        return None if self.watts is None else divide(self.watts, self.output_tokens_per_s)


def make_option(
    candidate: ServingCandidate,
    simulated: RequestTimes,
    *,
    rank: int,
    best_trade_off: bool,
    model: str,
    longest: int,
    goals: ServingGoals,
    loads: SimilarLoads,
) -> ServingOption:
    """Return the candidate as an option of the answer.

    Parameters
    ----------
    simulated
        Times of its requests from the simulation of its queue.
    model
        Name of the model in the command that starts the engine.
    longest
        Tokens of the longest request, input and output together.
    loads
        Measured loads of the model, as evidence.
    """
    plan, times, end = candidate.plan, candidate.times, candidate.end_to_end_ms
    spec, load = plan.deployment.device, plan.load
    rate = candidate.requests_per_s
    tokens, rent = candidate.output_tokens_per_s, candidate.usd_per_hour
    return ServingOption(
        rank=rank,
        device=spec.name,
        devices=plan.devices,
        copies=plan.copies,
        devices_per_copy=plan.deployment.devices,
        stages=plan.deployment.stages,
        attention_copies=plan.deployment.attention_copies,
        prompt_workers=plan.prompt_workers,
        devices_per_prompt_worker=0 if plan.deployment.prompts is None else plan.deployment.prompts.devices,
        engine=plan.deployment.engine,
        engine_version=times.engine_version,
        users=round(load.users * plan.copies),
        requests_per_s=rate,
        memory=Memory(**vars(plan.fit)),
        first_token_ms=times.first_token_ms,
        output_token_ms=times.output_token_ms,
        end_to_end_ms=end,
        slow=slow_requests(candidate, simulated, _slow_percentile(goals)),
        goodput_requests_per_s=goodput_requests_per_s(candidate, simulated, goals),
        output_tokens_per_s=tokens,
        output_tokens_per_s_per_user=divide(1e3, times.output_token_ms),
        output_tokens_per_s_per_device=scale(tokens, 1 / plan.devices),
        usd_per_hour=rent,
        usd_per_million_output_tokens=candidate.usd_per_million_output_tokens,
        usd_per_million_input_tokens=(
            None if rent is None else divide(rent / 3600 * 1e6, scale(rate, load.input_tokens))
        ),
        j_per_output_token=candidate.j_per_output_token,
        price_source=plan.rent and plan.rent.source,
        price_date=plan.rent and plan.rent.date,
        best_trade_off=best_trade_off,
        provenance="measured" if candidate.measured else "predicted",
        nearest=loads.nearest(plan),
        launch=launch_command(plan, model, longest),
        cautions=_cautions(candidate, loads),
    )


def slow_requests(candidate: ServingCandidate, simulated: RequestTimes, percentile: Percentile) -> SlowRequests:
    """Return the times at a percentile of the requests.

    They are the typical times and their limits, scaled by the ratio of percentile to typical time in the simulation.
    """

    def at_percentile(typical: Interval, times_ms: Array) -> Interval:
        return scale(typical, float(np.percentile(times_ms, percentile)) / typical.p50) if len(times_ms) else typical

    return SlowRequests(
        percentile=percentile,
        first_token_ms=at_percentile(candidate.times.first_token_ms, simulated.first_token_ms),
        output_token_ms=at_percentile(candidate.times.output_token_ms, simulated.known_output_token_ms),
        end_to_end_ms=at_percentile(candidate.end_to_end_ms, simulated.end_to_end_ms),
    )


@dataclass(frozen=True, slots=True)
class MissedGoal:
    """A goal that a deployment misses, and how far off it is."""

    reason: str
    excess: float
    """The unfavorable figure over the goal, the largest of all goals; inf where the figure is unknown."""


def missed_limit(candidate: ServingCandidate, goals: ServingGoals) -> MissedGoal | None:
    """Return the first limit of rent or power that the candidate exceeds, or the time goal of its typical request.

    None if there is none. This needs no simulation.
    """
    rent, watts = candidate.usd_per_hour, candidate.watts
    if goals.max_usd_per_hour is not None:
        if rent is None:
            return MissedGoal("its price is not known", math.inf)
        if rent > goals.max_usd_per_hour:
            reason = f"costs {rent:.2f} USD per hour, {goals.max_usd_per_hour:g} are allowed"
            return MissedGoal(reason, rent / goals.max_usd_per_hour)
    if goals.max_watts is not None:
        if watts is None:
            return MissedGoal("its power is not published", math.inf)
        if watts > goals.max_watts:
            reason = f"may draw {watts:,.0f} W, {goals.max_watts:g} are allowed"
            return MissedGoal(reason, watts / goals.max_watts)
    return _missed_time(
        goals,
        candidate.times.first_token_ms,
        candidate.times.output_token_ms,
        candidate.end_to_end_ms,
        "even a typical request" if (goals.percentile or 50) > 50 else "a typical request",
    )


def missed_goal(candidate: ServingCandidate, simulated: RequestTimes, goals: ServingGoals) -> MissedGoal | None:
    """Return the first time goal that the candidate may miss at the goals' percentile; None if it meets all."""
    if not goals.of_slow_requests:
        return None
    slow = slow_requests(candidate, simulated, _slow_percentile(goals))
    who = f"a request at the {goals.percentile}th percentile"
    return _missed_time(goals, slow.first_token_ms, slow.output_token_ms, slow.end_to_end_ms, who)


def _missed_time(goals: ServingGoals, first: Interval, token: Interval, end: Interval, who: str) -> MissedGoal | None:
    """Return the time goal that its time's unfavorable limit exceeds most; None if there is none."""
    times = (
        ("to the first token", goals.max_first_token_ms, first),
        ("for each further token", goals.max_output_token_ms, token),
        ("to the last token", goals.max_end_to_end_ms, end),
    )
    missed = []
    for what, limit, interval in times:
        if limit is not None and (worst := interval.high or interval.p50) > limit:
            likely = f" ({rounded(interval.p50)} predicted)" if interval.high else ""
            reason = f"{who} may take {rounded(worst)} ms {what}{likely}, {rounded(limit, 6)} ms are allowed"
            missed.append(MissedGoal(reason, worst / limit))
    return max(missed, key=lambda each: each.excess, default=None)


def _slow_percentile(goals: ServingGoals) -> Percentile:
    """Return the percentile to report for slow requests: that of the goals if it is a high one, else the 99th."""
    return goals.percentile if goals.percentile in (90, 95, 99) else 99


def goodput_requests_per_s(candidate: ServingCandidate, simulated: RequestTimes, goals: ServingGoals) -> float | None:
    """Return the requests that meet all time goals; None without such goals."""
    if not goals.of_time:
        return None
    met = np.ones(len(simulated.first_token_ms), dtype=bool)
    for limit, times in (
        (goals.max_first_token_ms, simulated.first_token_ms),
        (goals.max_output_token_ms, simulated.output_token_ms),
        (goals.max_end_to_end_ms, simulated.end_to_end_ms),
    ):
        if limit is not None:
            met &= times <= limit
    return candidate.requests_per_s.p50 * float(met.mean())


def _cautions(candidate: ServingCandidate, loads: SimilarLoads) -> list[str]:
    """Return the warnings that a reader needs before trusting the option's figures."""
    plan, load = candidate.plan, candidate.plan.load
    spec, engine, quantization = plan.deployment.device, plan.deployment.engine, plan.deployment.quantization
    cautions = []
    if load.users > plan.fit.max_users:
        cautions.append(
            f"{plan.devices} x {spec.name}: only {plan.fit.max_users * plan.copies} of "
            f"{load.users * plan.copies:.0f} requests fit at once, the others wait"
        )
    slowest_ms = candidate.end_to_end_ms.high
    if plan.arriving_per_s is not None and slowest_ms is not None:
        wanted = plan.arriving_per_s * slowest_ms / 1e3
        if wanted > plan.fit.max_users:
            cautions.append(
                f"{plan.devices} x {spec.name}: at the slow end of its limits requests pile up, because "
                f"{wanted * plan.copies:,.0f} would be under way and {plan.fit.max_users * plan.copies} fit"
            )
    cautions += _command_cautions(plan)
    neighbors = shipped_predictor().model.neighbors
    models = neighbors.models_measured[quantization]
    if not candidate.measured and models < _FEW_MODELS:
        of = f"{models} model{'s' if models > 1 else ''} alone" if models else "no model"
        cautions.append(f"in {quantization} loads of {of} were learned from: how often its limits hold is not known")
    if spec.name not in loads.devices | neighbors.devices:
        cautions.append(f"no load on {spec.name} was measured: its figures follow from those of other GPUs")
    if plan.deployment.stages > 1:
        cautions.append(
            f"{plan.devices} x {spec.name}: no pipeline was measured, so nobody knows how often its limits hold; "
            f"the command is for the first of {plan.deployment.stages} hosts, and what they hand over is left out"
        )
    if plan.deployment.prompts is not None:
        known = shipped_model().first_error
        cautions.append(
            f"disaggregated serving was learned from {known.rows} loads of {known.groups} models on a GPU alone, so "
            "its limits are wide; handing over keys and values is not in the formula"
        )
    if not candidate.measured and not plan.deployment.measured_by_requests:
        batched = "single requests" if engine == "llama.cpp" else "whole batches"
        cautions.append(
            f"of {engine} on {spec.vendor}'s GPUs only {batched} were measured: how often the limits of the first "
            "token hold is not known"
        )
    return cautions


def _command_cautions(plan: DeploymentPlan) -> list[str]:
    """Return the warnings about the plan's devices together, and about what its command does on them."""
    spec, engine, quantization = plan.deployment.device, plan.deployment.engine, plan.deployment.quantization
    cautions = []
    most = None if plan.rent is None or plan.instances else most_rented_together(spec.name)
    if most is not None and most < plan.together:
        cautions.append(
            f"{plan.devices} x {spec.name}: no instance that is known here has {plan.together} of them, so the rent is "
            f"that of several with {most}"
        )
    if runs_own_code(plan):
        cautions.append("the command runs code of the model's repository: read it first")
    if engine != "llama.cpp" and (spec.compute_capability or TURING) < TURING:
        cautions.append(f"the newest {engine} asks for a GPU from Turing on: {spec.name} needs an older version of it")
    if lacks_bfloat16(plan.deployment):
        cautions.append(f"{spec.name} has no bfloat16: the command serves in float16")
    if plan.deployment.weights_widened:
        newer = f"; {engine} does so from version 0.14 on" if engine == "vllm" and spec.before_ampere else ""
        cautions.append(f"{engine} on {spec.name} keeps weights in {quantization} and computes in 16 bits{newer}")
    return cautions
