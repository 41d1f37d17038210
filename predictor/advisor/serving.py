"""Answers about serving: deployments of a model on devices of the spec sheet, ranked under a load and its goals."""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from accel_platform.errors import InvalidInput, NotFound
from accel_platform.hardware.catalog import DeviceSpec, catalog, find_spec, form_factor_caution
from accel_platform.workloads.kv_cache import Decoder
from accel_platform.workloads.model_catalog import resolve_model
from predictor.data.config_cost import estimate_config_cost
from predictor.data.traced_models import traced_decoder
from predictor.schemas.requests import ModelConfig
from predictor.schemas.responses import Interval
from predictor.schemas.serving import (
    MAX_USERS,
    MeasuredNearby,
    Memory,
    NotServed,
    ServingAnswer,
    ServingGoals,
    ServingObjective,
    ServingOption,
    ServingQuery,
)
from predictor.serving.loads import BATCHED, LOADED, Deployment, Engine, Load, find_served_model, resolve_quantization
from predictor.serving.measured_loads import MeasuredLoad
from predictor.serving.memory import MemoryFit, memory_fit
from predictor.serving.predictor import ServingPredictor, ServingTimes, shipped_predictor

_COUNTS = (1, 2, 4, 8)
_NEAREST = 3
_ROUNDS = 40
"""Rounds in which users and the time of a request settle for a request rate."""
_SETTLED = 0.02
_LAUNCH = {
    "vllm": "vllm serve {model} --tensor-parallel-size {devices} --max-num-seqs {users} --max-model-len {length}",
    "sglang": "python -m sglang.launch_server --model-path {model} --tp {devices} --max-running-requests {users} "
    "--context-length {length}",
    "llama.cpp": "llama-server -m {model}.gguf -ngl 999 --parallel {users} --ctx-size {context}",
    "trtllm": "trtllm-serve {model} --tp_size {devices} --max_batch_size {users} --max_seq_len {length}",
}


@dataclass(frozen=True)
class _Candidate:
    """A deployment that fits, the users it serves, and their times."""

    deployment: Deployment
    load: Load
    fit: MemoryFit
    times: ServingTimes


def recommend_serving(query: ServingQuery, measured: Sequence[MeasuredLoad], snapshot_id: str | None) -> ServingAnswer:
    """Rank deployments that fit and meet the goals; `measured` are the log's loads, for evidence.

    Raises NotFound for an unknown model, InvalidInput for a model that does not generate, an unknown device or
    quantization, and lengths beyond the model's context.
    """
    name, decoder = _resolve(query.model)
    quantization = resolve_quantization(query.quantization)
    length = query.input_tokens + query.output_tokens
    if decoder.context and length > decoder.context:
        raise InvalidInput(
            f"{query.input_tokens:,} tokens in and {query.output_tokens:,} out are {length:,}: {name} takes "
            f"{decoder.context:,.0f} at most. Ask for fewer."
        )
    devices, warnings = _devices(query.hardware)
    load = Load(float(query.users or 1), float(query.input_tokens), float(query.output_tokens))
    if query.users is None and query.requests_per_s is None:
        warnings.append("Neither users nor requests_per_s given: answering for one user.")
    excluded: list[NotServed] = []
    fitting = _fitting(decoder, devices, quantization, query, load, excluded)
    predictor = shipped_predictor()
    if query.requests_per_s is None:
        loads = [load] * len(fitting)
    else:
        loads, fitting = _loads_at_rate(predictor, fitting, load, query.requests_per_s, excluded)
    times = predictor.predict([(d, at) for (d, _), at in zip(fitting, loads, strict=True)]) if fitting else []
    found = [_Candidate(d, at, fit, t) for (d, fit), at, t in zip(fitting, loads, times, strict=True)]
    options = [_option(candidate, name, measured) for candidate in found]
    met = []
    for option, candidate in zip(options, found, strict=True):
        missed = _missed_goal(option, candidate.deployment, query.goals)
        if missed is None:
            met.append(option)
        else:
            excluded.append(NotServed(device=option.device, devices=option.devices, cause="goal", reason=missed))
    ranked = _ranked(met, query.objective)
    served = {(option.device, option.devices) for option in ranked}
    left_out = {(e.device, e.devices, e.reason): e for e in excluded if (e.device, e.devices) not in served}
    if any(option.usd_per_hour is None for option in ranked) and query.objective == "cost":
        warnings.append("Deployments without a known price come last.")
    return ServingAnswer(
        model=name,
        quantization=quantization,
        input_tokens=query.input_tokens,
        output_tokens=query.output_tokens,
        options=_numbered(ranked),
        excluded=list(left_out.values()),
        warnings=warnings,
        snapshot_id=snapshot_id,
    )


