"""Deployment plans to choose among: the ways in which a model fits on devices of the spec sheet, under a load."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, partial

from accel_platform.errors import InvalidInput, NotFound, did_you_mean
from accel_platform.hardware.catalog import DeviceSpec, catalog, find_spec, form_factor_caution
from accel_platform.hardware.instances import find_instance, part_of_gpu, queried_device_name, suggest_instances
from accel_platform.hardware.rents import Instance, Rent, device_rent, least_rent
from accel_platform.table_io.values import rounded
from accel_platform.workloads.kv_cache import Decoder
from accel_platform.workloads.model_catalog import ENCODER_DECODERS, ModelSpec, known_models, resolve_model
from predictor.data.config_cost import estimate_config_cost
from predictor.data.traced_models import traced_decoder
from predictor.schemas.requests import TransformersConfig
from predictor.schemas.serving import NotServed, ServingQuery
from predictor.serving.engines import (
    AMD_WITH_FP8,
    MEASURED_BY_REQUESTS,
    MEASURED_IN_BATCHES,
    ONLY_MEASURED_GPU,
    Engine,
)
from predictor.serving.loads import Deployment, Load, PromptWorkers
from predictor.serving.memory import MemoryFit, memory_fit
from predictor.serving.models import (
    Sharding,
    find_served_model,
    generates_no_text,
    served_models,
    sharding_of,
    state_numbers,
)
from predictor.serving.quantization import INTEGERS, STATE_BYTES
from predictor.serving.stored_weights import StoredWeights

_PER_HOST = 8
_LAYOUTS = ((1, 1), (1, 2), (1, 4), (1, _PER_HOST), (2, 2 * _PER_HOST), (4, 4 * _PER_HOST))
"""Pairs of hosts and devices that one copy may take. Copies over several hosts are pipelines over full hosts."""
_SIZES = tuple(devices for hosts, devices in _LAYOUTS if hosts == 1)
"""Numbers of devices in one host."""
_ALIKE = 0.8
"""Ratio of `difflib` from which one name is likely meant by another."""
_FAMILY_LETTERS = 4
"""Least number of letters with which the names of one family begin."""
_HOPPER = 90
"""Compute capability of NVIDIA's Hopper, times ten."""
_PCIE_GB_S = 128
"""Rate of 16 lanes of PCIe 5.0, in both directions together."""
_POOL_SIZES = (*range(1, 9), 12, 16, 24)
"""Numbers of workers of either kind to try in disaggregated serving."""


