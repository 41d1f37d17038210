"""Ranking of deployments of a language model under a load and its goals.

`recommend_serving` goes through these steps:

1. Resolve the query.
2. Plan deployments (`deployments`).
3. Predict their times (`predictor.serving.predictor`).
4. Choose the best one per device and number of devices that meets the goals, by a simulation of its queue
   (`predictor.serving.queueing`).
5. Rank what was chosen, and describe the first ones as options (`options`).
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from accel_platform.errors import InvalidInput
from accel_platform.hardware.catalog import DeviceSpec
from accel_platform.table_io.values import rounded
from accel_platform.workloads.kv_cache import Decoder
from predictor.advisor.serving.capacity import split_by_prompt_capacity, split_by_rate
from predictor.advisor.serving.deployments import (
    DeploymentPlan,
    plan_aggregated,
    plan_disaggregated,
    resolve_decoder,
    resolve_devices,
    split_by_sparse_attention,
)
from predictor.advisor.serving.options import (
    ServingCandidate,
    goodput_requests_per_s,
    make_option,
    missed_goal,
    missed_limit,
)
from predictor.advisor.serving.similar_loads import SimilarLoads
from predictor.advisor.serving.weights import command_warnings, resolve_weights
from predictor.schemas.serving import NotServed, ServingAnswer, ServingObjective, ServingQuery
from predictor.serving.engines import Engine
from predictor.serving.loads import Load
from predictor.serving.measured_loads import MeasuredLoad, version_key, versions_of
from predictor.serving.models import attends_sparsely, holds_text_alone, hub_id_of, original_of
from predictor.serving.predictor import ServingPredictor, ServingTimes, shipped_predictor
from predictor.serving.queueing import (
    LENGTH_JITTER,
    MAX_P99_OVER_MEAN,
    RequestTimes,
    Traffic,
    draw_traffic,
    lognormal_sigma,
    replay_trace,
    rescale_to_typical,
    simulate,
)
from predictor.serving.stored_weights import StoredWeights, format_of_hub_id

_LONGEST_MEASURED_SPARSE = 8192
"""Tokens of the longest measured prompts of models with sparse attention, all of GLM 5."""
_OWN_MODEL = "MODEL"
"""Stands for the folder or hub id of a config's model in commands."""


def recommend_serving(query: ServingQuery, measured: Sequence[MeasuredLoad], snapshot_id: str | None) -> ServingAnswer:
    """Rank deployments that fit and meet the goals; `measured` are the log's loads, for evidence.

    Raises NotFound for an unknown model, and InvalidInput for a model that does not generate. Likewise for an unknown
    device or quantization, for lengths beyond the model's context, and for lengths of which no distribution has the
    percentile.
    """
    name, decoder = resolve_decoder(query.model)
    weights, warnings = resolve_weights(query)
    query, length_warnings = _fit_default_lengths(_summarize_trace(query), int(decoder.context))
    warnings += length_warnings
    if len(weights.readers) == 1:
        query = query.model_copy(update={"engine": weights.readers[0]})
    if query.engine == "llama.cpp":
        _check_llama_cpp(query)
    longest = _longest_request(query, name, decoder.context)
    devices, device_warnings = resolve_devices(query.hardware)
    predictor = shipped_predictor()
    command_model = hub_id_of(name) if isinstance(query.model, str) else _OWN_MODEL
    warnings += device_warnings
    if isinstance(query.model, str) and holds_text_alone(name):
        warnings.append(f"{name} is answered for with its part for text: what it holds for images is left out.")
    warnings += _query_warnings(query, predictor, measured)
    warnings += command_warnings(query, weights.quantization, command_model)
    planned = _plan_deployments(query, decoder, devices, weights, predictor)
    loads = SimilarLoads(measured, decoder, weights.quantization)
    queues = _Queues(predictor, query, decoder.context)
    ranked, missed = _rank_candidates(
        [_candidate(plan, predicted, loads) for plan, predicted in planned.in_time], query, queues
    )
    if query.disaggregated and not any(each.plan.prompt_workers for each in ranked):
        warnings.append(_no_disaggregated_warning(planned))
    if any(each.usd_per_hour is None for each in ranked) and query.objective == "cost":
        warnings.append("Deployments without a known price come last, those of the fewest devices first.")
    served = {(each.plan.deployment.device.name, each.plan.devices) for each in ranked}
    front = _best_trade_offs(ranked)
    options = [
        make_option(
            each,
            queues.simulate(each),
            rank=rank,
            best_trade_off=id(each) in front,
            model=command_model,
            longest=longest,
            goals=query.goals,
            loads=loads,
        )
        for rank, each in enumerate(ranked[: query.limit], start=1)
    ]
    excluded = [each for each in (*planned.excluded, *missed) if (each.device, each.devices) not in served]
    return ServingAnswer(
        model=name,
        quantization=weights.quantization,
        kv_cache=query.kv_cache,
        input_tokens=query.input_tokens,
        output_tokens=query.output_tokens,
        options=options,
        options_total=len(ranked),
        excluded=_drop_repeated(excluded),
        warnings=warnings,
        snapshot_id=snapshot_id,
    )


