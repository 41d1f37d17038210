"""Architectures: every model type of the installed transformers, with family and category.

The category follows from transformers' task tables and the config class. The family follows from the architectures in
`sets.toml`, else from the stem of the model type.
"""

from __future__ import annotations

import re
import tomllib
from functools import lru_cache
from importlib.resources import files
from typing import Any, Literal, NamedTuple, get_args

from accel_platform.errors import NotFound

Category = Literal["text", "vision", "video", "audio", "multimodal", "time-series", "decision"]
CATEGORIES: tuple[Category, ...] = get_args(Category)


class ArchitectureKind(NamedTuple):
    """Family and category of an architecture."""

    family: str
    category: Category


def model_types() -> tuple[str, ...]:
    """Return every architecture with a model of its own (`AutoModel` knows it), in transformers' order."""
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    return tuple(MODEL_MAPPING_NAMES)


def classify(model_type: str) -> ArchitectureKind:
    """Return family and category of a model type, importing at most its config class. Raises NotFound."""
    from transformers import CONFIG_MAPPING

    from accel_platform.workloads.build import register_architecture

    register_architecture(model_type)
    if model_type not in CONFIG_MAPPING:
        raise NotFound(f"The installed transformers has no model type {model_type!r}.")
    return ArchitectureKind(family_of(model_type), _category(model_type, CONFIG_MAPPING[model_type]))


def generates_text(model_type: str) -> bool:
    """Return whether the architecture generates text and has a model of its own, so it also reads text alone."""
    return model_type in model_types() and model_type in _model_types_of(("MULTIMODAL_LM", "CAUSAL_LM"))


def matches_images_to_text(model_type: str) -> bool:
    """Return whether the architecture reads an image of one size and a text to match, as CLIP does."""
    from transformers import CONFIG_MAPPING

    towers = getattr(CONFIG_MAPPING[model_type], "sub_configs", {})
    sized = hasattr(towers.get("vision_config"), "image_size") and "text_config" in towers
    return sized and model_type in _model_types_of(("ZERO_SHOT_IMAGE_CLASSIFICATION",))


# --- family

_EXCEPTIONS = {
    "audio-spectrogram-transformer": "ast",
    "openai_privacy_filter": "gpt",
    "vision-text-dual-encoder": "clip",
    "xlm": "bert",
    "megatron-bert": "bert",
    "m2m_100": "bart",
    "speech_to_text": "speech-to-text",
    "time_series_transformer": "time-series-transformer",
    "table-transformer": "detr",
    "d_fine": "detr",
    "speecht5": "speecht5",
    "seggpt": "vit",
    "wavlm": "wav2vec2",
    "dinov3_vit": "dino",
    "dinov3_convnext": "dino",
    "mm-grounding-dino": "grounding-dino",
    "grounding-dino": "grounding-dino",
    "decision_transformer": "decision-transformer",
}
"""Names whose first word says nothing of their design."""
_LONGER_STEMS = ("seamless_m4t", "pp_doclayout", "pp_ocr", "big_bird", "kosmos", "rt_detr", "vits")
"""Stems with a separator in them, or that a shorter family's name begins."""

_VERSION = re.compile(r"v?[\d.]+[a-z]{0,2}\d*$")
"""End of a word that tells the version or the size."""
_PREFIX = re.compile(r"^((adv|bat|dm|eca|ese|gc|gluon|hf|ig|jx|lambda|legacy|nf|ssl|swsl|test|tf|timm|tv)[-_])+")
"""Prefixes for the publisher of the weights or for one kind of block, which make no family."""


def guess_family(name: str) -> str | None:
    """Return the family that a published name speaks of, None where it says nothing.

    `tf_efficientnetv2_b0.in1k` is efficientnet, `mistralai/Mistral-7B-v0.1` is mistral. Unlike `family_of` it takes any
    text.
    """
    plain = _PREFIX.sub("", name.casefold().rpartition("/")[2].strip("-_. "))
    family = family_of(plain) if plain else ""
    return family if re.match("[a-z].", family) else None