@dataclass(frozen=True)
class DeploymentPlan:
    """Number of copies of a deployment that fits into memory, and the load on each copy."""

    deployment: Deployment
    copies: int
    load: Load
    fit: MemoryFit
    sharding: Sharding
    arriving_per_s: float | None = None
    """Arrival rate at each copy (open loop); None for a closed loop of users."""
    instances: tuple[Instance, ...] = ()
    """Instances of a cloud to run on, one of which is rented whole; empty for any, of which a share is rented."""

    @property
    def prompt_workers(self) -> int:
        """Number of workers that only compute prompts, for all copies; 0 where the copies compute their own."""
        prompts = self.deployment.prompts
        return 0 if prompts is None else int(prompts.per_copy * self.copies)

    @property
    def devices(self) -> int:
        """Number of devices of all copies and workers for prompts."""
        prompts = self.deployment.prompts
        for_prompts = 0 if prompts is None else prompts.devices * self.prompt_workers
        return self.deployment.devices * self.copies + for_prompts

    @cached_property
    def rent(self) -> Rent | None:
        """Rent of all devices, with as many of them in one instance as a copy or worker takes; None without a price."""
        if self.instances:
            return least_rent(self.instances, self.devices)
        device = self.deployment.device
        share = device_rent(device.name, self.together) or device.rent
        return share and share.times(self.devices)

    @property
    def together(self) -> int:
        """Number of devices of a copy or a worker that have to be in one host."""
        prompts = self.deployment.prompts
        return max(self.deployment.devices // self.deployment.stages, 0 if prompts is None else prompts.devices)

    @property
    def most_running(self) -> int:
        """Largest number of requests that run at once in the simulation of a copy.

        Random arrivals pile up at times, so in an open loop it is well above the mean number under way.
        """
        users = max(1, round(self.load.users))
        return max(1, min(self.fit.max_users, users if self.arriving_per_s is None else 4 * users + 64))


def resolve_decoder(model: str | TransformersConfig) -> tuple[str, Decoder]:
    """Return the model's name and shape. Raises NotFound, and InvalidInput for one that does not generate."""
    decoder: Decoder | None
    if isinstance(model, TransformersConfig):
        cost = estimate_config_cost(model.root)
        name, decoder = cost.architecture, cost.decoder
        has_encoder = bool(model.root.get("is_encoder_decoder"))
    elif (published := find_served_model(model)) is not None:
        name, decoder, has_encoder = model, published, False
    else:
        spec = _resolve_catalog_model(model)
        name, decoder = spec.model_id, traced_decoder(spec)
        has_encoder = spec.architecture in ENCODER_DECODERS
    given = "--config FILE" if isinstance(model, TransformersConfig) else name
    if decoder is None:
        raise InvalidInput(
            f"{name} does not generate text, or its config does not say what it caches: it cannot be served. "
            f"`accel recommend {given}` answers for single batches."
        )
    if has_encoder:
        raise InvalidInput(
            f"{name} has an encoder beside its decoder, and loads of such models were never measured. "
            f"`accel recommend {given} --mode generation` answers for single batches."
        )
    return name, decoder


def _resolve_catalog_model(model: str) -> ModelSpec:
    """Return the catalog's model. Raises NotFound, and InvalidInput for one whose name says that it generates none."""
    if generates_no_text(model):
        raise InvalidInput(
            f"{model} embeds or ranks texts and generates none: it cannot be served so. `accel recommend {model}` "
            "answers for single batches, with its config if it is unknown by name."
        )
    try:
        return resolve_model(model)
    except NotFound as error:
        served = served_models()
        names = {*served, *(known.model_id for known in known_models() if known.modality == "text")}
        close = _close_names(model.casefold().rpartition("/")[2], sorted(names))
        hint = did_you_mean(close, otherwise=f"Known: {', '.join(served[:5])}, ...")
        raise NotFound(
            f"No language model is called {model!r}. {hint} Any other: give its config (config.json of its hub page)."
        ) from error


def _close_names(model: str, names: Sequence[str]) -> list[str]:
    """Return up to three names like that of a model: of nearly the same letters, else of the same family."""
    alike = difflib.get_close_matches(model, names, n=3, cutoff=_ALIKE)
    shared = {
        name: len([*itertools.takewhile(lambda pair: len({*pair}) == 1, zip(model, name, strict=False))])
        for name in names
    }
    longest = max(shared.values())
    family = [name for name in names if shared[name] == longest >= _FAMILY_LETTERS]
    return alike or difflib.get_close_matches(model, family, n=3, cutoff=0) or difflib.get_close_matches(model, names)


def resolve_devices(names: Sequence[str] | None) -> tuple[list[DeviceSpec], list[str]]:
    """Return the devices to choose among, and how their names were understood. Raises InvalidInput."""
    if names is None:
        return [spec for spec in catalog() if _is_of_a_server(spec)], []
    found: dict[DeviceSpec, None] = {}
    for name in names:
        spec = find_spec(queried_device_name(name))
        if spec is None:
            known = [device.name for device in catalog() if device.kind == "gpu"]
            close = [k for k in known if name.casefold() in k.casefold()][:3]
            close = close or [*suggest_instances(name), *difflib.get_close_matches(name, known)]
            hint = did_you_mean(close, otherwise=f"Names are such as {known[0]}.")
            problem = f"The spec sheet has no GPU called {name!r}."
            raise InvalidInput(" ".join(filter(None, (problem, part_of_gpu(name), hint))))
        found[spec] = None
    return [*found], [*filter(None, map(_naming_caution, names))]


def _naming_caution(name: str) -> str | None:
    """Return how a name was understood: as an instance, or as one of several devices; None if it is a device's own."""
    instance = find_instance(name)
    if instance is None:
        return form_factor_caution(name)
    rent = "its price is not known" if instance.rent is None else f"each pays all of its {instance.rent.describe()}"
    return f"{instance.describe(name)}: no deployment on it takes more, and {rent}."


def _named_instances(query: ServingQuery, device: DeviceSpec) -> tuple[Instance, ...]:
    """Return the instances by which alone the query names a device; none if it names the device, or no hardware."""
    named = [(name, find_instance(name)) for name in query.hardware or ()]
    if any(instance is None and find_spec(queried_device_name(name)) == device for name, instance in named):
        return ()
    return tuple(instance for _, instance in named if instance is not None and instance.device == device.name)


def _limit_to_instances(query: ServingQuery, instances: Sequence[Instance]) -> ServingQuery:
    """Return the query with no more devices than the largest of the instances has; unchanged if there is none."""
    if not instances:
        return query
    most = min(query.goals.max_devices, max(instance.count for instance in instances))
    return query.model_copy(update={"goals": query.goals.model_copy(update={"max_devices": most})})


def _is_of_a_server(spec: DeviceSpec) -> bool:
    """Return whether a device is a GPU that is rented out, or linked to others faster than by PCIe."""
    rented, priced = spec.usd_per_hour is not None, spec.memory_gib and spec.peak_fp16_tensor_tflops
    linked = (spec.link_gb_s or 0.0) > _PCIE_GB_S
    return spec.kind == "gpu" and bool(priced and spec.link_gb_s) and (rented or linked)


def split_by_sparse_attention(devices: Sequence[DeviceSpec]) -> tuple[list[DeviceSpec], list[NotServed]]:
    """Return the devices for which engines have kernels of DeepSeek's sparse attention, and the others.

    The kernels of vLLM 0.33 are for NVIDIA's GPUs from Hopper on, and for AMD's MI300 and later.
    """
    kept = [
        spec
        for spec in devices
        if (spec.compute_capability or 0) >= _HOPPER or (spec.architecture or "").startswith(AMD_WITH_FP8)
    ]
    reason = "engines have no kernels there for its sparse attention, but from Hopper and MI300 on"
    return kept, [
        NotServed(device=spec.name, devices=1, cause="unsupported", reason=reason)
        for spec in devices
        if spec not in kept
    ]


def plan_aggregated(
    decoder: Decoder, devices: Sequence[DeviceSpec], weights: StoredWeights, query: ServingQuery, load: Load,
) -> tuple[list[DeploymentPlan], list[NotServed]]:  # fmt: skip
    """Return the plans in which every copy computes its own prompts, and the devices that were left out."""
    found: list[DeploymentPlan] = []
    excluded: list[NotServed] = []
    sharding = _sharding_of(query)
    for device in devices:
        engines = _engines_for(decoder, device, weights, query.engine)
        reason = _unsupported_reason(device, query.engine, weights, engines) or _refused_cache(device, query)
        if reason is not None:
            excluded.append(NotServed(device=device.name, devices=1, cause="unsupported", reason=reason))
            continue
        one = _on_one_device(query, decoder, device, engines[0], weights)
        instances = _named_instances(query, device)
        limited = _limit_to_instances(query, instances)
        fitting, too_small = _sizes_that_fit(one, limited, load, by_instance=bool(instances))
        excluded += too_small
        for size, engine in itertools.product(fitting, engines):
            one = replace(size, engine=engine)
            heads = _unsplit_heads(one, sharding)
            if heads is not None:
                reason = f"tensor parallelism cannot split its {heads} over {one.side_by_side} devices"
                excluded.append(NotServed(device=device.name, devices=one.devices, cause="unsupported", reason=reason))
            plans = _plans_with_copies(one, limited, load, sharding)
            found += [replace(plan, instances=instances) for plan in plans]
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
        if not _covers_load(each)
    ]
    return [each for each in found if _covers_load(each)], excluded


