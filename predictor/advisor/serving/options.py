"""Options of a serving answer: times, percentiles, cost and evidence of one deployment, and the goals it may miss."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from accel_platform.table_io.values import rounded
from predictor.advisor.serving.deployments import Placed, end_to_end_ms
from predictor.advisor.serving.launch import lacks_bfloat16, launch_command
from predictor.advisor.serving.similar_loads import SimilarLoads
from predictor.schemas.responses import Interval
from predictor.schemas.serving import Memory, Percentile, ServingGoals, ServingOption, SlowRequests
from predictor.serving.disaggregated import shipped_model
from predictor.serving.predictor import ServingTimes, shipped_predictor
from predictor.serving.queueing import Played
from predictor.serving.work import Array


@dataclass(frozen=True)
class Candidate:
    """A deployment under its load, with its times for the typical request."""

    placed: Placed
    times: ServingTimes
    measured: bool
    """Whether they are those of this very load."""

    @property
    def end_to_end_ms(self) -> Interval:
        """Time to the last token. Both parts err alike at worst, so their limits add up."""
        first, token = self.times.first_token_ms, self.times.output_token_ms
        more = self.placed.load.output_tokens - 1
        return Interval(
            p50=end_to_end_ms(self.times, self.placed.load),
            low=None if first.low is None or token.low is None else first.low + more * token.low,
            high=None if first.high is None or token.high is None else first.high + more * token.high,
            level=None if first.level is None or token.level is None else min(first.level, token.level),
        )

    @property
    def requests_per_s(self) -> Interval:
        """Answered by all copies: all that arrive; else, by Little's law, users over the seconds of a request."""
        if self.placed.arriving_per_s is not None:
            return Interval(p50=self.placed.arriving_per_s * self.placed.copies)
        return _over(1e3 * self.placed.load.users * self.placed.copies, self.end_to_end_ms)

    @property
    def usd_per_hour(self) -> float | None:
        """Rent of all devices."""
        rent = self.placed.deployment.device.usd_per_hour
        return None if rent is None else rent * self.placed.devices

    @property
    def watts(self) -> float | None:
        """Thermal design power of all devices."""
        power = self.placed.deployment.device.tdp_w
        return None if power is None else power * self.placed.devices


def option(
    found: Candidate, played: Played, *, model: str, longest: int, goals: ServingGoals, loads: SimilarLoads
) -> ServingOption:
    """Return the candidate as an option, without its rank; `played` are its requests in a simulated queue.

    `longest` are the tokens of the longest request, in and out.
    """
    placed, times, end = found.placed, found.times, found.end_to_end_ms
    spec, load = placed.deployment.device, placed.load
    rate = found.requests_per_s
    tokens = _scaled(rate, load.output_tokens)
    rent, watts = found.usd_per_hour, found.watts
    met = _share_that_meets(played, goals)
    return ServingOption(
        rank=0,
        device=spec.name,
        devices=placed.devices,
        copies=placed.copies,
        devices_per_copy=placed.deployment.devices,
        stages=placed.deployment.stages,
        attention_copies=placed.deployment.attention_copies,
        prompt_workers=placed.prompt_workers,
        devices_per_prompt_worker=0 if placed.deployment.prompts is None else placed.deployment.prompts.devices,
        engine=placed.deployment.engine,
        engine_version=times.engine_version,
        users=round(load.users * placed.copies),
        requests_per_s=rate,
        memory=Memory(**vars(placed.fit)),
        first_token_ms=times.first_token_ms,
        output_token_ms=times.output_token_ms,
        end_to_end_ms=end,
        slow=slow_requests(found, played, _slow_percentile(goals)),
        goodput_requests_per_s=None if met is None else rate.p50 * met,
        output_tokens_per_s=tokens,
        output_tokens_per_s_per_user=_over(1e3, times.output_token_ms),
        output_tokens_per_s_per_device=_scaled(tokens, 1 / placed.devices),
        usd_per_hour=rent,
        usd_per_million_output_tokens=None if rent is None else _over(rent / 3600 * 1e6, tokens),
        usd_per_million_input_tokens=(
            None if rent is None else _over(rent / 3600 * 1e6, _scaled(rate, load.input_tokens))
        ),
        j_per_output_token=None if watts is None else _over(watts, tokens),
        price_source=spec.usd_source,
        price_date=spec.usd_date,
        best_trade_off=False,
        provenance="measured" if found.measured else "predicted",
        nearest=loads.nearest(placed),
        launch=launch_command(placed, model, longest),
        cautions=_cautions(found, loads),
    )


def slow_requests(found: Candidate, played: Played, percentile: Percentile) -> SlowRequests:
    """Return the times at a percentile: those of the typical request, by the ratios of the simulated queue."""

    def at(typical: Interval, of: Array) -> Interval:
        return _scaled(typical, float(np.percentile(of, percentile)) / typical.p50) if len(of) else typical

    return SlowRequests(
        percentile=percentile,
        first_token_ms=at(found.times.first_token_ms, played.first_token_ms),
        output_token_ms=at(found.times.output_token_ms, played.of_further_tokens),
        end_to_end_ms=at(found.end_to_end_ms, played.end_to_end_ms),
    )


