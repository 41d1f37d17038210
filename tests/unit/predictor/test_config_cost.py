"""Untrusted configs: what those of models that could see as well cost to the child, and which operators it traces."""

from __future__ import annotations

import re
import resource
from pathlib import Path
from typing import Any

import pytest

from accel_platform.errors import InvalidInput
from accel_platform.workloads.operators import OperatorProfile
from predictor.data import config_cost, config_worker, traced_models
from predictor.data.config_cost import canonical_config, config_operators, estimate_config_cost
from predictor.data.fast_path import SlowPathRequired, fast_path_only

GEMMA_3_4B: dict[str, Any] = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "model_type": "gemma3",
    "mm_tokens_per_image": 256,
    "text_config": {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    },
    "vision_config": {
        "hidden_size": 1152,
        "image_size": 896,
        "intermediate_size": 4304,
        "model_type": "siglip_vision_model",
        "num_attention_heads": 16,
        "num_hidden_layers": 27,
        "patch_size": 14,
        "vision_use_head": False,
    },
}
LLAMA_4_SCOUT: dict[str, Any] = {
    "architectures": ["Llama4ForConditionalGeneration"],
    "model_type": "llama4",
    "text_config": {
        "attention_chunk_size": 8192,
        "head_dim": 128,
        "hidden_size": 5120,
        "interleave_moe_layer_step": 1,
        "intermediate_size": 8192,
        "intermediate_size_mlp": 16384,
        "model_type": "llama4_text",
        "no_rope_layers": [],
        "num_attention_heads": 40,
        "num_experts_per_tok": 1,
        "num_hidden_layers": 48,
        "num_key_value_heads": 8,
        "num_local_experts": 16,
        "vocab_size": 202048,
    },
    "vision_config": {
        "hidden_size": 1408,
        "image_size": 336,
        "intermediate_size": 5632,
        "num_attention_heads": 16,
        "num_hidden_layers": 34,
        "patch_size": 14,
        "vision_output_dim": 4096,
    },
}


@pytest.mark.slow
def test_a_model_that_sees_is_costed_for_text_alone() -> None:
    """The report on Gemma 3 (2025, table 1) has 417 million parameters of its tower and 3,880 million of its text."""
    found = estimate_config_cost(GEMMA_3_4B)
    assert (found.architecture, found.modality, found.text_alone, found.layers) == ("gemma3", "text", True, 34)
    assert found.parameters == pytest.approx(4.30e9, rel=0.005)
    shape = found.decoder
    assert shape is not None
    assert shape.active_parameters == pytest.approx(3_880e6, rel=0.005)
    # Two per parameter and token, but for the table of embeddings.
    embedded = 262_208 * 2560
    assert found.flops / 128 == pytest.approx(2 * (shape.active_parameters - embedded), rel=0.02)
    # Four keys and four values of 256 in each layer; every sixth looks back to the first token.
    assert (shape.kept_per_token, shape.kept_in_window, shape.window) == (5 * 2048, 29 * 2048, 1024)
    with pytest.raises(InvalidInput, match="refused"):
        estimate_config_cost(GEMMA_3_4B, sequence_length=10**9)


@pytest.mark.slow
def test_a_mixture_of_experts_that_sees_has_the_figures_of_its_makers() -> None:
    """Meta's card of Llama 4 Scout: 109 billion parameters, 17 billion of them active."""
    shape = estimate_config_cost(LLAMA_4_SCOUT).decoder
    assert shape is not None
    assert (round(shape.parameters / 1e9), round(shape.active_parameters / 1e9)) == (109, 17)
    assert (shape.kept_per_token, shape.kept_in_window, shape.window) == (12 * 2048, 36 * 2048, 8192)


@pytest.mark.slow
def test_what_matches_images_and_texts_reads_both() -> None:
    tower = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = {
        "model_type": "siglip",
        "text_config": {**tower, "vocab_size": 100, "projection_size": 64},
        "vision_config": {**tower, "image_size": 32, "patch_size": 16},
    }
    small, large = estimate_config_cost(config), estimate_config_cost(config, image_size=64)
    assert (small.modality, small.text_alone, small.sequence_length) == ("multimodal", False, 64)
    assert large.flops > small.flops


@pytest.mark.slow
def test_configs_of_architectures_that_have_a_head_alone_or_read_videos_are_costed() -> None:
    backbone = {"model_type": "swin", "image_size": 224, "out_features": ["stage1", "stage2", "stage3", "stage4"]}
    masks = estimate_config_cost({"model_type": "mask2former", "backbone_config": backbone})
    assert (masks.modality, masks.image_size, round(masks.parameters / 1e6, 1)) == ("vision", 384, 47.4)
    video = estimate_config_cost({"model_type": "videomae", "num_frames": 8})
    assert (video.modality, video.image_size) == ("vision", None)
    depth = estimate_config_cost({"model_type": "depth_anything"})
    assert (depth.image_size, round(depth.parameters / 1e6, 1)) == (518, 24.8)
    text = estimate_config_cost({"model_type": "longformer", "num_hidden_layers": 2, "max_position_embeddings": 1026})
    assert (text.modality, text.sequence_length) == ("text", 1026)