def _on_one_device(
    query: ServingQuery, decoder: Decoder, device: DeviceSpec, engine: Engine, weights: StoredWeights
) -> Deployment:
    """Return the deployment of the query's model and cache on one device."""
    return Deployment(
        decoder,
        device,
        engine,
        weights.quantization,
        cache_type=query.kv_cache,
        number_format=weights.number_format,
        stored_bytes=weights.size_bytes,
        # A config's decoder has its states; the rows of published models state them apart.
        state_bytes=STATE_BYTES * state_numbers(query.model) if isinstance(query.model, str) else 0.0,
        engine_version=query.engine_version,
    )


def _sharding_of(query: ServingQuery) -> Sharding:
    return sharding_of(query.model if isinstance(query.model, str) else query.model.root)


def _unsplit_heads(deployment: Deployment, sharding: Sharding) -> str | None:
    """Return the heads that tensor parallelism cannot split over the devices of a copy, in words; None if it can."""
    return sharding.unsplit_heads(deployment.side_by_side, deployment.decoder.cache_parts)


def _covers_load(plan: DeploymentPlan) -> bool:
    """Return whether loads like this were measured with the engine: with llama.cpp only one request at a time was."""
    return plan.deployment.engine != "llama.cpp" or plan.load.users <= 1


def _unsupported_reason(
    device: DeviceSpec, engine: Engine | None, weights: StoredWeights, engines: tuple[Engine, ...]
) -> str | None:
    """Return why a device cannot serve with the engine, or with any engine if it is None; None if it can.

    `engines` is the result of `_engines_for`.
    """
    if engine == "trtllm" and device.before_ampere:
        return "trtllm supports no GPU older than Ampere"
    if not _engines_on(device, engine):
        measured = f"{engine} was not measured" if engine else "none of these engines was measured"
        return f"{measured} on a {device.kind.upper()} of {device.vendor}"
    known = ONLY_MEASURED_GPU.get(device.vendor, device.name)
    if known != device.name:
        return f"of {device.vendor}'s GPUs only the {known} was measured, which tells nothing of others"
    if not engines:
        return _refused_weights(engine, weights)
    if not device.bandwidth_gb_s or not device.peak_fp16_tensor_tflops:
        return "its bandwidth or its rate in 16 bits is not published"
    return None