def family_of(model_type: str) -> str:
    """Return the family from `sets.toml`, else of a known architecture that this stem begins or ends with, else the
    stem.

    `camembert` and `modernbert` are bert, `qwen3_vl_moe_text` is qwen.
    """
    known = _named_architectures()
    if model_type in known:
        return known[model_type].family
    if model_type in _EXCEPTIONS:
        return _EXCEPTIONS[model_type]
    for stem in _LONGER_STEMS:
        if model_type.startswith(stem):
            return "detr" if stem == "rt_detr" else stem.replace("_", "-")
    written = re.split(r"[-_]", model_type)
    words = [plain if len(plain := _VERSION.sub("", word)) > 1 else word for word in written]
    families = _stems()
    for word in (words[0], words[-1], *words[1:-1]):
        if word in families:
            return families[word]
    for stem in sorted(families, key=len, reverse=True):
        if any(word.endswith(stem) or (len(stem) > 2 and word.startswith(stem)) for word in (written[0], words[0])):
            return families[stem]
    return words[0]


@lru_cache(maxsize=1)
def named_models() -> dict[str, Any]:
    """Return the content of `sets.toml`. It is read once, because that takes 30 ms."""
    content: dict[str, Any] = tomllib.loads((files(__package__) / "sets.toml").read_text(encoding="utf-8"))
    return content


@lru_cache(maxsize=1)
def _named_architectures() -> dict[str, ArchitectureKind]:
    return {
        name: ArchitectureKind(entry["family"], entry.get("category", entry["modality"]))
        for name, entry in named_models()["architectures"].items()
    }


@lru_cache(maxsize=1)
def _stems() -> dict[str, str]:
    """Map the stem of each named architecture, and each family's name, to the family."""
    stems = {
        stem: kind.family
        for name, kind in _named_architectures().items()
        if len(stem := re.sub(r"[\d.]+$", "", name)) > 2
    }
    return {**stems, **{kind.family: kind.family for kind in _named_architectures().values()}}


# --- category

_Signs = tuple[tuple[Category, tuple[str, ...]], ...]

_TELLING_TASKS: _Signs = (
    ("time-series", ("TIME_SERIES_CLASSIFICATION", "TIME_SERIES_PREDICTION", "TIME_SERIES_REGRESSION")),
    (
        "multimodal",
        (
            "MULTIMODAL_LM", "IMAGE_TEXT_TO_TEXT", "VISUAL_QUESTION_ANSWERING", "DOCUMENT_QUESTION_ANSWERING",
            "ZERO_SHOT_IMAGE_CLASSIFICATION", "ZERO_SHOT_OBJECT_DETECTION",
        ),
    ),
    (
        "audio",
        (
            "AUDIO_CLASSIFICATION", "CTC", "RNNT", "TDT", "SPEECH_SEQ_2_SEQ", "AUDIO_XVECTOR",
            "AUDIO_FRAME_CLASSIFICATION", "TEXT_TO_SPECTROGRAM", "TEXT_TO_WAVEFORM",
        ),
    ),
)  # fmt: skip
"""Task tables of transformers that leave no doubt: a model that reads images and text is also a language model."""
_TASKS: _Signs = (
    ("video", ("VIDEO_CLASSIFICATION",)),
    (
        "vision",
        (
            "IMAGE", "IMAGE_CLASSIFICATION", "OBJECT_DETECTION", "SEMANTIC_SEGMENTATION", "UNIVERSAL_SEGMENTATION",
            "INSTANCE_SEGMENTATION", "DEPTH_ESTIMATION", "BACKBONE", "MASKED_IMAGE_MODELING", "MASK_GENERATION",
            "KEYPOINT_DETECTION", "KEYPOINT_MATCHING", "IMAGE_TO_IMAGE", "TEXT_RECOGNITION", "TABLE_RECOGNITION",
            "POSE_ESTIMATION", "IMAGE_MATTING",
        ),
    ),
    (
        "text",
        (
            "CAUSAL_LM", "MASKED_LM", "SEQ_TO_SEQ_CAUSAL_LM", "SEQUENCE_CLASSIFICATION", "TOKEN_CLASSIFICATION",
            "QUESTION_ANSWERING", "TEXT_ENCODING", "MULTIPLE_CHOICE", "TABLE_QUESTION_ANSWERING",
        ),
    ),
)  # fmt: skip
_PARTS: tuple[tuple[Category, str], ...] = (
    ("text", r"^(text|qformer)"),
    ("video", r"^video"),
    ("vision", r"vision|image|backbone|^patch_model|^mask_decoder"),
    ("audio", r"audio|speech|codec|acoustic|vocoder"),
)
_TELLING_FIELDS: _Signs = (
    ("decision", ("act_dim",)),
    ("time-series", ("prediction_length", "lags_sequence", "horizon_length")),
)
_FIELDS: _Signs = (
    (
        "audio",
        ("num_mel_bins", "sampling_rate", "audio_channels", "input_feat_size", "feat_extract_norm", "n_filters",
         "upsampling_ratios", "resblock_kernel_sizes", "subsampling_factor", "latent_stride"),
    ),
    ("video", ("num_frames", "frames_per_clip", "tubelet_size")),
    ("vision", ("patch_size", "image_size", "num_channels", "stem_channels", "backbone_config")),
    ("text", ("vocab_size",)),
)  # fmt: skip
"""Fields of a config that give away what the model reads."""
_CATEGORY_EXCEPTIONS: dict[str, Category] = {
    "blip_2_qformer": "multimodal",
    "visual_bert": "multimodal",
    "pe_audio_video_encoder": "multimodal",
    "tvp": "multimodal",
    "sam3": "multimodal",
    "sam3_lite_text": "multimodal",
    "sam3_video": "multimodal",
    "oneformer": "vision",
    "glm_image_vqmodel": "vision",
    "pe_audio": "multimodal",
}
"""Towers and fusions whose config does not say what reaches them."""


