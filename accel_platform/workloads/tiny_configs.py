"""Small configs of any architecture: fewer layers, experts and words, narrow layers.

All widths become one number, so that equal widths stay equal across sub-configs, and head counts are made to fit.
Derived figures are computed anew, because a new config is constructed. Where a narrow config does not build or run, the
caller takes the next `Scale`.
"""

from __future__ import annotations

import re
from typing import Any, Literal, get_args

from huggingface_hub.errors import StrictDataclassError

from accel_platform.workloads.build import new_config

Scale = Literal["tiny", "narrow", "shallow", "default"]
"""`tiny` shrinks all that is known, `narrow` all but images, `shallow` keeps the widths, `default` keeps everything."""
SCALES: tuple[Scale, ...] = get_args(Scale)

LAYERS = 2
WIDTH = 64
HEADS = 4
HEAD_DIM = WIDTH // HEADS
INNER = 2 * WIDTH
"""Inner width of feed-forward layers."""
EXPERTS = 4
VOCABULARY = 512
PATCHES = 8
"""Patches along each side of an image."""

_LAYERS = re.compile(r"(^|_)(num_hidden_layers|num_layers|n_layers?|layers|depth|num_blocks|hidden_layers)$")
_NOT_LAYERS = re.compile(r"feat|conv|levels|window_layers|adapter")
_HEADS = re.compile(r"(^|_)(num_heads|n_heads?|heads|num_attention_heads)$")
_KEY_VALUE = re.compile(r"key_value|kv_heads|num_kv|n_kv|kv_n")
_HEAD_DIM = re.compile(r"(^|_)(head_dim|d_kv|kv_channels|v_head_dim|head_size|qk_head_dim|dim_head|d_head)$")
_INNER = re.compile(r"intermediate|ffn|feed_?forward|mlp_dim|(^|_)d_ff$|dim_ff$|^d_inner$|^dff$|linear_units")
_WIDTH = re.compile(
    r"hidden_size|hidden_dim|(^|_)(d_model|n_embd|embed_dim|embedding_size|embedding_dim|emb_dim|dim|projection_dim|"
    r"adapter_input_size|adapter_out_dim|proj_dim|project_dim|output_dim|lora_rank|lru_width|out_dim|projection_size)$"
)
_NOT_WIDTH = re.compile(r"per_layer|codebook|vector|bbox|conv_kernel|patch|pos_|rope|num_|window|frequency|^mask_dim")
_EXPERTS = re.compile(r"(^|_)(num_experts|n_routed_experts|num_local_experts|num_routed_experts|moe_num_experts)$")
_PER_TOKEN = re.compile(r"(experts_per_tok|experts_per_token|top_?k|moe_k|_topk)$")
_TOKEN = re.compile(r"_(token_id|token_index|token_ids|idx|index)$")
_VOCABULARY = re.compile(r"(^|_)vocab_size$")
_LAYER_INDICES = re.compile(r"feature_layers?$|^deepstack_visual_indexes|^fullatt_block_indexes|^global_attn_indexes")
_SEVERAL = re.compile(r"head|dim|hidden|embed|channels|filters|depths|widths")
"""A list of one of these makes a config hierarchical: its widths depend on each other stage by stage."""

_EXACT: dict[str, int] = {
    "qk_head_dim": 2 * HEAD_DIM,
    "upsample_groups": WIDTH,
    "n_group": 1,
    "topk_group": 1,
    "num_expert_group": 1,
    "first_k_dense_replace": 1,
    "num_kv_shared_layers": 0,
    "num_nextn_predict_layers": 0,
    "num_dense_layers": 1,
    "rotary_dim": HEAD_DIM // 2,
    "index_head_dim": HEAD_DIM,
    "index_topk": 8,
    "index_kpool": 2,
    "mm_tokens_per_image": 4,
    "hidden_size_per_layer_input": 16,
    "n_groups": 1,
    "mamba_n_groups": 1,
    "mamba_ngroups": 1,
    "mamba_d_head": INNER // HEADS,
    "mamba_head_dim": INNER // HEADS,
    "mamba_headdim": INNER // HEADS,
}


_MULTI_AXIS = ("qwen2_vl_text", "qwen2_5_vl_text", "qwen2_5_omni_text", "glm4v_text", "glm4v_moe_text",
               "glm_image_text", "glm_ocr_text", "paddleocr_vl_text", "hunyuan_vl_text")  # fmt: skip
"""Models whose code, not their config, divides the rotary embedding among axes for heads of the published size."""
_ABSENT: dict[str, int] = {
    "head_dim": HEAD_DIM,
    "num_key_value_heads": HEADS,
    "vocab_size": VOCABULARY,
    "num_experts": EXPERTS,
    "n_routed_experts": EXPERTS,
    "num_local_experts": EXPERTS,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "top_k_experts": 2,
    "moe_intermediate_size": INNER,
}
"""Figures that some config classes leave open although their models need them."""