@dataclass(frozen=True)
class _PlannedDeployments:
    """Deployments that fit and keep up with the load, and those that do not."""

    in_time: list[tuple[DeploymentPlan, ServingTimes]]
    """Plans that keep up, with the times of their typical request."""
    excluded: list[NotServed]
    disaggregated: int
    """Number of disaggregated plans that fit, whether they keep up or not."""


def _plan_deployments(
    query: ServingQuery,
    decoder: Decoder,
    devices: Sequence[DeviceSpec],
    weights: StoredWeights,
    predictor: ServingPredictor,
) -> _PlannedDeployments:
    """Return the deployments on these devices that keep up with the query's load."""
    load = Load(
        float(query.users or 1),
        float(query.input_tokens),
        float(query.output_tokens),
        cached_share=query.prefix_cached_share,
    )
    without_kernels: list[NotServed] = []
    if query.engine != "llama.cpp" and _attends_sparsely(query):
        devices, without_kernels = split_by_sparse_attention(devices)
    plans, excluded = plan_aggregated(decoder, devices, weights, query, load)
    excluded += without_kernels
    disaggregated = plan_disaggregated(decoder, devices, weights, query, load) if query.disaggregated else []
    plans += disaggregated
    if query.requests_per_s is not None:
        plans, overloaded = split_by_rate(predictor, plans, query.requests_per_s)
        excluded += overloaded
    plans = [each for each in plans if _occupies_attention(each)]
    times = predictor.predict([(each.deployment, each.load) for each in plans]) if plans else []
    in_time, late = split_by_prompt_capacity(plans, times)
    return _PlannedDeployments(in_time, [*excluded, *late], len(disaggregated))


def _attends_sparsely(query: ServingQuery) -> bool:
    return attends_sparsely(query.model if isinstance(query.model, str) else query.model.root)


def _occupies_attention(plan: DeploymentPlan) -> bool:
    """Return whether each attention copy has a user: none of fewer was measured, and the formula shares out their work.

    Disaggregated loads say nothing of that, because their copies are paced together.
    """
    return plan.deployment.prompts is not None or plan.load.users >= plan.deployment.attention_copies


def _candidate(plan: DeploymentPlan, predicted: ServingTimes, loads: SimilarLoads) -> ServingCandidate:
    """Return a plan with its measured times if this very load was measured, else with the predicted ones."""
    measured = loads.times(plan)
    return ServingCandidate(plan, measured or predicted, measured=measured is not None)


def _no_disaggregated_warning(planned: _PlannedDeployments) -> str:
    """Return why no disaggregated plan is an option."""
    fitting = planned.disaggregated
    in_time = sum(plan.deployment.prompts is not None for plan, _ in planned.in_time)
    if not fitting:
        reason = "none fits, or none of these devices is an NVIDIA GPU with vllm, sglang or trtllm"
    elif not in_time:
        reason = f"none of the {fitting} that fit keeps up"
    else:
        reason = f"of the {fitting} that fit {fitting - in_time} do not keep up, and {in_time} may miss a goal"
    return f"No deployment with workers for prompts serves it so: {reason}."