def _resolve(model: str | ModelConfig) -> tuple[str, Decoder]:
    """Return the model's name and shape. Raises NotFound, and InvalidInput for one that does not generate."""
    if isinstance(model, ModelConfig):
        cost = estimate_config_cost(model.root)
        name, decoder = cost.architecture, cost.decoder
    else:
        name, decoder = model, find_served_model(model)
        if decoder is None:
            try:
                spec = resolve_model(model)
            except NotFound as error:
                raise NotFound(f"{error} Any other model: give its config (config.json of its hub page).") from error
            name, decoder = spec.model_id, traced_decoder(spec)
    if decoder is None:
        raise InvalidInput(f"{name} does not generate text, or its config does not say what it caches.")
    return name, decoder


def _devices(names: Sequence[str] | None) -> tuple[list[DeviceSpec], list[str]]:
    """Return the devices to choose among, and how their names were understood. Raises InvalidInput."""
    if names is None:
        return [spec for spec in catalog() if spec.kind == "gpu" and spec.link_gb_s and spec.memory_gib], []
    found = []
    for name in names:
        spec = find_spec(name)
        if spec is None:
            known = [device.name for device in catalog() if device.kind == "gpu"]
            close = [k for k in known if name.casefold() in k.casefold()][:3] or difflib.get_close_matches(name, known)
            hint = f"Did you mean {', '.join(close)}?" if close else f"Names are such as {known[0]}."
            raise InvalidInput(f"The spec sheet has no GPU called {name!r}. {hint}")
        found.append(spec)
    return found, [*filter(None, map(form_factor_caution, names))]


def _fitting(
    decoder: Decoder,
    devices: Sequence[DeviceSpec],
    quantization: str,
    query: ServingQuery,
    load: Load,
    excluded: list[NotServed],
) -> list[tuple[Deployment, MemoryFit]]:
    """Return the deployments that fit and can be priced; the others are added to `excluded`."""
    found = []
    for device in devices:
        left_out = partial(NotServed, device=device.name)
        engines = _engines_on(device, query.engine)
        if not engines:
            measured = f"{query.engine} was not measured" if query.engine else "none of these engines was measured"
            reason = f"{measured} on a {device.kind.upper()} of {device.vendor}"
            excluded.append(left_out(devices=1, cause="unsupported", reason=reason))
            continue
        if not device.bandwidth_gb_s or not device.peak_fp16_tensor_tflops:
            reason = "its bandwidth or its rate in 16 bits is not published"
            excluded.append(left_out(devices=1, cause="unsupported", reason=reason))
            continue
        for count in (count for count in _COUNTS if count <= query.goals.max_devices):
            if count > 1 and not device.link_gb_s:
                break
            deployment = Deployment(decoder, device, engines[0], quantization, count)
            fit = memory_fit(deployment, load)
            if fit is None:
                reason = "its memory is not published"
                excluded.append(left_out(devices=count, cause="unsupported", reason=reason))
                break
            if not fit.fits:
                reason = (
                    f"{fit.weights_gib:,.3g} GiB of weights and {fit.cache_per_user_gib:.2g} GiB of cache per request "
                    f"do not fit into {fit.limit_gib - fit.working_gib:,.3g} GiB"
                )
                excluded.append(left_out(devices=count, cause="does_not_fit", reason=reason))
                continue
            found += [(replace(deployment, engine=engine), fit) for engine in engines]
    return found


def _engines_on(device: DeviceSpec, engine: Engine | None) -> tuple[Engine, ...]:
    """Return the engines to choose among: the one asked for, else those measured request by request, else vLLM."""
    if device.kind != "gpu":
        return ()
    loaded, batched = LOADED.get(device.vendor, ()), BATCHED.get(device.vendor, ())
    if engine is None:
        return loaded or batched[:1]
    return (engine,) if engine in (*loaded, *batched) else ()


