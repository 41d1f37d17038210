"""Memory of a served model: weights, key-value cache and working memory, and how many users or tokens fit."""

from __future__ import annotations

import math
from dataclasses import dataclass

from predictor.serving.loads import Deployment, Load
from predictor.serving.quantization import STATE_BYTES

ENGINE_SHARE = 0.9
"""Share of a device's memory that engines use by default.

vLLM's `gpu_memory_utilization` is 0.9 and SGLang's `mem_fraction_static` 0.83 to 0.9, both of all memory.
TensorRT-LLM's `kv_cache_free_gpu_mem_fraction` is 0.9 of the memory that the weights leave.
"""
WORKING_SHARE = 0.025
"""Share of a device's memory, within that, for activations, communication buffers and CUDA graphs.

Source: SGLang served DeepSeek R1 in fp8 on four B200, where the weights take 87 % of the memory.
"""
_FITTED_SHARE = 0.03
"""Value of `WORKING_SHARE` with which the shipped times were fitted."""
_VOCABULARY_BYTES = 2.0
"""Bytes of a parameter of token embedding and head, which AWQ, GPTQ, compressed-tensors and ModelOpt leave at 16 bits.
"""
_GGUF_BYTES = {"int4": 4.8944 / 8, "int8": 8.5008 / 8}
"""Bytes of a parameter in files of Q4_K_M and Q8_0, embedding and head included: those of Llama 3.1 8B, as llama.cpp's
tools/quantize/README.md states them."""


@dataclass(frozen=True)
class MemoryFit:
    """Memory of one copy of a model over all of its devices, in GiB, and the users that fit."""

    weights_gib: float
    """Weights on all devices, with the copies of those that groups of them do not share."""
    cache_per_user_gib: float
    """Keys, values and states of one request at its full length."""
    working_gib: float
    """Activations, communication buffers and CUDA graphs."""
    limit_gib: float
    """Memory that the engine may use."""
    max_users: int
    """Requests of full length whose cache fits at once; 0 where the weights or one request do not fit."""
    max_tokens: int
    """Tokens of the longest single request whose cache fits; 0 where the weights do not fit."""

    @property
    def fits(self) -> bool:
        """True if the weights and one request of full length fit."""
        return self.max_users >= 1


def memory_fit(deployment: Deployment, load: Load) -> MemoryFit | None:
    """Return the memory of the deployment under the load; None if the device's memory is not published."""
    memory = deployment.device.usable_memory_gib
    if memory is None:
        return None
    decoder = deployment.decoder
    weights = weight_bytes(deployment) / 2**30
    working = deployment.devices * memory * WORKING_SHARE
    copies = cache_copies(deployment)
    state_bytes = STATE_BYTES * decoder.state + deployment.state_bytes
    kept = decoder.held(load.input_tokens + load.output_tokens) - decoder.state
    per_user = (copies * deployment.cache_bytes * kept + state_bytes) / 2**30
    free = _room_beside(weight_bytes(deployment), deployment, memory, WORKING_SHARE) / 2**30
    of_one = free * 2**30 - state_bytes
    return MemoryFit(
        weights_gib=weights,
        cache_per_user_gib=per_user,
        working_gib=working,
        limit_gib=weights + working + free,
        max_users=max(0, int(free / per_user)) if per_user else 10**9,
        max_tokens=max(0, int(_tokens_in(of_one / copies / deployment.cache_bytes, deployment))),
    )


def weight_bytes(deployment: Deployment) -> float:
    """Return the bytes of weights on all devices.

    With data-parallel attention each group of devices holds all weights but the experts', which are split over all.
    """
    decoder, groups = deployment.decoder, deployment.attention_copies
    held = _held_parameters(deployment)
    if deployment.stored_bytes is not None:
        return deployment.stored_bytes + (held - decoder.parameters) * _VOCABULARY_BYTES
    each = deployment.storage.weight_bytes
    if deployment.engine == "llama.cpp":
        return held * _GGUF_BYTES.get(deployment.quantization, each)
    return held * each + groups * decoder.vocabulary_parameters * (_VOCABULARY_BYTES - each)


def _held_parameters(deployment: Deployment) -> float:
    """Return the parameters on all devices, each counted as often as it is held."""
    decoder, groups = deployment.decoder, deployment.attention_copies
    return groups * decoder.parameters - (groups - 1) * decoder.expert_parameters


def cache_room(deployment: Deployment) -> float:
    """Return the bytes for keys and values beside the weights, on all devices.

    It leaves out the memory that error correction takes, and counts each weight alike. Times are predicted with it,
    because they were fitted with it.
    """
    weights, memory = _held_parameters(deployment) * deployment.storage.weight_bytes, deployment.device.memory_gib
    return _room_beside(weights, deployment, memory or math.nan, _FITTED_SHARE)


def _room_beside(weights: float, deployment: Deployment, memory_gib: float, working_share: float) -> float:
    """Return the bytes for keys and values on all devices: negative if the weights do not fit, NaN if unknown.

    `memory_gib` is the memory of one device.

    TensorRT-LLM takes its share of the memory that the weights leave free. Weights beyond the other engines' limit
    count as not fitting there either, because no such load was measured.
    """
    memory = deployment.devices * memory_gib * 2**30
    usual = memory * (ENGINE_SHARE - working_share) - weights
    if deployment.engine == "trtllm" and usual > 0:
        return (memory - weights) * ENGINE_SHARE - memory * working_share
    return usual


def cache_copies(deployment: Deployment) -> float:
    """Return how many copies of one request's keys and values the devices hold together.

    Tensor parallelism splits them by key-value heads, so devices beyond the number of heads hold further copies. A
    latent vector (multi-head latent attention) cannot be split. With data-parallel attention a request's cache lies
    within one group of devices.
    """
    group = deployment.side_by_side / deployment.attention_copies
    return max(1.0, group / deployment.decoder.cache_parts)


def _tokens_in(numbers: float, deployment: Deployment) -> float:
    """Return the length of a sequence with so many numbers in keys and values; 1e12 if these do not grow with it."""
    decoder = deployment.decoder
    left = numbers - decoder.kept_in_window * decoder.window
    if left <= 0:
        return 0.0
    return left / decoder.kept_per_token if decoder.kept_per_token else 1e12