def _drop_repeated(excluded: Sequence[NotServed]) -> list[NotServed]:
    """Return the first exclusion of each device, number of devices and cause; others differ only in figures."""
    first: dict[tuple[str, int, str], NotServed] = {}
    for each in excluded:
        first.setdefault((each.device, each.devices, each.cause), each)
    return list(first.values())


def _check_llama_cpp(query: ServingQuery) -> None:
    """Raise InvalidInput for what llama.cpp does not do, or was not measured doing."""
    if query.kv_cache == "fp8":
        raise InvalidInput("llama.cpp keeps no fp8 cache: leave `kv_cache` out, or give bfloat16.")
    if query.disaggregated:
        raise InvalidInput("llama.cpp computes prompts where it generates: leave out `disaggregated`, or `engine`.")
    if query.requests_per_s is not None:
        by_name = isinstance(query.model, str) and format_of_hub_id(query.model) is not None
        other = f", or name {original_of(str(query.model))}, which other engines read" if by_name else ""
        raise InvalidInput(
            f"Of llama.cpp single requests alone were measured: give `users`, one for each device at most{other}."
        )


def _summarize_trace(query: ServingQuery) -> ServingQuery:
    """Return the query with the mean lengths of its trace, and its request rate where it has arrivals."""
    if query.trace is None:
        return query
    arrivals = [request.arrival_s for request in query.trace if request.arrival_s is not None]
    return query.model_copy(
        update={
            "input_tokens": round(np.mean([request.input_tokens for request in query.trace])),
            "output_tokens": round(np.mean([request.output_tokens for request in query.trace])),
            "requests_per_s": (len(arrivals) - 1) / (max(arrivals) - min(arrivals))
            if arrivals
            else query.requests_per_s,
        }
    )