def _refused_cache(device: DeviceSpec, query: ServingQuery) -> str | None:
    """Return why a device keeps no keys and values in the type of the query; None if it does.

    vLLM's kernels for NVIDIA's GPUs older than Ampere keep none in fp8 (its `triton_attn.py` and `flashinfer.py`).
    """
    if query.kv_cache != "fp8" or not device.before_ampere:
        return None
    return "engines keep no fp8 cache on GPUs older than Ampere: leave out `kv_cache`"


def _refused_weights(engine: Engine | None, weights: StoredWeights) -> str:
    """Return why a device serves no weights of this kind with the engine, or with any engine if it is None."""
    if engine is not None and weights.quantization in INTEGERS:
        return f"{engine} serves no weights in {weights.quantization} there: leave out the engine"
    who = f"{engine} does not widen" if engine else "no engine widens"
    return (
        f"it computes nothing in {weights.number_format}, and {who} such weights there: convert them, and give the "
        "quantization, such as bfloat16 or int4"
    )


def _sizes_that_fit(
    one: Deployment, query: ServingQuery, load: Load, *, by_instance: bool
) -> tuple[list[Deployment], list[NotServed]]:
    """Return the copy on each number of devices that holds it, and why it does not fit on the others.

    Pipelines over several hosts are left out where the model fits into one. `by_instance` is True if an instance limits
    the query's devices.
    """
    most_devices = query.goals.max_devices
    fitting: list[Deployment] = []
    too_small: list[NotServed] = []
    for stages, count in _LAYOUTS:
        if count > most_devices or (count > 1 and not one.device.link_gb_s):
            break
        size = replace(one, devices=count, stages=stages)
        if stages > 1 and (fitting or not size.measured_by_requests):
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
        if size.measured_by_requests and count == _PER_HOST and most_devices < 2 * count:
            instead = f"{one.device.name} in place of the instance, with " if by_instance else ""
            reason += f"; {instead}`max_devices` {2 * count} would allow a pipeline over two hosts"
        too_small.append(left_out(cause="does_not_fit", reason=reason))
    return fitting, too_small


def plan_disaggregated(
    decoder: Decoder, devices: Sequence[DeviceSpec], weights: StoredWeights, query: ServingQuery, load: Load
) -> list[DeploymentPlan]:
    """Return plans in which workers of their own compute the prompts (disaggregated serving).

    Only engines whose loads were measured request by request are planned with. Both kinds of workers run on the same
    device, with the same way of splitting the model.
    """
    plans: list[DeploymentPlan] = []
    sharding = _sharding_of(query)
    for device in devices:
        if not (device.link_gb_s and device.bandwidth_gb_s and device.peak_fp16_tensor_tflops):
            continue
        instances = _named_instances(query, device)
        limited = _limit_to_instances(query, instances)
        for engine, size in itertools.product(_engines_for(decoder, device, weights, query.engine), _SIZES):
            one = replace(_on_one_device(query, decoder, device, engine, weights), devices=size)
            for split in _parallelism_variants(one, sharding):
                found = _disaggregated_plans(split, limited, load, sharding)
                plans += [replace(plan, instances=instances) for plan in found]
    return plans


