"""Shape of decoders: the parameters that a token uses, and what is cached per token."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from accel_platform.workloads.model_catalog import ModelSpec

KEEP_ALL = frozenset(("full_attention", "indexed_attention", "minimax_m3_sparse", "hybrid"))
"""Kinds of layers, as transformers calls them, that keep keys and values of every token."""
KEEP_COMPRESSED = frozenset(("compressed_sparse_attention", "heavily_compressed_attention"))
"""Kinds of layers that keep one vector for several tokens, and those of a window as they are (DeepSeek V4)."""
KEEP_A_WINDOW = frozenset(("sliding_attention", "chunked_attention", "hybrid_sliding"))
_KEEP_A_STATE = frozenset(("linear_attention", "hybrid", "hybrid_sliding"))
_INDEXED = frozenset(("indexed_attention", "minimax_m3_sparse", "compressed_sparse_attention"))
"""Kinds of layers that attend to what an index has chosen."""
_KEEP_NOTHING = frozenset(("conv", "mlp", "moe"))
"""Kinds of layers that keep nothing, or next to nothing: a short convolution looks back three tokens."""
READ_BY_ROW = "embed_tokens_per_layer"
"""Name of tables in Gemma 3n and 4, of which a token needs one row per layer."""


@dataclass(frozen=True)
class Decoder:
    """The shape of a decoder, as its config states it."""

    parameters: float
    """Number of all parameters, the head's included."""
    active_parameters: float
    """Number of parameters that one token uses: in a mixture of experts, only the chosen experts count."""
    layers: float
    kept_per_token: float
    """Numbers cached per token: keys and values of all layers that look back to the first token."""
    kept_in_window: float = 0.0
    """Numbers cached per token by layers that look back over `window` tokens only."""
    window: float = 0.0
    state: float = 0.0
    """Numbers cached per sequence of any length, by layers that fold what they read into a state."""
    unread_parameters: float = 0.0
    """Number of parameters that text does not use: towers for images and sound, and tables of which a token needs one
    row. Of a separate input embedding and head, one counts as used: a token reads the head and a row of the other."""
    expert_share: float = 1.0
    """Share of the experts that a token uses."""
    width: float = 0.0
    """Numbers that one layer hands to the next per token; 0 where the config does not say."""
    attended: float = 0.0
    """Multiply-adds per token and earlier token that it attends to, in all layers that look back to the first: scores
    and their sums. With an index those of the layers that attend to what it chooses."""
    cache_parts: float = 1.0
    """Devices over which the cache of one token can be split: the key-value heads; 1 for a latent vector."""
    context: float = 0.0
    """Most tokens of a sequence; 0 where the config does not say."""
    vocabulary_parameters: float = 0.0
    """Number of parameters of token embedding and head, counted once where they are one matrix; 0 where unknown. They
    stay in 16 bits where the rest is quantized."""
    chosen_tokens: float = 0.0
    """Most earlier tokens that an index chooses to attend to (sparse attention); 0 where all are attended to."""
    index_per_token: float = 0.0
    """Part of `kept_per_token` that is read of every earlier token where an index chooses some: the index's keys, and
    what layers without an index keep."""
    index_attended: float = 0.0
    """Multiply-adds per token and earlier token, chosen or not, besides `attended`: those of the index, and of layers
    without one."""

    @property
    def expert_parameters(self) -> float:
        """Number of parameters of all experts together; 0 without experts."""
        if self.expert_share >= 1:
            return 0.0
        return (self.parameters - self.unread_parameters - self.active_parameters) / (1 - self.expert_share)

    def read_parameters(self, sequences: int) -> float:
        """Return the parameters used in a step by so many sequences; with experts more for more sequences."""
        read = self.parameters - self.unread_parameters
        return read * (1 - (1 - self.active_parameters / read) ** sequences)

    def held(self, tokens: float) -> float:
        """Return the numbers cached for one sequence of so many tokens."""
        return self.kept_per_token * tokens + self.kept_in_window * min(tokens, self.window) + self.state

    def moved(self, into: float, out: float) -> float:
        """Return the cached numbers read or written per token, on average over `out` tokens added to `into`."""
        # Keys and values are read, a state is written as well.
        return self.read(into, out) + self.state

    def read(self, into: float, out: float) -> float:
        """Return the cached numbers read per token, on average over `out` tokens added to `into`."""
        of_chosen = (self.kept_per_token - self.index_per_token) * self._chosen(into, out)
        in_window = self.kept_in_window * _in_window(self.window, into, out)
        return of_chosen + self.index_per_token * (into + out / 2) + in_window + self.state

    def multiply_adds(self, into: float, out: float) -> float:
        """Return the multiply-adds with earlier tokens per token, on average over `out` tokens added to `into`."""
        return self.attended * self._chosen(into, out) + self.index_attended * (into + out / 2)

    def _chosen(self, into: float, out: float) -> float:
        """Return the earlier tokens that a token attends to, on average over `out` tokens added to `into`."""
        return _in_window(self.chosen_tokens, into, out) if self.chosen_tokens else into + out / 2


