"""Any model type of transformers: what it is, how it is made small, and which inputs are made for it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from accel_platform.errors import NotFound
from accel_platform.workloads.architectures import CATEGORIES, classify, guess_family, model_types
from accel_platform.workloads.input_discovery import NoInputs, find_inputs, vary_values
from accel_platform.workloads.model_catalog import architectures, known_models
from accel_platform.workloads.synthetic_inputs import configs_of, reserved_tokens
from accel_platform.workloads.tiny_configs import VOCABULARY, WIDTH, default_config, shrink


@pytest.mark.parametrize(
    ("model_type", "family", "category"),
    [
        ("bert", "bert", "text"),
        ("camembert", "bert", "text"),
        ("xlm-roberta", "bert", "text"),
        ("modernbert", "bert", "text"),
        ("mt5", "t5", "text"),
        ("gpt_neox", "gpt", "text"),
        ("qwen3_vl_moe", "qwen", "multimodal"),
        ("qwen3_vl_moe_text", "qwen", "text"),
        ("qwen3_vl_moe_vision", "qwen", "vision"),
        ("qwen2_audio", "qwen", "multimodal"),
        ("llama4", "llama", "multimodal"),
        ("clip", "clip", "multimodal"),
        ("clip_vision_model", "clip", "vision"),
        ("rt_detr", "detr", "vision"),
        ("dinov2", "dino", "vision"),
        ("videomae", "videomae", "video"),
        ("whisper", "whisper", "audio"),
        ("wavlm", "wav2vec2", "audio"),
        ("speech_to_text", "speech-to-text", "audio"),
        ("encodec", "encodec", "audio"),
        ("patchtst", "patchtst", "time-series"),
        ("informer", "informer", "time-series"),
        ("decision_transformer", "decision-transformer", "decision"),
    ],
)
def test_a_model_type_has_a_family_and_a_category(model_type: str, family: str, category: str) -> None:
    assert classify(model_type) == (family, category)


def test_classification_agrees_with_the_models_known_by_name() -> None:
    for spec in known_models():
        # A model that reads more than is measured keeps the category of all it reads.
        category = architectures()[spec.architecture].get("category", spec.modality)
        assert classify(spec.architecture) == (spec.family, category)


def test_every_model_type_is_classified() -> None:
    for model_type in model_types()[::25]:
        family, category = classify(model_type)
        assert family
        assert category in CATEGORIES


def test_an_unknown_model_type_is_an_error() -> None:
    with pytest.raises(NotFound, match="no model type 'berd'"):
        classify("berd")


def test_a_published_name_speaks_of_its_family() -> None:
    families = {
        "tf_efficientnetv2_b0.in1k": "efficientnet",
        "timm/tv_resnet50.tv_in1k": "resnet",
        "legacy_seresnext26_32x4d": "seresnext",
        "beit-base-patch16-224": "beit",
        "mistralai/Mistral-7B-v0.1": "mistral",
        "google/flan-t5-xl": "t5",
        "yolov5m6": "yolo",
        "r3d-18": "r3d",
        "42": None,
        "": None,
    }
    assert {name: guess_family(name) for name in families} == families


@pytest.mark.parametrize("model_type", ["bert", "llama", "qwen3_moe", "clip", "gemma3", "qwen2_5_vl", "whisper"])
def test_a_shrunk_config_is_small_and_fits_together(model_type: str) -> None:
    small = shrink(default_config(model_type), "tiny")
    for part in configs_of(small):
        if isinstance(getattr(part, "vocab_size", None), int):
            assert part.vocab_size <= VOCABULARY
        if isinstance(getattr(part, "hidden_size", None), int):
            assert part.hidden_size <= WIDTH
            heads = getattr(part, "num_attention_heads", None)
            assert heads is None or part.hidden_size % heads == 0
        if isinstance(getattr(part, "layer_types", None), list):
            assert len(part.layer_types) == part.num_hidden_layers
    assert all(token < VOCABULARY for token in reserved_tokens(small))


def test_both_kinds_of_layers_of_a_mixed_model_stay() -> None:
    usual = default_config("gemma3_text")
    assert len(set(usual.layer_types)) == 2
    small = shrink(usual, "tiny")
    assert small.num_hidden_layers == 2
    assert set(small.layer_types) == set(usual.layer_types)


def test_what_a_parent_chose_for_its_tower_is_kept() -> None:
    usual = default_config("llava")
    small = shrink(usual, "narrow")
    assert usual.vision_config.patch_size != type(usual.vision_config)().patch_size
    assert small.vision_config.patch_size == usual.vision_config.patch_size
    assert shrink(usual, "default") is usual


class Asking(torch.nn.Module):
    """A model that wants three placeholders for its image, and says so the way transformers does."""

    main_input_name = "input_ids"

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config

    def forward(self, input_ids: Any = None, pixel_values: Any = None, attention_mask: Any = None) -> Any:
        count = int((input_ids == self.config.image_token_id).sum())
        if count != 3:
            raise ValueError(f"Image features and image tokens do not match, tokens: {count}, features: 3")
        assert attention_mask.shape == input_ids.shape
        return pixel_values


def test_a_models_own_complaint_says_how_many_placeholders_it_wants() -> None:
    model = Asking(shrink(default_config("llava"), "tiny"))
    inputs, _ = find_inputs(model, lambda given: model(**given))
    assert int((inputs["input_ids"] == model.config.image_token_id).sum()) == 3
    other = vary_values(inputs, model.config)
    assert torch.equal(
        other["input_ids"] == model.config.image_token_id, inputs["input_ids"] == model.config.image_token_id
    )
    assert not torch.equal(other["input_ids"], inputs["input_ids"])
    assert not torch.equal(other["pixel_values"], inputs["pixel_values"])


class Refusing(Asking):
    def forward(self, inference_session: Any) -> Any:  # type: ignore[override]
        return inference_session


def test_an_input_that_is_no_tensor_is_named_as_the_reason() -> None:
    model = Refusing(default_config("llava"))
    with pytest.raises(NoInputs, match="no tensor"):
        find_inputs(model, lambda given: model(**given))