@pytest.mark.slow
def test_text_has_a_place_for_each_feature_of_a_larger_image() -> None:
    tower = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = {
        "model_type": "llava",
        "image_token_index": 99,
        "text_config": {"model_type": "llama", **tower, "vocab_size": 100},
        "vision_config": {"model_type": "clip_vision_model", **tower, "image_size": 336, "patch_size": 14},
    }
    assert estimate_config_cost(config).sequence_length == 24 * 24 + 64


@pytest.mark.slow
def test_what_reads_something_else_is_refused_in_words() -> None:
    with pytest.raises(InvalidInput, match="what a video model reads cannot be told"):
        estimate_config_cost({"model_type": "vivit"})
    # Images of any size, in pieces that its processor cuts.
    with pytest.raises(InvalidInput, match="what a multimodal model reads cannot be told"):
        estimate_config_cost({"model_type": "siglip2"})


@pytest.mark.slow
def test_what_hears_and_answers_in_text_is_costed_for_text_too() -> None:
    tower = {"d_model": 32, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 64}
    text = {"model_type": "qwen2", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1000}  # fmt: skip
    found = estimate_config_cost({"model_type": "qwen2_audio", "audio_config": tower, "text_config": text})
    assert (found.text_alone, found.layers) == (True, 2)
    assert found.decoder is not None
    assert found.decoder.kept_per_token == 2 * 2 * 2 * 16


NARROW: dict[str, Any] = {
    "model_type": "bert", "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
    "intermediate_size": 64, "vocab_size": 100,
}  # fmt: skip


@pytest.mark.slow
def test_operators_come_with_the_cost_of_the_same_sizes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(traced_models, "_cache_folder", lambda: tmp_path)
    cost, text = estimate_config_cost(NARROW, sequence_length=48), canonical_config(NARROW)
    with fast_path_only():
        profile = config_operators(text, sequence_length=48)
        with pytest.raises(SlowPathRequired):
            config_operators(text, sequence_length=48, training=True)
    assert isinstance(profile, OperatorProfile)
    assert profile.parameters == cost.parameters
    products = sum(operator.count * operator.flops for operator in profile.at(1))
    assert products == pytest.approx(cost.flops, rel=1e-6)
    # Another process need not trace it again.
    config_cost._trace_in_child.cache_clear()
    monkeypatch.setattr(config_cost, "WORKER", "no.such.module")
    assert estimate_config_cost(NARROW, sequence_length=48) == cost
    assert config_operators(text, sequence_length=48) == profile


def test_no_config_is_traced_on_the_fast_path() -> None:
    with fast_path_only(), pytest.raises(SlowPathRequired):
        config_operators(canonical_config({**NARROW, "vocab_size": 101}))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({**NARROW, "intermediate_size": 0}, r"cannot be traced: one of them \(addmm\) has a size of 0"),
        (
            {"model_type": "resnet", "hidden_sizes": list(range(32, 32 + 8 * 150, 8)), "depths": [1] * 150},
            "cannot be traced: 1,[0-9]{3} different ones are over the limit of 1,024",
        ),
    ],
    ids=["a width of 0", "every layer another"],
)
def test_operators_without_a_price_have_a_reason_and_their_cost_stays(config: dict[str, Any], reason: str) -> None:
    assert estimate_config_cost(config).flops > 0
    problem = config_operators(canonical_config(config))
    assert isinstance(problem, str)
    assert re.search(reason, problem)


@pytest.mark.slow
def test_operators_are_traced_within_the_limits_of_time_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_cost, "CPU_S", 4)
    deep = {"model_type": "t5", "num_layers": 1000, "d_model": 64}
    problem = config_operators(canonical_config(deep))
    assert isinstance(problem, str)
    assert "within 4 s and 4096 MiB" in problem


def test_the_child_describes_its_config_once(monkeypatch: pytest.MonkeyPatch) -> None:
    described: list[dict[str, Any]] = []

    def describe(config: dict[str, Any]) -> Any:
        described.append(config)
        return describe_config(config)

    describe_config = config_worker.spec_from_config
    monkeypatch.setattr(config_worker, "spec_from_config", describe)
    # This process is no child of its own: the limits would be its own for all tests.
    monkeypatch.setattr(resource, "setrlimit", lambda *_: None)
    job = {"config": {"model_type": "bert", "num_hidden_layers": 1}, "image_size": None, "sequence_length": None,
           "audio_seconds": None, "training": False, "memory_mib": 1, "cpu_s": 1}  # fmt: skip
    answers: list[dict[str, Any]] = []
    config_worker.handle_job(job, answers.append)
    assert [answers[0]["architecture"], "profile" in answers[1]] == ["bert", True]
    assert described == [job["config"]]
