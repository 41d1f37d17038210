"""Memory of a served model: weights, cache, what the engine keeps free, and how many users or tokens fit."""

from __future__ import annotations

from dataclasses import dataclass

from predictor.serving.loads import Deployment, Load

ENGINE_SHARE = 0.9
"""Share of memory that engines take by default: vLLM's `gpu_memory_utilization` is 0.9 and SGLang's
`mem_fraction_static` 0.83 to 0.9 of all, TensorRT-LLM's `kv_cache_free_gpu_mem_fraction` 0.9 of what weights leave."""
WORKING_SHARE = 0.03
"""Share of a device's memory that activations, buffers of collectives and graphs take within that."""


@dataclass(frozen=True)
class MemoryFit:
    """What one copy of a model takes on all of its devices together, in GiB, and what is left for users."""

    weights_gib: float
    cache_per_user_gib: float
    """Keys and values of one request at its full length."""
    working_gib: float
    limit_gib: float
    """What the engine may take of the devices' memory."""
    max_users: int
    """Requests at their full length that fit at once; 0 where the weights or one request do not fit."""
    max_tokens: int
    """Tokens that one request alone may have, by memory; 0 where the weights do not fit."""

    @property
    def fits(self) -> bool:
        """Whether the weights and one request at its full length fit."""
        return self.max_users >= 1


def memory_fit(deployment: Deployment, load: Load) -> MemoryFit | None:
    """Return what the deployment takes under the load; None where the device's memory is not published."""
    memory = deployment.device.memory_gib
    if memory is None:
        return None
    decoder, kept = deployment.decoder, deployment.kept
    weights = decoder.parameters * kept.weight_bytes / 2**30
    working = deployment.devices * memory * WORKING_SHARE
    copies = cache_copies(deployment)
    per_user = copies * deployment.cache_bytes * decoder.held(load.input_tokens + load.output_tokens) / 2**30
    free = cache_room(deployment) / 2**30
    return MemoryFit(
        weights_gib=weights,
        cache_per_user_gib=per_user,
        working_gib=working,
        limit_gib=weights + working + free,
        max_users=max(0, int(free / per_user)) if per_user else 10**9,
        max_tokens=max(0, int(_tokens_in(free * 2**30 / copies / deployment.cache_bytes, deployment))),
    )


def cache_room(deployment: Deployment) -> float:
    """Return the bytes that the engine leaves for keys and values; negative where the weights do not fit.

    No load was measured whose weights leave less than an engine's usual share to work in, so none of these fits, on
    TensorRT-LLM either. NaN where the device's memory is not published.
    """
    memory = deployment.devices * (deployment.device.memory_gib or float("nan")) * 2**30
    weights = deployment.decoder.parameters * deployment.kept.weight_bytes
    usual = memory * (ENGINE_SHARE - WORKING_SHARE) - weights
    if deployment.engine == "trtllm" and usual > 0:
        return (memory - weights) * ENGINE_SHARE - memory * WORKING_SHARE
    return usual


def cache_copies(deployment: Deployment) -> float:
    """Return how often the devices together keep one request's cache.

    Tensor parallelism splits it by key-value heads. Devices beyond their number keep another copy, and a latent vector
    cannot be split at all; with data-parallel attention a request is kept by its own group alone.
    """
    group = deployment.side_by_side / deployment.attention_copies
    return max(1.0, group / deployment.decoder.cache_parts)


def _tokens_in(numbers: float, deployment: Deployment) -> float:
    """Return the tokens of a sequence whose cache has so many numbers."""
    decoder = deployment.decoder
    left = numbers - decoder.state - decoder.kept_in_window * decoder.window
    if left <= 0:
        return 0.0
    return left / decoder.kept_per_token if decoder.kept_per_token else 1e12