def _in_window(window: float, into: float, out: float) -> float:
    """Return the tokens in a window, on average over `out` tokens added to `into` while it fills."""
    grows = min(max(window - into, 0.0), out)
    first = min(into, window)
    return (grows * (first + grows / 2) + (out - grows) * (first + grows)) / out


def decoder_of(spec: ModelSpec) -> Decoder | None:
    """Return the shape of a model's decoder, laid out on the meta device (about a second).

    None for models that do not generate, or whose config does not say how many experts a token uses or what a layer
    caches.
    """
    from accel_platform.workloads.build import config_of
    from accel_platform.workloads.cost import embedding_parameters, head_parameters, sizes_of_parameters, text_tower
    from accel_platform.workloads.heads import generation_head
    from accel_platform.workloads.sources import is_sourced

    head = None if is_sourced(spec) else generation_head(spec)
    if head is None:
        return None
    config = config_of(spec).get_text_config(decoder=True)
    layers = _first(config, "num_decoder_layers", "num_hidden_layers")
    met = _share_of_experts(config)
    remembered = None if layers is None else _cached_numbers(config, int(layers))
    if layers is None or met is None or remembered is None:
        return None
    sizes = sizes_of_parameters(spec)
    reads, skipped = text_tower(spec), _image_only_layers(config)
    idle = (READ_BY_ROW, *(f".layers.{at}." for at in skipped))
    met_by_text = {name: n for name, n in sizes.items() if name.startswith(reads) and not any(i in name for i in idle)}
    of_experts = sum(n for name, n in met_by_text.items() if ".experts." in name)
    met = met if of_experts else 1.0  # the config of a dense model may name experts that no layer has
    resting = (1 - met) * of_experts
    of_head = head_parameters(spec, head)
    read, everything = sum(met_by_text.values()), sum(sizes.values()) + of_head
    return Decoder(
        everything,
        read - resting,
        layers - len(skipped),
        *remembered,
        unread_parameters=everything - read,
        expert_share=met,
        width=_first(config, "hidden_size", "d_model", "n_embd") or 0.0,
        cache_parts=1.0 if _first(config, "kv_lora_rank") else _least_kv_heads(config, int(layers)),
        context=_first(config, "max_position_embeddings", "n_positions", "seq_length", "max_seq_len") or 0.0,
        vocabulary_parameters=embedding_parameters(spec) + of_head,
        **_attention_of(config, int(layers)),
    )


def _cached_numbers(config: Any, count: int) -> tuple[float, float, float, float] | None:
    """Return numbers per token, numbers per token of a window, the window, and numbers in states, over all layers.

    None where the config does not say what a layer keeps.
    """
    in_all, in_window, window, states = 0.0, 0.0, 0.0, 0.0
    for (kind, layer), indexes in _layers_and_indexers(config, count):
        numbers = _keys_and_values(layer) if kind in KEEP_ALL | KEEP_A_WINDOW | KEEP_COMPRESSED else 0.0
        state = _state(layer) if kind in _KEEP_A_STATE else 0.0
        if kind in KEEP_A_WINDOW | KEEP_COMPRESSED:
            window = _first(layer, "sliding_window", "attention_chunk_size", "attention_window_size") or 0.0
        without_window = kind in KEEP_A_WINDOW | KEEP_COMPRESSED and not window
        unknown = kind not in KEEP_ALL | KEEP_A_WINDOW | KEEP_COMPRESSED | _KEEP_A_STATE | _KEEP_NOTHING
        if unknown or numbers is None or state is None or without_window:
            return None
        in_all += 0.0 if kind in KEEP_A_WINDOW else numbers / _compression(kind, layer)
        in_all += _index_keys(kind, layer) if indexes else 0.0
        in_window += numbers if kind in KEEP_A_WINDOW | KEEP_COMPRESSED else 0.0
        states += state
    return (in_all, in_window, window, states) if in_all or in_window or states else None


