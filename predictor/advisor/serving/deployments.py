"""Deployments to choose among: a model on devices of the spec sheet that fit and can be priced, under their load."""

from __future__ import annotations

import difflib
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial

import numpy as np

from accel_platform.errors import InvalidInput, NotFound
from accel_platform.hardware.catalog import DeviceSpec, catalog, find_spec, form_factor_caution
from accel_platform.table_io.values import rounded
from accel_platform.workloads.kv_cache import Decoder
from accel_platform.workloads.model_catalog import known_models, resolve_model
from predictor.data.config_cost import estimate_config_cost
from predictor.data.traced_models import traced_decoder
from predictor.schemas.requests import ModelConfig
from predictor.schemas.serving import MAX_USERS, NotServed, ServingQuery
from predictor.serving.loads import (
    BATCHED,
    LOADED,
    ONE_MEASURED,
    Deployment,
    Engine,
    Load,
    PromptWorkers,
    fp8_computed_in,
)
from predictor.serving.memory import MemoryFit, memory_fit
from predictor.serving.models import find_served_model, served_models
from predictor.serving.predictor import ServingPredictor, ServingTimes

_PER_HOST = 8
_LAYOUTS = ((1, 1), (1, 2), (1, 4), (1, _PER_HOST), (2, 2 * _PER_HOST), (4, 4 * _PER_HOST))
"""Hosts and devices of one copy: a pipeline over full hosts where one is too small."""
_SIZES = tuple(devices for hosts, devices in _LAYOUTS if hosts == 1)
_POOL = (*range(1, 9), 12, 16, 24)
"""Workers of a kind to try, where prompts are computed apart."""


@dataclass(frozen=True)
class Placed:
    """Copies of a deployment that fits, and the load of each copy."""

    deployment: Deployment
    copies: int
    load: Load
    fit: MemoryFit
    arriving_per_s: float | None = None
    """Requests that arrive at each copy; None where users ask again when their answer is there."""

    @property
    def prompt_workers(self) -> int:
        """Engines that compute prompts for all copies; 0 where the copies compute them."""
        prompts = self.deployment.prompts
        return 0 if prompts is None else int(prompts.per_copy * self.copies)

    @property
    def devices(self) -> int:
        """Devices of all copies, and of workers for prompts."""
        prompts = self.deployment.prompts
        more = 0 if prompts is None else prompts.devices * self.prompt_workers
        return self.deployment.devices * self.copies + more

    @property
    def most_running(self) -> int:
        """Requests that a copy may run at once: where they arrive at random, more than are under way in the mean."""
        users = max(1, round(self.load.users))
        return max(1, min(self.fit.max_users, users if self.arriving_per_s is None else 4 * users + 64))


def resolve_decoder(model: str | ModelConfig) -> tuple[str, Decoder]:
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
                served = served_models()
                names = [*served, *(known.model_id for known in known_models() if known.modality == "text")]
                close = difflib.get_close_matches(model.casefold().rpartition("/")[2], names, n=3)
                hint = f"Did you mean {', '.join(close)}?" if close else f"Known: {', '.join(served[:5])}, ..."
                raise NotFound(
                    f"No language model is called {model!r}. {hint} Any other: give its config (config.json of its "
                    "hub page)."
                ) from error
            name, decoder = spec.model_id, traced_decoder(spec)
    if decoder is None:
        given = "--config FILE" if isinstance(model, ModelConfig) else name
        raise InvalidInput(
            f"{name} does not generate text, or its config does not say what it caches: it cannot be served. "
            f"`accel recommend {given}` answers for single batches."
        )
    return name, decoder


def resolve_devices(names: Sequence[str] | None) -> tuple[list[DeviceSpec], list[str]]:
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


def place(
    decoder: Decoder, devices: Sequence[DeviceSpec], quantization: str, query: ServingQuery, load: Load,
) -> tuple[list[Placed], list[NotServed]]:  # fmt: skip
    """Return the deployments that fit and can be priced, with each number of copies, and what was left out."""
    found: list[Placed] = []
    excluded: list[NotServed] = []
    for device in devices:
        engines = _engines_for(decoder, device, quantization, query.engine)
        reason = _unsupported_reason(device, query.engine, quantization, engines)
        if reason is not None:
            excluded.append(NotServed(device=device.name, devices=1, cause="unsupported", reason=reason))
            continue
        one = Deployment(
            decoder,
            device,
            engines[0],
            quantization,
            cache_type=query.kv_cache,
            engine_version=query.engine_version,
        )
        fitting, too_small = _sizes_that_fit(one, query.goals.max_devices, load)
        excluded += too_small
        found += [
            Placed(way, copies, load, fit)
            for size in fitting
            for engine in engines
            for way in _ways(replace(size, engine=engine))
            if (fit := memory_fit(way, load)) is not None and fit.fits
            for copies in _copies(size.devices, query, load)
        ]
    if query.requests_per_s is not None:
        return found, excluded
    found = [replace(each, load=replace(load, users=load.users / each.copies)) for each in found]
    excluded += [
        NotServed(
            device=each.deployment.device.name,
            devices=each.devices,
            cause="unsupported",
            reason=f"of {each.deployment.engine} single requests alone were measured: a copy answers for one user",
        )
        for each in found
        if not _was_measured(each)
    ]
    return [each for each in found if _was_measured(each)], excluded