def _loads_at_rate(
    predictor: ServingPredictor,
    fitting: Sequence[tuple[Deployment, MemoryFit]],
    load: Load,
    requests_per_s: float,
    excluded: list[NotServed],
) -> tuple[list[Load], list[tuple[Deployment, MemoryFit]]]:
    """Return the users under way at a request rate, by Little's law, and the deployments that keep up with it.

    Users under way = requests per second times seconds of a request, which grow with the users.
    """
    users = np.ones(len(fitting))
    for _ in range(_ROUNDS):
        loads = [replace(load, users=float(n)) for n in users]
        cells = [(d, at) for (d, _), at in zip(fitting, loads, strict=True)]
        times = predictor.predict(cells) if cells else []
        wanted = np.array([requests_per_s * _end_to_end(t, load).p50 / 1e3 for t in times])
        # Halfway, because a step in the trees would let it swing for ever.
        settled = np.sqrt(users * np.clip(wanted, 1.0, 2.0 * MAX_USERS))
        done, users = bool(np.all(np.abs(settled / users - 1) < _SETTLED)), settled
        if done:
            break
    kept_loads, kept = [], []
    for (deployment, fit), n in zip(fitting, users, strict=True):
        if n > min(MAX_USERS, fit.max_users):
            excluded.append(
                NotServed(
                    device=deployment.device.name,
                    devices=deployment.devices,
                    cause="overloaded",
                    reason=f"{requests_per_s:g} requests/s would pile up: its memory holds {fit.max_users} at once",
                )
            )
            continue
        kept_loads.append(replace(load, users=float(round(n))))
        kept.append((deployment, fit))
    return kept_loads, kept


def _end_to_end(times: ServingTimes, load: Load) -> Interval:
    """Return the time to the last token. Both parts err alike at worst, so their limits add up."""
    first, token = times.first_token_ms, times.output_token_ms
    more = load.output_tokens - 1
    return Interval(
        p50=first.p50 + more * token.p50,
        low=None if first.low is None or token.low is None else first.low + more * token.low,
        high=None if first.high is None or token.high is None else first.high + more * token.high,
        level=None if first.level is None or token.level is None else min(first.level, token.level),
    )


def _option(candidate: _Candidate, model: str, measured: Sequence[MeasuredLoad]) -> ServingOption:
    deployment, load, fit = candidate.deployment, candidate.load, candidate.fit
    nearest = _nearest(deployment, load, measured)
    same = [row for row in nearest if _distance(row, deployment, load) == 0]
    times, provenance = candidate.times, "predicted"
    if same:
        times = ServingTimes(
            Interval(p50=float(np.median([row.first_ms for row in same]))),
            Interval(p50=float(np.median([row.token_ms for row in same]))),
        )
        provenance = "measured"
    end = _end_to_end(times, load)
    tokens = load.users * load.output_tokens * 1e3
    rate = Interval(
        p50=tokens / end.p50,
        low=None if end.high is None else tokens / end.high,
        high=None if end.low is None else tokens / end.low,
        level=end.level,
    )
    spec = deployment.device
    rent = None if spec.usd_per_hour is None else spec.usd_per_hour * deployment.devices
    cautions = []
    if load.users > fit.max_users:
        cautions.append(
            f"{deployment.devices} x {spec.name}: only {fit.max_users} of {load.users:.0f} requests fit at once, the "
            "others wait"
        )
    if not any(row.deployment.device == spec for row in measured):
        cautions.append(f"no load was measured on {spec.name}: its figures follow from those of other GPUs")
    if provenance == "predicted" and not deployment.loaded:
        cautions.append(
            f"of {deployment.engine} on {spec.vendor}'s GPUs only whole batches were measured: how often the limits of "
            "the first token hold is not known"
        )
    return ServingOption(
        rank=0,
        device=spec.name,
        devices=deployment.devices,
        engine=deployment.engine,
        users=round(load.users),
        memory=Memory(**vars(fit)),
        first_token_ms=times.first_token_ms,
        output_token_ms=times.output_token_ms,
        end_to_end_ms=end,
        output_tokens_per_s=rate,
        usd_per_hour=rent,
        usd_per_million_output_tokens=None if rent is None else _usd_per_million(rent, rate),
        price_source=spec.usd_source,
        price_date=spec.usd_date,
        best_trade_off=False,
        provenance=provenance,
        nearest=[_nearby(row) for row in nearest[:_NEAREST]],
        launch=_LAUNCH[deployment.engine].format(
            model=model,
            devices=deployment.devices,
            users=min(fit.max_users, max(1, round(load.users))),
            length=int(load.input_tokens + load.output_tokens),
            context=int(load.input_tokens + load.output_tokens) * min(fit.max_users, max(1, round(load.users))),
        ),
        cautions=cautions,
    )


def _usd_per_million(usd_per_hour: float, tokens_per_s: Interval) -> Interval:
    dollars = usd_per_hour / 3600 * 1e6
    return Interval(
        p50=dollars / tokens_per_s.p50,
        low=None if tokens_per_s.high is None else dollars / tokens_per_s.high,
        high=None if tokens_per_s.low is None else dollars / tokens_per_s.low,
        level=tokens_per_s.level,
    )