def _layers_and_indexers(config: Any, count: int) -> Iterator[tuple[tuple[str, Any], bool]]:
    """Yield kind and config of each layer, and whether it has an index of its own."""
    # Some layers attend to what an earlier layer's index has chosen (GLM 5.2), and keep none of their own.
    indexers = getattr(config, "indexer_types", None) or ["full"] * count
    for layer, indexer in zip(layers_of(config, count), indexers, strict=False):
        yield layer, indexer == "full" and layer[0] in _INDEXED


def _attention_of(config: Any, count: int) -> dict[str, float]:
    """Return the fields of a `Decoder` about earlier tokens: the work with them, and the index that chooses some."""
    to_all, kept_for_all, to_chosen, chosen = 0.0, 0.0, 0.0, 0.0
    index_keys, index_work = 0.0, 0.0
    for (kind, layer), indexes in _layers_and_indexers(config, count):
        work = _multiply_adds_per_pair(layer) / _compression(kind, layer)
        if kind in _INDEXED:
            blocks = (_first(layer, "index_topk_blocks") or 0.0) * (_first(layer, "index_block_size") or 0.0)
            chosen = blocks or (_first(layer, "index_topk") or 0.0) * _compression(kind, layer)
            to_chosen += work
            index_keys += _index_keys(kind, layer) if indexes else 0.0
            index_work += (_first(layer, "index_n_heads") or 0.0) * _index_keys(kind, layer) if indexes else 0.0
        elif kind in KEEP_ALL | KEEP_COMPRESSED:
            to_all += work
            kept_for_all += (_keys_and_values(layer) or 0.0) / _compression(kind, layer)
    if not chosen:
        return {"attended": to_all + to_chosen}
    return {
        "attended": to_chosen,
        "chosen_tokens": chosen,
        "index_per_token": index_keys + kept_for_all,
        "index_attended": index_work + to_all,
    }


def _index_keys(kind: str, layer: Any) -> float:
    """Return the numbers per token that an index keeps in one layer: a key for each token, or each group of them."""
    pooled = _first(layer, "index_kpool") or 1.0
    return (_first(layer, "index_head_dim") or 0.0) / pooled / _compression(kind, layer)


def _compression(kind: str, layer: Any) -> float:
    """Return the tokens for which a layer keeps one vector."""
    rates = getattr(layer, "compress_rates", None) if kind in KEEP_COMPRESSED else None
    return float(rates[kind]) if rates else 1.0


def layers_of(config: Any, count: int) -> Iterator[tuple[str, Any]]:
    """Yield kind and config of each layer with a cache of its own."""
    kinds = getattr(config, "layer_types", None)
    if not kinds:
        # A window over the whole context (Phi-3.5) leaves nothing out.
        window, context = _first(config, "sliding_window"), _first(config, "max_position_embeddings")
        slides = window and getattr(config, "use_sliding_window", True) and not (context and window >= context)
        kinds = ["sliding_attention" if slides else "full_attention"] * count
    differ, skipped = getattr(config, "is_heterogeneous", False), _image_only_layers(config)
    # The last layers of Gemma 3n and 4 look at what earlier ones have kept.
    for at, kind in enumerate(kinds[: count - int(_first(config, "num_kv_shared_layers") or 0)]):
        if at not in skipped:
            yield kind, config.per_layer_config[at] if differ else config


def _image_only_layers(config: Any) -> frozenset[int]:
    """Return the layers that attend to an image alone (Llama 3.2 Vision); text skips them."""
    return frozenset(getattr(config, "cross_attention_layers", None) or ())