def _category(model_type: str, config_class: Any) -> Category:
    """Return the first category that a sign below indicates."""
    named = _named_architectures().get(model_type)
    return (
        (named.category if named is not None else None)
        or _CATEGORY_EXCEPTIONS.get(model_type)
        or _by_field(config_class, _TELLING_FIELDS)
        or _by_task(model_type, _TELLING_TASKS)
        or _by_name(model_type, r"_(text|vision|audio)(_model|_encoder)?$")
        or _by_parts(config_class)
        or _by_task(model_type, _TASKS)
        or _by_field(config_class, _FIELDS)
        or ("audio" if re.search(r"audio|codec|acoustic|speech", model_type) else "text")
    )


def _by_task(model_type: str, tasks: _Signs) -> Category | None:
    return next((category for category, names in tasks if model_type in _model_types_of(names)), None)


def _by_field(config_class: Any, fields: _Signs) -> Category | None:
    held = _fields(config_class)
    return next((category for category, names in fields if held.intersection(names)), None)


def _by_name(model_type: str, pattern: str) -> Category | None:
    """Return the category that the name of a part of a larger model states."""
    found = re.search(pattern, model_type)
    return found[1] if found else None  # type: ignore[return-value]


def _by_parts(config_class: Any) -> Category | None:
    """Return multimodal for towers of several kinds of which one reads text, else the only kind."""
    parts = {
        category
        for name in getattr(config_class, "sub_configs", {})
        for category, pattern in _PARTS
        if re.search(pattern, name)
    }
    if len(parts) > 1 and "text" in parts:
        return "multimodal"
    return None


@lru_cache(maxsize=64)
def _model_types_of(tasks: tuple[str, ...]) -> frozenset[str]:
    from transformers.models.auto import modeling_auto

    tables = (getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES", {}) for task in tasks)
    return frozenset(name for table in tables for name in table)


def _fields(config_class: Any) -> set[str]:
    """Return a config's own field names, without those of every config."""
    from transformers import PretrainedConfig

    common = set(dir(PretrainedConfig))
    return {name for base in config_class.__mro__ for name in getattr(base, "__annotations__", {})} - common