def _disaggregated_plans(
    split: Deployment, query: ServingQuery, load: Load, sharding: Sharding
) -> Iterator[DeploymentPlan]:
    """Yield the plans of one split of the generating copies: each split and number of workers for prompts."""
    fit = memory_fit(split, load) if split.measured_by_requests else None
    if fit is None or not fit.fits:
        return
    closed_loop = query.requests_per_s is None
    for prompts in _prompt_workers(split, load, sharding):
        for copies, workers in itertools.product(_POOL_SIZES, _POOL_SIZES):
            too_many = split.devices * copies + prompts.devices * workers > query.goals.max_devices
            if too_many or (closed_loop and copies > load.users):
                continue
            deployment = replace(split, prompts=replace(prompts, per_copy=Fraction(workers, copies)))
            share = replace(load, users=load.users / copies) if closed_loop else load
            yield DeploymentPlan(deployment, copies, share, fit, sharding)


def _prompt_workers(copy: Deployment, load: Load, sharding: Sharding) -> Iterator[PromptWorkers]:
    """Yield the workers, each within one host, that have memory for the weights and one prompt."""
    for size in _SIZES:
        split = replace(copy, devices=size, attention_copies=size if copy.attention_copies > 1 else 1)
        if split.attention_copies == 1 and _unsplit_heads(split, sharding) is not None:
            continue
        fit = memory_fit(split, replace(load, output_tokens=1.0))
        if fit is not None and fit.fits:
            yield PromptWorkers(Fraction(1), size, split.attention_copies)


def _parallelism_variants(deployment: Deployment, sharding: Sharding) -> Iterator[Deployment]:
    """Yield a copy with tensor parallelism and, for models with experts, with data-parallel attention."""
    if _unsplit_heads(deployment, sharding) is None:
        yield deployment
    several = deployment.devices > 1 and deployment.stages == 1
    if several and deployment.decoder.expert_share < 1 and deployment.measured_by_requests:
        yield replace(deployment, attention_copies=deployment.devices)


def _plans_with_copies(
    one: Deployment, query: ServingQuery, load: Load, sharding: Sharding
) -> Iterator[DeploymentPlan]:
    """Yield the plans of a deployment on its devices: each split of the model that fits, in each number of copies."""
    for split in _parallelism_variants(one, sharding):
        fit = memory_fit(split, load)
        if fit is None or not fit.fits:
            continue
        for copies in _copy_counts(one.devices, query, load):
            yield DeploymentPlan(split, copies, load, fit, sharding)


def _copy_counts(devices_per_copy: int, query: ServingQuery, load: Load) -> range:
    """Return the numbers of copies to try. In a closed loop each copy has a user at least."""
    most = query.goals.max_devices // devices_per_copy
    return range(1, 1 + (most if query.requests_per_s is not None else min(most, int(load.users))))


def _engines_for(
    decoder: Decoder, device: DeviceSpec, weights: StoredWeights, engine: Engine | None
) -> tuple[Engine, ...]:
    """Return the engines of `_engines_on` that can serve the model with these weights."""
    return tuple(each for each in _engines_on(device, engine) if weights.served_by(each, device, decoder))


def _engines_on(device: DeviceSpec, engine: Engine | None) -> tuple[Engine, ...]:
    """Return the requested engine if it was measured. Without one: those measured by requests, else by batches."""
    if device.kind != "gpu":
        return ()
    loaded, batched = MEASURED_BY_REQUESTS.get(device.vendor, ()), MEASURED_IN_BATCHES.get(device.vendor, ())
    # The support matrix of TensorRT-LLM begins with Ampere.
    if device.before_ampere:
        loaded = tuple(each for each in loaded if each != "trtllm")
    if engine is None:
        return loaded or batched[:1]
    return (engine,) if engine in (*loaded, *batched) else ()
