"""The shape of what generates: how many parameters a token meets and what is kept of each. Nothing is really built."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from accel_platform.workloads.families import ModelSpec


@dataclass(frozen=True)
class Decoder:
    """The shape of a decoder, as its config states it."""

    parameters: float
    active_parameters: float
    """Of a mixture of experts, those that one token meets."""
    layers: float
    kv_heads: float
    head_dim: float


def decoder_of(spec: ModelSpec) -> Decoder | None:
    """The shape of a model's decoder, laid out on the meta device (about a second); None where it was not made to
    generate, keeps no keys and values, or does not say how many experts a token meets."""
    from accel_platform.workloads.build import config_of
    from accel_platform.workloads.cost import sizes_of_parameters
    from accel_platform.workloads.heads import generation_head

    if generation_head(spec) is None:
        return None
    config = config_of(spec).get_text_config(decoder=True)
    layers = _first(config, "num_decoder_layers", "num_hidden_layers")
    heads = _first(config, "num_attention_heads")
    hidden = _first(config, "hidden_size")
    if layers is None or heads is None or hidden is None:
        return None
    sizes = sizes_of_parameters(spec)
    parameters = sum(sizes.values())
    met = _share_of_experts(config)
    if met is None:
        return None
    idle = (1 - met) * sum(size for name, size in sizes.items() if ".experts." in name)
    kept = _first(config, "num_key_value_heads") or heads
    width = _first(config, "head_dim", "d_kv") or hidden / heads
    latent = _first(config, "kv_lora_rank")
    if latent is not None:
        # Multi-head latent attention (DeepSeek-V2, 2024) keeps one vector in the place of all keys and values.
        kept, width = 1.0, (latent + (_first(config, "qk_rope_head_dim") or 0.0)) / 2
    return Decoder(parameters, parameters - idle, layers, kept, width)


def _share_of_experts(config: Any) -> float | None:
    """Of its experts, those that a token meets; 1 without any, None where that is not said."""
    experts = _first(config, "num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
    if experts is None or experts <= 1:
        return 1.0
    chosen = _first(config, "num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "top_k_experts")
    return None if chosen is None else min(1.0, chosen / experts)


def _first(config: Any, *names: str) -> float | None:
    found = (getattr(config, name, None) for name in names)
    return next((float(value) for value in found if isinstance(value, int | float) and value), None)