def _was_measured(placed: Placed) -> bool:
    """Return whether loads like this were measured with the engine: of llama.cpp no user has others beside him."""
    return placed.deployment.engine != "llama.cpp" or placed.load.users <= 1


def _unsupported_reason(
    device: DeviceSpec, engine: Engine | None, quantization: str, engines: tuple[Engine, ...]
) -> str | None:
    """Return why a device serves no model with the engine, or with any where None is asked for; None where it may.

    `engines` are those to choose among there, as `_engines_for` has them.
    """
    if engine == "trtllm" and device.before_ampere:
        return "trtllm supports no GPU older than Ampere"
    if not _engines_on(device, engine):
        measured = f"{engine} was not measured" if engine else "none of these engines was measured"
        return f"{measured} on a {device.kind.upper()} of {device.vendor}"
    known = ONE_MEASURED.get(device.vendor, device.name)
    if known != device.name:
        return f"of {device.vendor}'s GPUs only the {known} was measured, which tells nothing of others"
    if not engines:
        who = f"{engine} does not widen" if engine else "no engine widens"
        return f"it computes nothing in {quantization}, and {who} such weights there"
    if not device.bandwidth_gb_s or not device.peak_fp16_tensor_tflops:
        return "its bandwidth or its rate in 16 bits is not published"
    return None


def _sizes_that_fit(one: Deployment, most_devices: int, load: Load) -> tuple[list[Deployment], list[NotServed]]:
    """Return the copy on as many devices as it fits into, and why it fits into no fewer.

    Of a model that fits into one host there is no pipeline over several.
    """
    fitting: list[Deployment] = []
    too_small: list[NotServed] = []
    for stages, count in _LAYOUTS:
        if count > most_devices or (count > 1 and not one.device.link_gb_s):
            break
        size = replace(one, devices=count, stages=stages)
        if stages > 1 and (fitting or not size.loaded):
            break
        left_out = partial(NotServed, device=one.device.name, devices=count)
        fit = memory_fit(size, load)
        if fit is None:
            too_small.append(left_out(cause="unsupported", reason="its memory is not published"))
            break
        if fit.fits:
            fitting.append(size)
            continue
        reason = (
            f"{rounded(fit.weights_gib)} GiB of weights and {rounded(fit.cache_per_user_gib, 2)} GiB of "
            f"cache per request do not fit into {rounded(fit.limit_gib - fit.working_gib)} GiB"
        )
        if size.loaded and count == _PER_HOST and most_devices < 2 * count:
            reason += f"; max_devices {2 * count} would allow a pipeline over two hosts"
        too_small.append(left_out(cause="does_not_fit", reason=reason))
    return fitting, too_small


def place_disaggregated(
    decoder: Decoder, devices: Sequence[DeviceSpec], quantization: str, query: ServingQuery, load: Load
) -> list[Placed]:
    """Return deployments whose prompts are computed on devices of their own, where loads of the engine were measured.

    Both kinds of workers are of one device, and split in the same way.
    """
    most = query.goals.max_devices
    return [
        Placed(whole, copies, shared, fit)
        for device in devices
        if device.link_gb_s and device.bandwidth_gb_s and device.peak_fp16_tensor_tflops
        for engine in _engines_for(decoder, device, quantization, query.engine)
        for size in _SIZES
        for way in _ways(Deployment(decoder, device, engine, quantization, size, cache_type=query.kv_cache))
        if way.loaded and (fit := memory_fit(way, load)) is not None and fit.fits
        for prompts in _prompt_workers(way, load)
        for copies, workers in itertools.product(_POOL, _POOL)
        if size * copies + prompts.devices * workers <= most
        and (query.requests_per_s is not None or copies <= load.users)
        for whole in [replace(way, prompts=replace(prompts, per_copy=Fraction(workers, copies)))]
        for shared in [load if query.requests_per_s is not None else replace(load, users=load.users / copies)]
    ]


def _prompt_workers(way: Deployment, load: Load) -> Iterator[PromptWorkers]:
    """Yield the workers of one host that hold the weights and a prompt."""
    for size in _SIZES:
        split = replace(way, devices=size, attention_copies=size if way.attention_copies > 1 else 1)
        fit = memory_fit(split, replace(load, output_tokens=1.0))
        if fit is not None and fit.fits:
            yield PromptWorkers(Fraction(1), size, split.attention_copies)