def _keys_and_values(layer: Any) -> float | None:
    """Return the numbers that one layer caches per token; None where its config does not say."""
    latent = _first(layer, "kv_lora_rank")
    if latent is not None:
        # Multi-head latent attention (DeepSeek-V2, 2024) keeps one vector in the place of all keys and values.
        return latent + (_first(layer, "qk_rope_head_dim") or 0.0)
    heads, hidden = _first(layer, "num_attention_heads"), _first(layer, "hidden_size")
    if heads is None or hidden is None:
        return None
    size = _first(layer, "head_dim", "d_kv") or hidden / heads
    # Keys of DeepSeek V4 are its values too. Values of MiMo V2 are smaller than its keys.
    of_value = 0.0 if getattr(layer, "compress_rates", None) else _first(layer, "v_head_dim") or size
    return (_kv_heads(layer) or heads) * (size + of_value)


def _kv_heads(layer: Any) -> float | None:
    # Falcon's query heads share one key-value head, except in its newer decoder architecture.
    if getattr(layer, "multi_query", False) and not getattr(layer, "new_decoder_architecture", False):
        return 1.0
    return _first(layer, "num_key_value_heads", "num_kv_heads", "num_attention_heads")


def _least_kv_heads(config: Any, count: int) -> float:
    return min((heads for _, layer in layers_of(config, count) if (heads := _kv_heads(layer))), default=1.0)


def _multiply_adds_per_pair(layer: Any) -> float:
    """Return the multiply-adds of one layer per token and earlier token; 0 where its config does not say."""
    heads, hidden = _first(layer, "num_attention_heads"), _first(layer, "hidden_size")
    if heads is None or hidden is None:
        return 0.0
    latent = _first(layer, "kv_lora_rank")
    if latent is not None:
        return heads * (2 * latent + (_first(layer, "qk_rope_head_dim") or 0.0))
    return 2 * heads * (_first(layer, "head_dim", "d_kv") or hidden / heads)


def _state(layer: Any) -> float | None:
    """Return the numbers in the state of one layer; None where its config does not say.

    Covers state spaces (Mamba, 2023), linear attention (a matrix per head) and gated recurrences.
    """
    width = _first(layer, "state_size", "ssm_state_size", "mamba_d_state")
    if width is not None:
        inner = (
            _first(layer, "mamba_d_ssm")
            or _product(layer, ("mamba_num_heads", "mamba_n_heads"), ("mamba_head_dim", "mamba_d_head"))
            or _product(layer, ("expand", "mamba_expand"), ("hidden_size",))
        )
        return None if inner is None else width * inner
    rows = _product(layer, ("linear_num_value_heads", "linear_num_heads"), ("linear_key_head_dim", "linear_head_dim"))
    columns = _first(layer, "linear_value_head_dim", "linear_head_dim")
    return rows * columns if rows and columns else _first(layer, "lru_width")


def _share_of_experts(config: Any) -> float | None:
    """Return the share of experts that a token uses; 1 without experts, None where it is not said."""
    experts, chosen = experts_of(config)
    if experts <= 1:
        return 1.0
    return None if chosen is None else min(1.0, chosen / experts)


def experts_of(config: Any) -> tuple[float, float | None]:
    """Return the experts of a layer, 0 without any, and how many of them a token uses; None where it is not said."""
    experts = _first(config, "num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
    chosen = _first(config, "num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "top_k_experts")
    return experts or 0.0, chosen


def _first(config: Any, *names: str) -> float | None:
    """Return the first of these fields that holds a number other than 0; None if none does."""
    found = (_same_in_all(getattr(config, name, None)) for name in names)
    return next((float(value) for value in found if isinstance(value, int | float) and value), None)


def _same_in_all(value: Any) -> Any:
    """Return the value of a list with one entry per layer that are all equal (Hunyuan), any other value as it is."""
    return value[0] if isinstance(value, list) and value and all(one == value[0] for one in value) else value


def _product(config: Any, first: tuple[str, ...], second: tuple[str, ...]) -> float | None:
    one, other = _first(config, *first), _first(config, *second)
    return one * other if one and other else None