def _nearest(deployment: Deployment, load: Load, measured: Sequence[MeasuredLoad]) -> list[MeasuredLoad]:
    """Return the measured loads of this model in the same quantization, the nearest first."""
    like = [
        row
        for row in measured
        if row.deployment.decoder == deployment.decoder and row.deployment.quantization == deployment.quantization
    ]
    return sorted(like, key=lambda row: (_distance(row, deployment, load), row.event_id))


def _distance(row: MeasuredLoad, deployment: Deployment, load: Load) -> float:
    """Return the sum of the ratios' logs, and 1 for another engine and 2 for another device; 0 for the same load."""
    ratios = (
        (row.load.users, load.users),
        (row.load.input_tokens, load.input_tokens),
        (row.load.output_tokens, load.output_tokens),
        (row.deployment.devices, deployment.devices),
    )
    return (
        sum(abs(math.log(a / b)) for a, b in ratios)
        + (row.deployment.engine != deployment.engine)
        + 2 * (row.deployment.device != deployment.device)
        + 2 * (row.load.batch != load.batch or math.isnan(row.first_ms))
        + (row.deployment.attention_copies != deployment.attention_copies)
    )


def _nearby(row: MeasuredLoad) -> MeasuredNearby:
    deployment, load = row.deployment, row.load
    return MeasuredNearby(
        event_id=row.event_id,
        model=row.model,
        device=deployment.device.name,
        devices=deployment.devices,
        engine=deployment.engine,
        engine_version=row.engine_version,
        quantization=deployment.quantization,
        users=round(load.users),
        input_tokens=round(load.input_tokens),
        output_tokens=round(load.output_tokens),
        batch=load.batch,
        first_token_ms=None if math.isnan(row.first_ms) else row.first_ms,
        output_token_ms=row.token_ms,
    )


def _missed_goal(option: ServingOption, deployment: Deployment, goals: ServingGoals) -> str | None:
    """Return the first goal that the option may miss, with its figure; None where it meets all."""
    times = (
        ("first token", goals.max_first_token_ms, option.first_token_ms),
        ("each further token", goals.max_output_token_ms, option.output_token_ms),
        ("last token", goals.max_end_to_end_ms, option.end_to_end_ms),
    )
    for what, limit, interval in times:
        if limit is not None and (worst := interval.high or interval.p50) > limit:
            return f"may take {worst:,.3g} ms to the {what}, {limit:,.4g} ms are allowed".replace(
                "to the each", "for each"
            )
    if goals.max_usd_per_hour is not None:
        if option.usd_per_hour is None:
            return "its price is not known"
        if option.usd_per_hour > goals.max_usd_per_hour:
            return f"costs {option.usd_per_hour:.2f} USD per hour, {goals.max_usd_per_hour:g} are allowed"
    if goals.max_watts is not None:
        if deployment.device.tdp_w is None:
            return "its power is not published"
        if (watts := deployment.device.tdp_w * deployment.devices) > goals.max_watts:
            return f"may draw {watts:,.0f} W, {goals.max_watts:g} are allowed"
    return None


def _numbered(ranked: Sequence[ServingOption]) -> list[ServingOption]:
    """Return the options with their ranks, and which of them trade cost for time best (the Pareto front)."""
    cost = {id(o): o.usd_per_million_output_tokens.p50 for o in ranked if o.usd_per_million_output_tokens}
    fastest, front = math.inf, set()
    for option in sorted((o for o in ranked if id(o) in cost), key=lambda o: (cost[id(o)], o.end_to_end_ms.p50)):
        if option.end_to_end_ms.p50 < fastest:
            fastest = option.end_to_end_ms.p50
            front.add(id(option))
    return [
        option.model_copy(update={"rank": i, "best_trade_off": id(option) in front})
        for i, option in enumerate(ranked, start=1)
    ]


def _ranked(options: Sequence[ServingOption], objective: ServingObjective) -> list[ServingOption]:
    """Return the best engine of each device and number of devices, the best first, by the unfavorable end."""

    def key(option: ServingOption) -> tuple[float, float]:
        end = option.end_to_end_ms.high or option.end_to_end_ms.p50
        if objective == "latency":
            return end, end
        if objective == "throughput":
            return -(option.output_tokens_per_s.low or option.output_tokens_per_s.p50), end
        cost = option.usd_per_million_output_tokens
        return (math.inf if cost is None else cost.high or cost.p50), end

    best: dict[tuple[str, int], ServingOption] = {}
    for option in sorted(options, key=key):
        best.setdefault((option.device, option.devices), option)
    return list(best.values())