def _ways(deployment: Deployment) -> Iterator[Deployment]:
    """Yield the ways of splitting a copy: by tensors, and for experts with attention on each device for itself."""
    yield deployment
    several = deployment.devices > 1 and deployment.stages == 1
    if several and deployment.decoder.expert_share < 1 and deployment.loaded:
        yield replace(deployment, attention_copies=deployment.devices)


def _copies(count: int, query: ServingQuery, load: Load) -> range:
    """Return the numbers of copies to try: none of them without a user."""
    most = query.goals.max_devices // count
    return range(1, 1 + (most if query.requests_per_s is not None else min(most, int(load.users))))


def _engines_for(decoder: Decoder, device: DeviceSpec, quantization: str, engine: Engine | None) -> tuple[Engine, ...]:
    """Return the engines of `_engines_on` that serve the model's weights so."""
    return tuple(
        each
        for each in _engines_on(device, engine)
        if quantization != "fp8" or fp8_computed_in(each, device, decoder) is not None
    )


def _engines_on(device: DeviceSpec, engine: Engine | None) -> tuple[Engine, ...]:
    """Return the engines to choose among: the one asked for, else those measured request by request, else vLLM."""
    if device.kind != "gpu":
        return ()
    loaded, batched = LOADED.get(device.vendor, ()), BATCHED.get(device.vendor, ())
    # The support matrix of TensorRT-LLM begins with Ampere.
    if device.before_ampere:
        loaded = tuple(each for each in loaded if each != "trtllm")
    if engine is None:
        return loaded or batched[:1]
    return (engine,) if engine in (*loaded, *batched) else ()


def at_rate(
    predictor: ServingPredictor, placed: Sequence[Placed], requests_per_s: float
) -> tuple[list[Placed], list[NotServed]]:
    """Return the deployments that keep up with a request rate, with the users under way, and those that do not.

    By Little's law, users under way = requests per second times seconds of a request, which grow with the users.
    """
    loads = {each.deployment: each.load for each in placed}
    most = {each.deployment: min(MAX_USERS, each.fit.max_users) for each in placed}
    points = [(way, float(n)) for way in loads for n in np.unique([*2 ** np.arange(math.log2(most[way])), most[way]])]
    times = predictor.predict([(way, replace(loads[way], users=n)) for way, n in points]) if points else []
    curves: dict[Deployment, list[tuple[float, float]]] = {way: [] for way in loads}
    for (way, n), of_n in zip(points, times, strict=True):
        curves[way].append((n, end_to_end_ms(of_n, loads[way]) / 1e3))
    kept, excluded = [], []
    for each in placed:
        users = _users_under_way(curves[each.deployment], requests_per_s / each.copies)
        if users is not None:
            load = replace(each.load, users=float(max(round(users), 1)))
            kept.append(replace(each, load=load, arriving_per_s=requests_per_s / each.copies))
            continue
        reason = (
            f"{requests_per_s:g} requests/s would pile up: its memory holds {each.fit.max_users * each.copies} at once"
        )
        excluded.append(
            NotServed(device=each.deployment.device.name, devices=each.devices, cause="overloaded", reason=reason)
        )
    return kept, excluded


def _users_under_way(curve: Sequence[tuple[float, float]], requests_per_s: float) -> float | None:
    """Return the fewest users whose requests end as fast as others arrive; None where none of the curve's do.

    `curve` holds numbers of users and the seconds of a request, which are interpolated on logarithmic scales.
    """
    fewer, shorter_s = curve[0]
    for users, seconds in curve:
        if requests_per_s * seconds <= users:
            if users == fewer:
                return users
            slope = math.log(seconds / shorter_s) / math.log(users / fewer)
            return float((requests_per_s * shorter_s / fewer**slope) ** (1 / (1 - slope)))
        fewer, shorter_s = users, seconds
    return None


def keeping_up(
    placed: Sequence[Placed], times: Sequence[ServingTimes]
) -> tuple[list[tuple[Placed, ServingTimes]], list[NotServed]]:
    """Return the deployments with their times, but for those whose workers cannot compute all prompts in time."""
    in_time, excluded = [], []
    for each, of_each in zip(placed, times, strict=True):
        busy = of_each.prompts_busy
        if busy is None or busy <= 1:
            in_time.append((each, of_each))
            continue
        reason = f"its workers for prompts ({each.prompt_workers}) have {busy:.0%} of the work they can do"
        device = each.deployment.device.name
        excluded.append(NotServed(device=device, devices=each.devices, cause="overloaded", reason=reason))
    return in_time, excluded


def end_to_end_ms(times: ServingTimes, load: Load) -> float:
    """Return the typical time to the last token."""
    return times.first_token_ms.p50 + (load.output_tokens - 1) * times.output_token_ms.p50