def _fit_default_lengths(query: ServingQuery, context: int) -> tuple[ServingQuery, list[str]]:
    """Return the query with lengths that the model takes for those that nobody gave, and a warning if they are others.

    `context` is the most tokens that it takes, 0 if unknown.
    """
    into, out = query.input_tokens, query.output_tokens
    given = query.model_fields_set
    is_open = {of: given.isdisjoint({of, f"{of}_p99", "trace"}) for of in ("input_tokens", "output_tokens")}
    if not context or into + out <= context:
        return query, []
    if all(is_open.values()):
        out = min(out, context // 4)
    if is_open["input_tokens"]:
        into = context - out
    elif is_open["output_tokens"]:
        out = context - into
    if min(into, out) < 1 or into + out > context:
        return query, []
    warning = f"Not all lengths were given: answering for {into:,} tokens in and {out:,} out, {context:,} at most."
    return query.model_copy(update={"input_tokens": into, "output_tokens": out}), [warning]


def _longest_request(query: ServingQuery, model: str, context: float) -> int:
    """Return the tokens of the longest request, input and output together, up to the 99th percentile."""
    for of in ("input_tokens", "output_tokens"):
        mean, p99 = getattr(query, of), getattr(query, f"{of}_p99")
        if p99 is not None and math.isnan(lognormal_sigma(mean, p99)):
            raise InvalidInput(
                f"`{of}_p99` must be 1 to {rounded(MAX_P99_OVER_MEAN)} times `{of}` ({mean:,}), and is {p99:,}."
            )
    lengths = [(query.input_tokens_p99 or query.input_tokens, query.output_tokens_p99 or query.output_tokens)]
    if query.trace is not None:
        lengths = [(request.input_tokens, request.output_tokens) for request in query.trace]
    into, out = max(lengths, key=sum)
    if context and into + out > context:
        raise InvalidInput(
            f"{into:,} tokens in and {out:,} out are {into + out:,}: {model} takes {context:,.0f} at most. Ask for "
            "fewer, or give its config with the `max_position_embeddings` that rope scaling reaches."
        )
    return into + out


def _query_warnings(query: ServingQuery, predictor: ServingPredictor, measured: Sequence[MeasuredLoad]) -> list[str]:
    """Return warnings about what the query leaves open, and about an engine version that was never measured."""
    warnings = []
    if query.users is None and query.requests_per_s is None:
        warnings.append("Neither `users` nor `requests_per_s` given: answering for one user.")
    if query.trace is None and not query.input_tokens_p99 and not query.output_tokens_p99:
        warnings.append(
            "All requests are taken for equally long: `input_tokens_p99` and `output_tokens_p99`, or `trace`, tell how "
            "far the slowest are from the typical one."
        )
    if _attends_sparsely(query) and query.input_tokens > _LONGEST_MEASURED_SPARSE:
        warnings.append(
            "Times count attention to the tokens that the model's index chooses. No prompt of over "
            f"{_LONGEST_MEASURED_SPARSE:,} tokens was measured with such attention."
        )
    if query.prefix_cached_share:
        warnings.append("No load with a prefix cache was measured: its share of the prompts' work is taken out.")
    if query.engine is not None and query.engine_version is not None:
        known = versions_of(query.engine, measured) | predictor.model.neighbors.versions_of(query.engine)
        warnings += _version_warnings(query.engine, query.engine_version, known)
    return warnings


def _version_warnings(engine: Engine, version: str, measured: Collection[str]) -> list[str]:
    """Return a warning about an engine's version, empty if it is one of the `measured` ones."""
    known = sorted(measured, key=version_key)
    if not known:
        return [f"No measured load says its version of {engine}."]
    if version in known:
        return []
    if version_key(version) > version_key(known[-1]):
        return [
            f"{engine} {version} is newer than {known[-1]}, the newest that was measured: its times may be other ones."
        ]
    close = difflib.get_close_matches(version, known, n=3) or known[-3:]
    return [
        f"No load of {engine} {version} was measured: its times follow from those of other versions. Measured are "
        f"{', '.join(close)} and others."
        if len(known) > len(close)
        else f"No load of {engine} {version} was measured, only of {', '.join(close)}: its times follow from those."
    ]


def _rank_candidates(
    candidates: Sequence[ServingCandidate], query: ServingQuery, queues: _Queues
) -> tuple[list[ServingCandidate], list[NotServed]]:
    """Return the best candidate per device and number of devices that meets all goals, ranked, and what misses one,
    nearest first.

    A disaggregated candidate is chosen beside the aggregated one, because its wide limits would seldom make it the
    best. Candidates are tried in order until one meets the goals. One that only its slow requests keep from a goal is
    nearer than any that its typical request keeps from it.
    """
    met: dict[tuple[str, int, bool], ServingCandidate] = {}
    missed: list[tuple[bool, float, NotServed]] = []
    for each in sorted(candidates, key=lambda each: _candidate_key(each, query.objective)):
        device, devices = each.plan.deployment.device.name, each.plan.devices
        kind = device, devices, each.plan.deployment.prompts is not None
        if kind in met:
            continue
        always = miss = missed_limit(each, query.goals)
        if miss is None and query.goals.of_slow_requests:
            miss = missed_goal(each, queues.simulate(each), query.goals)
        if miss is None:
            met[kind] = each
            continue
        reason = NotServed(device=device, devices=devices, cause="goal", reason=miss.reason)
        missed.append((always is not None, miss.excess, reason))
    nearest_first = [reason for *_, reason in sorted(missed, key=lambda miss: miss[:2])]
    return sorted(met.values(), key=lambda chosen: _rank_key(chosen, query, queues)), nearest_first


class _Queues:
    """Simulated queues of candidates. Each is simulated once, where its times are asked for, in milliseconds."""

    def __init__(self, predictor: ServingPredictor, query: ServingQuery, context: float) -> None:
        self._predictor = predictor
        self._query = query
        self._context = context
        self._simulated: dict[int, tuple[ServingCandidate, RequestTimes]] = {}

    def simulate(self, candidate: ServingCandidate) -> RequestTimes:
        """Return the times of the candidate's requests."""
        if id(candidate) not in self._simulated:
            # The candidate is kept, so that no other one gets its id.
            times = _simulate_queue(self._predictor, candidate, self._query, self._context)
            self._simulated[id(candidate)] = candidate, times
        return self._simulated[id(candidate)][1]


def _simulate_queue(
    predictor: ServingPredictor, candidate: ServingCandidate, query: ServingQuery, context: float
) -> RequestTimes:
    """Return the times of simulated requests, scaled so that requests of mean length take the predicted times.

    Copies that share workers for prompts are simulated together, because their prompts wait for each other.
    """
    placed = candidate.plan
    together = 1 if placed.deployment.prompts is None else placed.copies
    rate = None if placed.arriving_per_s is None else placed.arriving_per_s * together
    users = max(1, round(placed.load.users * together))
    pace = predictor.pace(placed.deployment, placed.load, placed.most_running, candidate.times, together)
    # The room is for as many requests as fit, even if their random lengths are a little over the mean.
    room_tokens = (1 + LENGTH_JITTER) * together * placed.fit.max_users * (query.input_tokens + query.output_tokens)
    pace = replace(pace, room_tokens=room_tokens)
    plain = draw_traffic(users, rate, (query.input_tokens, None), (query.output_tokens, None), context)
    typical = simulate(pace, plain)
    traffic: Traffic = plain
    if query.trace is not None:
        requests = [(r.arrival_s, r.input_tokens, r.output_tokens) for r in query.trace]
        traffic = replay_trace(users, rate, requests, placed.copies // together)
    elif query.input_tokens_p99 or query.output_tokens_p99:
        traffic = draw_traffic(
            users, rate, (query.input_tokens, query.input_tokens_p99), (query.output_tokens, query.output_tokens_p99),
            context,
        )  # fmt: skip
    times = typical if traffic is plain else simulate(pace, traffic)
    predicted = candidate.times
    return rescale_to_typical(times, typical, predicted.first_token_ms.p50, predicted.output_token_ms.p50)


def _candidate_key(candidate: ServingCandidate, objective: ServingObjective) -> tuple[float, float]:
    """Return the sort key of candidates of one device and number of devices, by the unfavorable limit; best first."""
    end = candidate.end_to_end_ms.high or candidate.end_to_end_ms.p50
    if objective == "latency":
        return end, end
    rate = candidate.requests_per_s.low or candidate.requests_per_s.p50
    if objective == "cost" and candidate.usd_per_hour is not None:
        return candidate.usd_per_hour / rate, end
    # On the same devices the highest rate takes the least energy per token. In an open loop the rate is the same for
    # all, so the fastest comes first.
    return -rate, end


def _rank_key(chosen: ServingCandidate, query: ServingQuery, queues: _Queues) -> tuple[float, ...]:
    """Return the sort key of ranks: the unfavorable limit of the objective, then of cost or time; best first.

    Candidates without a price come last under the objective cost, the one of fewest devices first.
    """
    end = chosen.end_to_end_ms.high or chosen.end_to_end_ms.p50
    cost = chosen.usd_per_million_output_tokens
    usd = math.inf if cost is None else cost.high or cost.p50
    if query.objective == "latency":
        return end, usd
    if query.objective == "throughput":
        return -(chosen.output_tokens_per_s.low or chosen.output_tokens_per_s.p50), usd
    if query.objective == "goodput":
        return -round(goodput_requests_per_s(chosen, queues.simulate(chosen), query.goals) or 0.0, 3), usd
    if query.objective == "energy":
        energy = chosen.j_per_output_token
        return (math.inf if energy is None else energy.high or energy.p50), usd
    return (usd, end) if cost is not None else (usd, chosen.plan.devices, end)


def _best_trade_offs(ranked: Sequence[ServingCandidate]) -> set[int]:
    """Return the ids of the candidates that trade cost for time best (the Pareto front)."""
    costs = [
        (cost.p50, each.end_to_end_ms.p50, id(each)) for each in ranked if (cost := each.usd_per_million_output_tokens)
    ]
    fastest, front = math.inf, set()
    for _, end_ms, identity in sorted(costs, key=lambda item: item[:2]):
        if end_ms < fastest:
            fastest = end_ms
            front.add(identity)
    return front