def missed_limit(found: Candidate, goals: ServingGoals) -> str | None:
    """Return the first limit of rent or power that the candidate exceeds, or the goal of time that even its typical
    request may miss; None where there is none.
    """
    rent, watts = found.usd_per_hour, found.watts
    if goals.max_usd_per_hour is not None:
        if rent is None:
            return "its price is not known"
        if rent > goals.max_usd_per_hour:
            return f"costs {rent:.2f} USD per hour, {goals.max_usd_per_hour:g} are allowed"
    if goals.max_watts is not None:
        if watts is None:
            return "its power is not published"
        if watts > goals.max_watts:
            return f"may draw {watts:,.0f} W, {goals.max_watts:g} are allowed"
    return _missed_time(
        goals, found.times.first_token_ms, found.times.output_token_ms, found.end_to_end_ms, "a typical request"
    )


def missed_goal(found: ServingOption, goals: ServingGoals) -> str | None:
    """Return the first goal of time that the option may miss at the goals' percentile; None where it meets all."""
    if goals.percentile is None or goals.percentile == 50:  # the typical request
        return None
    slow = found.slow
    who = f"a request at the {goals.percentile}th percentile"
    return _missed_time(goals, slow.first_token_ms, slow.output_token_ms, slow.end_to_end_ms, who)


def _missed_time(goals: ServingGoals, first: Interval, token: Interval, end: Interval, who: str) -> str | None:
    times = (
        ("to the first token", goals.max_first_token_ms, first),
        ("for each further token", goals.max_output_token_ms, token),
        ("to the last token", goals.max_end_to_end_ms, end),
    )
    for what, limit, interval in times:
        if limit is not None and (worst := interval.high or interval.p50) > limit:
            taken = rounded(worst)
            return f"{who} may take {taken} ms {what}, {rounded(limit, 6)} ms are allowed"
    return None


def _slow_percentile(goals: ServingGoals) -> Percentile:
    return goals.percentile if goals.percentile in (90, 95, 99) else 99


def _share_that_meets(played: Played, goals: ServingGoals) -> float | None:
    if not goals.of_time:
        return None
    met = np.ones(len(played.first_token_ms), dtype=bool)
    for limit, times in (
        (goals.max_first_token_ms, played.first_token_ms),
        (goals.max_output_token_ms, played.output_token_ms),
        (goals.max_end_to_end_ms, played.end_to_end_ms),
    ):
        if limit is not None:
            met &= times <= limit
    return float(met.mean())


def _cautions(found: Candidate, loads: SimilarLoads) -> list[str]:
    placed, load = found.placed, found.placed.load
    spec, engine = placed.deployment.device, placed.deployment.engine
    cautions = []
    if load.users > placed.fit.max_users:
        cautions.append(
            f"{placed.devices} x {spec.name}: only {placed.fit.max_users * placed.copies} of "
            f"{load.users * placed.copies:.0f} requests fit at once, the others wait"
        )
    slowest_ms = found.end_to_end_ms.high
    if placed.arriving_per_s is not None and slowest_ms is not None:
        wanted = placed.arriving_per_s * slowest_ms / 1e3
        if wanted > placed.fit.max_users:
            cautions.append(
                f"{placed.devices} x {spec.name}: at the slow end of its limits requests pile up, because "
                f"{wanted * placed.copies:,.0f} would be under way and {placed.fit.max_users * placed.copies} fit"
            )
    if lacks_bfloat16(placed):
        cautions.append(f"{spec.name} has no bfloat16: the command serves in float16")
    if placed.deployment.weights_widened:
        newer = f"; {engine} does so from version 0.14 on" if engine == "vllm" and spec.before_ampere else ""
        cautions.append(f"{engine} on {spec.name} keeps weights in fp8 and computes in 16 bits{newer}")
    if spec.name not in loads.devices | shipped_predictor().model.neighbors.devices:
        cautions.append(f"no load on {spec.name} was measured: its figures follow from those of other GPUs")
    if placed.deployment.stages > 1:
        cautions.append(
            f"{placed.devices} x {spec.name}: no pipeline was measured, so nobody knows how often its limits hold; "
            f"the command is for the first of {placed.deployment.stages} hosts, and what they hand over is left out"
        )
    if placed.deployment.prompts is not None:
        known = shipped_model().first_error
        cautions.append(
            f"disaggregated serving was learned from {known.rows} loads of {known.groups} campaigns alone, so its "
            "limits are wide; handing over keys and values is not in the formula"
        )
    if not found.measured and not placed.deployment.loaded:
        batched = "single requests" if engine == "llama.cpp" else "whole batches"
        cautions.append(
            f"of {engine} on {spec.vendor}'s GPUs only {batched} were measured: how often the limits of the first "
            "token hold is not known"
        )
    return cautions


def _over(numerator: float, by: Interval) -> Interval:
    return Interval(
        p50=numerator / by.p50,
        low=None if by.high is None else numerator / by.high,
        high=None if by.low is None else numerator / by.low,
        level=by.level,
    )


def _scaled(interval: Interval, factor: float) -> Interval:
    return Interval(
        p50=interval.p50 * factor,
        low=None if interval.low is None else interval.low * factor,
        high=None if interval.high is None else interval.high * factor,
        level=interval.level,
    )