NEEDED: dict[str, dict[str, Any]] = {
    **{name: {"prediction_length": 8} for name in ("autoformer", "informer", "time_series_transformer")},
    "esm": {"pad_token_id": 1, "mask_token_id": 2},
    "mamba2": {"head_dim": INNER // HEADS},
    "lfm2_moe": {"layer_types": ["conv"] * 31 + ["full_attention"]},
    "moonshine_streaming": {"num_key_value_heads": HEADS, "head_dim": HEAD_DIM},
    "t5gemma2_text": {"dropout_rate": 0.0},
    "blip-2": {"image_token_index": 300},
    "instructblip": {"image_token_index": 300},
    "instructblipvideo": {"video_token_index": 300},
    "qwen2_5_omni_thinker": {"vision_start_token_id": 151652},
    "qwen3_omni_moe_thinker": {"vision_start_token_id": 151652},
    "llama4_vision_model": {"intermediate_size": 4 * WIDTH},
    "voxtral": {"audio_token_id": 300},
    "chameleon": {"vocabulary_map": {"<image>": 300, **{f"IMGIMGA{chr(65 + n)}Z": 310 + n for n in range(16)}}},
}
"""Arguments that a config class leaves out or unusable although its model needs them, by model type."""


def default_config(model_type: str) -> Any:
    """Return the default config of a model type, completed by `NEEDED`, without a network."""
    return new_config(model_type, **NEEDED.get(model_type, {}))


def shrink(config: Any, scale: Scale) -> Any:
    """Return a new config of the same class at this scale. Raises the class's own error where the figures do not
    fit.
    """
    if scale == "default":
        return config
    changes = _changes(config, scale)
    for name, value in vars(config).items():
        if hasattr(value, "model_type") and hasattr(value, "to_dict"):
            changes[name] = shrink(value, scale)
    if scale in ("tiny", "narrow"):
        changes |= {
            name: value for name, value in NEEDED.get(config.model_type, {}).items() if not isinstance(value, list)
        }
    return _reconstruct(config, changes)


def _constructor_arguments(config: Any, changes: dict[str, Any]) -> dict[str, Any]:
    """Return a config's constructor arguments with the changes; a tower's figures may be its parent's choice."""
    usual = vars(type(config)())
    return {
        name: value
        for name, value in vars(config).items()
        if not name.startswith("_") and name not in changes and name in usual and usual[name] != value
    }


def _changes(config: Any, scale: Scale) -> dict[str, Any]:
    """Return the fields that differ at this scale; a hierarchical config keeps its widths."""
    values = {name: value for name, value in vars(config).items() if not name.startswith("_")}
    hierarchical = any(_is_per_stage(name, value) and len(value) > 1 for name, value in values.items())
    narrows = scale in ("tiny", "narrow")
    stages = {len(value) for name, value in values.items() if _is_per_stage(name, value)} if hierarchical else set()
    changes: dict[str, Any] = {}
    for name, value in values.items():
        changed: Any = None
        if isinstance(value, list):
            changed = _shorten(name, value)
        elif value is None and (narrows or name != "head_dim"):
            changed = _ABSENT.get(name)
        elif isinstance(value, int) and not isinstance(value, bool):
            changed = _reduce(name, value, stages, narrows=narrows and not hierarchical)
        if changed is not None:
            changes[name] = changed
    if changes and narrows and not hierarchical:
        _fit_key_value_heads(values, changes)
        _fit_head_dims(config.model_type, values, changes)
    if scale == "tiny" and not hierarchical:
        _fit_images(values, changes)
    _fit_tokens(values, changes)
    return changes


def _reduce(name: str, value: int, stages: set[int], *, narrows: bool) -> int | None:
    """Return a smaller figure; None where it stays. `stages` are the numbers of stages of a hierarchical config."""
    # The number of layers of a hierarchical config may be its number of stages.
    counts_stages = value in stages and _LAYERS.search(name) is not None
    reduced = None if counts_stages else _shallow(name, value)
    if reduced is None and narrows:
        reduced = _narrow(name, value)
    return None if reduced == value else reduced


def _is_per_stage(name: str, value: Any) -> bool:
    """Return whether a field has a width, or the like, for each stage."""
    return isinstance(value, list | tuple) and _SEVERAL.search(name) is not None


def _shorten(name: str, values: list[Any]) -> list[int] | None:
    """Return a list of depths, or of indices of layers, for fewer layers; None for another list."""
    if name == "depths":
        return [1] * len(values)
    if _LAYER_INDICES.search(name) and all(isinstance(value, int) for value in values):
        return [max(-LAYERS, min(value, LAYERS - 1)) for value in values]
    return None


def _shallow(name: str, value: int) -> int | None:
    """Return fewer layers, experts or words; None for another name."""
    if _VOCABULARY.search(name) and "type" not in name:
        return min(value, VOCABULARY)
    if name in _EXACT and re.search(r"layer|group|dense|^index_", name):
        return min(value, _EXACT[name])
    if _LAYERS.search(name) and not _NOT_LAYERS.search(name):
        return min(value, LAYERS)
    if _EXPERTS.search(name):
        return min(value, EXPERTS)
    if _PER_TOKEN.search(name):
        return min(value, 2)
    return None


def _narrow(name: str, value: int) -> int | None:
    if name in _EXACT:
        return min(value, _EXACT[name])
    if _HEAD_DIM.search(name):
        return min(value, HEAD_DIM)
    if _HEADS.search(name) and not _KEY_VALUE.search(name):
        return min(value, HEADS)
    if _INNER.search(name):
        return min(value, INNER)
    if _WIDTH.search(name) and not _NOT_WIDTH.search(name):
        return min(value, WIDTH)
    return None


def _fit_key_value_heads(values: dict[str, Any], changes: dict[str, Any]) -> None:
    """Keep as many key-value heads as query heads if they were equal, else half as many, else one."""
    for name, value in values.items():
        if not (_KEY_VALUE.search(name) and _HEADS.search(name)) or not isinstance(value, int) or value <= 1:
            continue
        queries = values.get(name.replace("_key_value", "_attention"), values.get("num_attention_heads"))
        changes[name] = HEADS if value == queries else min(value, HEADS // 2)


def _fit_head_dims(model_type: str, values: dict[str, Any], changes: dict[str, Any]) -> None:
    """Fit the width of heads to that of queries and keys, and the axes of a rotary embedding to the width of heads."""
    if values.get("head_dim") is not None and values["head_dim"] == values.get("qk_head_dim"):
        changes["head_dim"] = _EXACT["qk_head_dim"]
    rope = values.get("rope_parameters") or {}
    if "mrope_section" in rope or model_type in _MULTI_AXIS:
        rotated = int(HEAD_DIM * rope.get("partial_rotary_factor", 1.0)) // 2
        changes["rope_parameters"] = {**rope, "mrope_section": [rotated - 2 * (rotated // 3), *[rotated // 3] * 2]}


def _fit_images(values: dict[str, Any], changes: dict[str, Any]) -> None:
    """Cut images to a few patches."""
    patch, size = values.get("patch_size"), values.get("image_size")
    if isinstance(patch, int) and isinstance(size, int):
        changes["image_size"] = min(size, PATCHES * patch)
        if "mm_tokens_per_image" in values:
            changes["mm_tokens_per_image"] = _EXACT["mm_tokens_per_image"]


def _fit_tokens(values: dict[str, Any], changes: dict[str, Any]) -> None:
    """Move special tokens beyond a smaller vocabulary to its end, each to its own place."""
    limit = VOCABULARY
    for name, value in values.items():
        if isinstance(value, int) and not isinstance(value, bool) and value >= limit and _TOKEN.search(name):
            changes[name] = special_token(name)
        elif isinstance(value, list) and _TOKEN.search(name) and any(isinstance(v, int) and v >= limit for v in value):
            changes[name] = [special_token(f"{name}{n}") for n in range(len(value))]


_SPECIAL: dict[str, int] = {}


def special_token(name: str) -> int:
    """Return a token for each name, equal in every sub-config, from the last hundred words."""
    place = _SPECIAL.setdefault(name, len(_SPECIAL))
    return VOCABULARY - 1 - place % 200


def _reconstruct(config: Any, changes: dict[str, Any]) -> Any:
    """Construct the config anew with these changes, so that derived figures follow.

    A list with an entry per layer, if given, is cut to one entry of each kind.
    """
    given = _constructor_arguments(config, changes)
    lists: dict[str, list[Any]] = {}
    for name, value in vars(config).items():
        if name in changes and isinstance(value, int) and _LAYERS.search(name):
            lists |= {
                other: _cut(entries, changes[name])
                for other, entries in vars(config).items()
                if isinstance(entries, list) and len(entries) == value and other not in changes
            }
    try:
        return type(config)(**{**given, **changes, **lists})
    except (ValueError, TypeError, AttributeError, StrictDataclassError):
        if not lists:
            raise
    return type(config)(**{**{name: value for name, value in given.items() if name not in lists}, **changes})


def _cut(entries: list[Any], count: int) -> list[Any]:
    """Return `count` entries: one of each kind in their order, then further ones from the front."""
    kinds = {str(entry): entry for entry in reversed(entries)}
    ordered = sorted(kinds.values(), key=entries.index)
    return (ordered + entries)[:count]
