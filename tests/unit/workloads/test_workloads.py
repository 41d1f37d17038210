"""Models by name, their inputs, their weights and their cost."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from accel_platform.errors import InvalidInput, NotFound
from accel_platform.workloads.build import config_of
from accel_platform.workloads.cost import cost_of, parameters_of
from accel_platform.workloads.heads import training_head
from accel_platform.workloads.inputs import describe_inputs, make_inputs, with_image_size
from accel_platform.workloads.kv_cache import Decoder, decoder_of
from accel_platform.workloads.model_catalog import (
    ModelSpec,
    known_models,
    model_set,
    resolve_model,
    sequence_length_for,
)


@pytest.mark.parametrize(
    ("name", "model_id"),
    [
        ("bert-base", "bert-base"),
        ("bert-base-uncased", "bert-base"),
        ("google-bert/bert-base-uncased", "bert-base"),
        ("hf_bert", "bert-base"),
        ("BERT", "bert-base"),
        ("google/vit-base-patch16-224", "vit-base"),
        ("ViT_Base_Patch16_224", "vit-base"),
        ("some-company/t5-small", "t5-small"),
        ("openai/whisper-base", "whisper-base"),
        ("Qwen/Qwen2-0.5B-Instruct", "qwen2-0.5b"),
        ("openai/whisper-large-v3", "whisper-large-v3"),
        ("BAAI/bge-m3", "bge-m3"),
        ("timm/vit_base_patch16_224.augreg_in21k", "vit-base"),
        ("Qwen/Qwen3-Reranker-8B", "qwen3-8b"),
        ("intfloat/e5-mistral-7b-instruct", "mistral-7b"),
        ("depth-anything/Depth-Anything-V2-Small-hf", "depth-anything-v2-small"),
        ("microsoft/Florence-2-large-ft", "florence-2-large"),
        ("Qwen/Qwen2.5-VL-7B-Instruct", "qwen2.5-vl-7b"),
        ("resnet-101", "resnet101"),
        ("microsoft/resnet-152", "resnet152"),
        ("efficientnet_b4", "efficientnet-b4"),
        ("mobilenet_v2", "mobilenet-v2"),
        ("regnet_y_8gf", "regnety-080"),
        ("microsoft/deberta-large-mnli", "deberta-large"),
        ("vidore/colqwen2-v1.0", "qwen2-vl-2b"),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-32B", "qwen2.5-32b"),
        ("klue/bert-base", "klue-bert-base"),
        ("Wan-AI/Wan2.1-T2V-1.3B", "wan2.1-t2v-1.3b"),
    ],
)
def test_every_name_people_use_leads_to_the_model(name: str, model_id: str) -> None:
    assert resolve_model(name).model_id == model_id


@given(st.sampled_from([name for spec in known_models() for name in (spec.model_id, *spec.aliases)]), st.randoms())
def test_case_does_not_matter(name: str, random: object) -> None:
    shuffled = "".join(random.choice([c.upper(), c.lower()]) for c in name)  # type: ignore[attr-defined]
    assert resolve_model(shuffled) == resolve_model(name)


def test_an_unknown_model_is_not_found_and_close_names_are_offered() -> None:
    with pytest.raises(NotFound, match=r"'bert-bass'.*bert-base"):
        resolve_model("bert-bass")
    with pytest.raises(NotFound, match="`accel bench models` lists those"):
        resolve_model("zzzzzzzzzzzz")
    with pytest.raises(NotFound, match="small"):
        model_set("smal")


def test_the_catalogue_is_wide_enough() -> None:
    models = known_models()
    assert len(models) >= 20
    assert len({spec.family for spec in models}) >= 8
    assert {spec.modality for spec in models} == {"text", "vision", "audio", "multimodal"}
    assert [spec.model_id for spec in model_set("small")] == ["bert-base", "vit-base", "t5-small", "whisper-base"]


def test_the_key_set_has_every_key_class() -> None:
    architectures = {spec.architecture for spec in model_set("key")}
    assert architectures == {
        "bert", "clap", "clip", "detr", "llama", "llava", "llava_next", "qwen2", "t5", "vit", "wav2vec2", "whisper",
        "xclip", "resnet",
    }  # fmt: skip
    for spec in model_set("key"):
        assert 4 * parameters_of(spec) < 2 * 2**30, "each must run on a laptop"


@pytest.mark.parametrize("name", ["llava-tiny", "llava-next-tiny"])
def test_every_feature_of_an_image_has_its_token(name: str) -> None:
    import torch

    from accel_platform.workloads.build import build_model

    spec = resolve_model(name)
    model = build_model(spec)
    arrays = make_inputs(spec, batch_size=2)
    image_token = model.config.image_token_index
    features = (arrays["input_ids"] == image_token).sum(axis=1)
    # transformers itself refuses an image whose features are not as many as its tokens.
    one_less = {**arrays, "input_ids": arrays["input_ids"].copy()}
    one_less["input_ids"][0, np.flatnonzero(arrays["input_ids"][0] == image_token)[0]] = image_token - 1
    with torch.inference_mode():
        model(**{key: torch.from_numpy(array) for key, array in arrays.items()})
        with pytest.raises(ValueError, match=r"(?i)image features and image tokens do not match"):
            model(**{key: torch.from_numpy(array) for key, array in one_less.items()})
    assert features[0] == features[1] > 0
    with pytest.raises(InvalidInput, match=f"{features[0]} tokens of image"):
        make_inputs(spec, batch_size=1, sequence_length=32)


_ONE_OF_EACH_ARCHITECTURE = tuple({spec.architecture: spec for spec in reversed(known_models())}.values())
"""The first model of each; `test_traced_models.py` knows what each other costs, with and without a head."""


def test_chronos_bolt_predicts_on_the_scale_of_the_series() -> None:
    from accel_platform.workloads.build import build_model, outputs_of

    spec = resolve_model("amazon/chronos-bolt-tiny")
    model, arrays = build_model(spec), make_inputs(spec, batch_size=2, sequence_length=64)
    (predicted,) = outputs_of(model, arrays).values()
    (moved,) = outputs_of(model, {"past_values": 3 * arrays["past_values"] + 10}).values()
    assert predicted.shape == (2, 9, 64)
    assert not np.allclose(predicted[0], predicted[1])
    np.testing.assert_allclose(moved, 3 * predicted + 10, rtol=1e-3, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_models_have_the_parameters_of_the_published_checkpoints(part: int) -> None:
    """Defaults of transformers' configs, which the catalog leaves out, may change from one version to the next.

    The file holds counts of what is built here, without heads; each agrees with what its publisher states, heads added.
    """
    text = (Path(__file__).parent / "published_parameters.csv").read_text(encoding="utf-8")
    published = {row["model"]: float(row["parameters_m"]) for row in csv.DictReader(text.splitlines())}
    assert len(published) > 400
    quarter = dict(list(published.items())[part::4])
    counted = {name: parameters_of(resolve_model(name)) / 1e6 for name in quarter}
    assert counted == pytest.approx(quarter, rel=0.002)


@pytest.mark.slow
def test_published_parameters_count_what_is_left_out_here() -> None:
    """Millions that the publishers' tables state: of RF-DETR with its heads, of SAM 2.1 with its memory of videos."""
    detectors = {"nano": 30.5, "small": 32.1, "medium": 33.7, "large": 33.9}
    segmenters = {"tiny": 38.9, "small": 46, "base-plus": 80.8, "large": 224.4}
    counted: dict[str, float] = {}
    with torch.device("meta"):
        for size in detectors:
            detector = transformers.RfDetrForObjectDetection(config_of(resolve_model(f"rf-detr-{size}")))
            counted[f"rf-detr {size}"] = sum(p.numel() for p in detector.parameters()) / 1e6
        for size in segmenters:
            config = transformers.Sam2VideoConfig(
                vision_config=config_of(resolve_model(f"sam2.1-hiera-{size}")).vision_config,
                enable_temporal_pos_encoding_for_object_pointers=True,
                enable_occlusion_spatial_embedding=True,
            )
            counted[f"sam2.1 {size}"] = sum(p.numel() for p in transformers.Sam2VideoModel(config).parameters()) / 1e6
    published = {f"rf-detr {size}": millions for size, millions in detectors.items()}
    published |= {f"sam2.1 {size}": millions for size, millions in segmenters.items()}
    assert counted == pytest.approx(published, rel=0.002)


def test_detectors_see_images_of_the_size_that_their_processors_make() -> None:
    for name, edges in {
        "rt-detr-r50": (640, 640),
        "rt-detr-v2-r50": (640, 640),
        "d-fine-l": (640, 640),
        "detr-resnet-50": (800, 800),
        "yolos-tiny": (800, 1333),
        "yolo11n": (640, 640),
        "sam-vit-base": (1024, 1024),
        "sam2.1-hiera-tiny": (1024, 1024),
        "rf-detr-large": (704, 704),
        "mask2former-swin-tiny": (384, 384),
        "table-transformer-detection": (800, 800),
        "depth-anything-v2-small": (518, 518),
        "vitpose-base": (256, 192),
        "donut-base": (2560, 1920),
        "trocr-base": (384, 384),
        "florence-2-base": (768, 768),
        "layoutlmv3-base": (224, 224),
    }.items():
        (images,) = [item for item in describe_inputs(resolve_model(name), batch_size=1) if item.name == "pixel_values"]
        assert images.shape[-2:] == edges


def test_segment_anything_reads_images_of_the_size_asked_for() -> None:
    smaller = with_image_size(resolve_model("sam-vit-base"), 512)
    assert describe_inputs(smaller, batch_size=1)[0].shape == (1, 3, 512, 512)
    # A quarter of the image, by windows of 14 x 14 places, of which the edges fill up.
    assert (
        0.15 < cost_of(smaller, batch_size=1).flops / cost_of(resolve_model("sam-vit-base"), batch_size=1).flops < 0.3
    )


def test_an_image_size_is_asked_of_the_part_that_reads_it() -> None:
    for name in ("rf-detr-nano", "trocr-base", "vitpose-base", "depth-anything-v2-small", "mask2former-swin-tiny"):
        images, *_ = describe_inputs(with_image_size(resolve_model(name), 256), batch_size=1)
        assert images.shape == (1, 3, 256, 256)
    for name, edge in (("sam2.1-hiera-tiny", 1024), ("layoutlmv3-base", 224)):
        with pytest.raises(InvalidInput, match=f"images of {edge} x {edge} pixels alone"):
            with_image_size(resolve_model(name), 512)


def test_what_reads_images_beside_text_gets_both() -> None:
    def shapes(name: str) -> dict[str, tuple[int, ...]]:
        return {item.name: item.shape for item in describe_inputs(resolve_model(name), batch_size=2)}

    def image_tokens(name: str) -> int:
        return describe_inputs(resolve_model(name), batch_size=1)[0].image_tokens

    # LLaVA-1.5 and Florence-2 keep the features of 24 x 24 places, Florence-2 their mean besides; BLIP-2 asks 32.
    assert [image_tokens(name) for name in ("llava-1.5-7b", "florence-2-base", "blip2-opt-2.7b")] == [576, 577, 32]
    # LLaVA-NeXT and LLaVA-OneVision see an image and its four tiles, with an end after each line of these.
    tiled = {"llava-v1.6-mistral-7b": 24**2 + 48 * 49, "llava-onevision-7b": 27**2 + 54 * 55, "internvl3-1b": 256}
    assert {name: image_tokens(name) for name in tiled} == tiled
    assert shapes("llava-onevision-7b")["pixel_values"] == (2, 5, 3, 384, 384)
    assert shapes("nougat-base")["pixel_values"] == (2, 3, 896, 672)
    assert shapes("llava-1.5-7b")["input_ids"] == (2, 640)
    assert shapes("florence-2-base")["decoder_input_ids"] == (2, 16)
    assert shapes("layoutlmv3-base")["bbox"] == (2, 512, 4)
    assert shapes("trocr-base") == {"pixel_values": (2, 3, 384, 384), "decoder_input_ids": (2, 16)}
    assert shapes("videomae-base") == {"pixel_values": (2, 16, 3, 224, 224)}
    assert shapes("gemma-3-4b") == {"input_ids": (2, 128), "attention_mask": (2, 128)}
    assert resolve_model("gemma-3-4b").reads_text_alone
    others = ("gemma-3-1b", "llava-1.5-7b", "videomae-base", "timesfm-2.5-200m", "musicgen-small")
    assert not any(resolve_model(name).reads_text_alone for name in others)


def test_forecasters_read_values_and_music_is_made_of_several_tokens_a_frame() -> None:
    def shapes(name: str, length: int | None = None) -> dict[str, tuple[int, ...]]:
        inputs = describe_inputs(resolve_model(name), batch_size=2, sequence_length=length)
        return {item.name: item.shape for item in inputs}

    assert shapes("timesfm-2.0-500m", 1024) == {
        "past_values": (2, 1024), "past_values_padding": (2, 1024), "freq": (2, 1),
    }  # fmt: skip
    padding = make_inputs(resolve_model("timesfm-2.5-200m"), batch_size=2)["past_values_padding"]
    assert not padding.any(), "1 would be padding"
    assert shapes("chronos-bolt-base") == {"past_values": (2, 512)}
    with pytest.raises(InvalidInput, match="in patches of 32 values, not 100: ask a multiple"):
        shapes("timesfm-2.5-200m", 100)
    assert shapes("musicgen-small", 20) == {
        "input_ids": (2, 20), "attention_mask": (2, 20), "decoder_input_ids": (8, 20),
    }  # fmt: skip


@pytest.mark.slow
def test_flops_are_those_published() -> None:
    # In 10^9; of videos the authors count one per multiply-add.
    published = {"rf-detr-nano": 31.9, "rf-detr-large": 125.6, "videomae-base": 2 * 180, "timesformer-base": 2 * 196}
    counted = {name: cost_of(resolve_model(name), batch_size=1).flops / 1e9 for name in published}
    assert counted == pytest.approx(published, rel=0.01)


def test_no_token_is_taken_for_a_global_one_and_strided_ones_are_multiplied_at_once() -> None:
    from accel_platform.workloads.operators import trace_operators

    small = {
        "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2,
        "attention_window": [16], "vocab_size": 100, "max_position_embeddings": 80,
    }  # fmt: skip
    spec = ModelSpec("mine", "longformer", "longformer", "text", config=small, sequence_length=64)
    operators = trace_operators(spec, sequence_length=64).of_two
    products = {(op.kind, *op.dimensions): op.count for op in operators if op.kind.endswith(("linear", "matmul"))}
    # Queries, keys, values and the sum of heads; scores and their sums by windows of which each overlaps the next.
    assert products["linear", 2 * 64, 32, 32] == 4
    assert {kind for kind, *_ in products} == {"linear", "batched_matmul"}
    assert sum(count for (kind, *_), count in products.items() if kind == "batched_matmul") == 2


def test_sound_is_read_as_each_architecture_wants_it() -> None:
    def shapes(name: str, seconds: float | None = None) -> dict[str, tuple[int, ...]]:
        inputs = describe_inputs(resolve_model(name), batch_size=2, audio_seconds=seconds)
        return {item.name: item.shape for item in inputs}

    assert shapes("parakeet-ctc-0.6b", 7) == {"input_features": (2, 700, 80)}
    assert shapes("moonshine-tiny", 2) == {"input_values": (2, 32_000), "decoder_input_ids": (2, 16)}
    assert shapes("ast-audioset") == {"input_values": (2, 1024, 128)}
    assert shapes("w2v-bert-2.0", 10) == {"input_features": (2, 500, 160)}
    assert shapes("seamless-m4t-v2-large", 10) == {"input_features": (2, 500, 160), "decoder_input_ids": (2, 16)}
    assert shapes("parakeet-tdt-0.6b-v3") == {"input_features": (2, 500, 128), "decoder_input_ids": (2, 1)}
    with pytest.raises(InvalidInput, match="reads 1024 frames of sound at a time: leave out audio_seconds"):
        shapes("ast-audioset", 5)


@pytest.mark.slow
@pytest.mark.parametrize("spec", _ONE_OF_EACH_ARCHITECTURE, ids=lambda spec: spec.model_id)
def test_every_architecture_has_a_config_inputs_and_a_cost(spec: ModelSpec) -> None:
    assert config_of(spec).model_type == spec.architecture
    cost = cost_of(spec, batch_size=1)
    assert cost.parameters > 1_000_000
    assert cost.flops > 1_000_000
    assert cost.activation_bytes > 0


def test_costs_are_those_of_the_published_models() -> None:
    bert, resnet = resolve_model("bert-base"), resolve_model("resnet-50")
    assert cost_of(bert, batch_size=1).parameters == 109_482_240
    # 12 layers of 8 h² + 2 · 2 h² · 4 projections over 128 tokens, plus attention 4 n² h and the pooler.
    tokens, hidden = 128, 768
    layer = tokens * (8 * hidden**2 + 16 * hidden**2) + 4 * tokens**2 * hidden
    assert cost_of(bert, batch_size=1, sequence_length=tokens).flops == 12 * layer + 2 * hidden**2
    assert cost_of(resnet, batch_size=1).flops == pytest.approx(2 * 4.09e9, rel=0.01)
    assert cost_of(bert, batch_size=1).layers == 12
    assert cost_of(resolve_model("t5-small"), batch_size=1).layers == 12
    # timm states 16.49 and 11.11 million for ViT-B/16 and ResNet-50 at 224 pixels, without its 1,000 classes.
    for model, activations in ((resolve_model("vit-base"), 16_491_264), (resnet, 11_113_984)):
        assert cost_of(model, batch_size=1).layer_output_bytes == 4 * activations


@settings(max_examples=10, deadline=None)
@given(st.sampled_from(["bert-tiny", "vit-tiny", "t5-tiny", "resnet-18"]), st.integers(2, 16))
def test_cost_grows_with_the_batch_and_parameters_do_not(name: str, batch_size: int) -> None:
    spec = resolve_model(name)
    one, many = cost_of(spec, batch_size=1), cost_of(spec, batch_size=batch_size)
    assert many.flops == batch_size * one.flops
    assert many.parameters == one.parameters
    assert one.activation_bytes < many.activation_bytes <= batch_size * one.activation_bytes


def test_a_token_meets_two_experts_of_eight_and_costs_no_more() -> None:
    small = {
        "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 100, "num_local_experts": 8, "num_experts_per_tok": 2,
    }  # fmt: skip
    spec = ModelSpec("moe", "mixtral", "mixtral", "text", config=small, sequence_length=16)
    shape, cost = decoder_of(spec), cost_of(spec, batch_size=1)
    assert shape is not None
    assert (shape.layers, shape.kept_per_token) == (2, 2 * 2 * 2 * 16)
    experts = 2 * 8 * 3 * 64 * 128
    assert shape.parameters - shape.unread_parameters - shape.active_parameters == experts * 6 / 8
    # Two of three matrices per expert, over 16 tokens; attention and the gate come to less than a quarter of that.
    met = 2 * 16 * experts * 2 / 8
    assert met < cost.flops < 1.4 * met


@pytest.mark.parametrize(
    ("name", "shape"), [("t5-small", (6, 6 * 2 * 8 * 64)), ("whisper-base", (6, 6 * 2 * 8 * 64)), ("bert-tiny", None)]
)
def test_the_tower_that_answers_is_the_one_that_generates(name: str, shape: tuple[int, int] | None) -> None:
    found = decoder_of(resolve_model(name))
    assert (found and (found.layers, found.kept_per_token)) == shape


SMALL_TEXT = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 6, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 100,
}  # fmt: skip


def _shape(architecture: str, **config: Any) -> Decoder:
    found = decoder_of(ModelSpec("mine", architecture, "mine", "text", config=config, sequence_length=16))
    assert found is not None
    return found


def test_layers_keep_what_their_kind_keeps() -> None:
    of_one = 2 * 2 * 16
    kinds = [*["sliding_attention"] * 5, "full_attention"]
    gemma = _shape("gemma3_text", **SMALL_TEXT, layer_types=kinds, sliding_window=32)
    assert (gemma.kept_per_token, gemma.kept_in_window, gemma.window) == (of_one, 5 * of_one, 32)
    mistral = _shape("mistral", **SMALL_TEXT, sliding_window=32)
    assert (mistral.kept_per_token, mistral.kept_in_window, mistral.window) == (0, 6 * of_one, 32)
    linear = {"linear_num_value_heads": 4, "linear_num_key_heads": 4, "linear_key_head_dim": 8,
              "linear_value_head_dim": 16}  # fmt: skip
    kinds = [*["linear_attention"] * 3, "full_attention"] + ["linear_attention"] * 2
    qwen = _shape("qwen3_5_text", **SMALL_TEXT, layer_types=kinds, **linear)
    assert (qwen.kept_per_token, qwen.state) == (of_one, 5 * 4 * 8 * 16)
    mamba = _shape("mamba", hidden_size=64, num_hidden_layers=6, state_size=8, expand=2, vocab_size=100)
    assert (mamba.kept_per_token, mamba.kept_in_window, mamba.state) == (0, 0, 6 * 8 * 128)
    inner = {"mamba_num_heads": 4, "mamba_head_dim": 64, "ssm_state_size": 8, "mamba_n_groups": 1, "n_groups": 1}
    kinds = ["linear_attention", "full_attention", "mlp", "linear_attention", "mlp", "linear_attention"]
    nemotron = _shape("nemotron_h", **SMALL_TEXT, layer_types=kinds, **inner)
    assert (nemotron.kept_per_token, nemotron.state) == (of_one, 3 * 8 * 4 * 64)
    # Lightning attention has a state, too, of which no field of its config tells.
    kinds = ["linear_attention", "full_attention"] * 3
    untold = {**SMALL_TEXT, "layer_types": kinds}
    assert decoder_of(ModelSpec("mm", "minimax", "minimax", "text", config=untold, sequence_length=16)) is None
    compressed = {**SMALL_TEXT, "num_hidden_layers": 2, "layer_types": ["compressed_sparse_attention"] * 2}
    deepseek = _shape("deepseek_v4", **compressed)
    # A vector of two heads of 16, which holds keys and values at once, and an index key of 128: each for four tokens.
    vector = 2 * 16
    assert (deepseek.kept_per_token, deepseek.index_per_token) == (2 * (vector + 128) / 4, 2 * 128 / 4)
    assert (deepseek.kept_in_window, deepseek.window, deepseek.chosen_tokens) == (2 * vector, 128, 4 * 512)


def test_a_window_over_the_whole_context_is_none() -> None:
    phi = _shape("phi3", **SMALL_TEXT, pad_token_id=0, sliding_window=128, max_position_embeddings=64)
    assert (phi.kept_per_token, phi.kept_in_window) == (6 * 2 * 2 * 16, 0)
    assert phi.attended == 6 * 2 * 4 * 16


def test_heads_that_share_keys_and_values_keep_them_once() -> None:
    small = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100}
    falcon = _shape("falcon", **small, multi_query=True, new_decoder_architecture=False)
    assert (falcon.kept_per_token, falcon.cache_parts) == (2 * 2 * 16, 1)
    second = _shape("falcon", **small, multi_query=True, new_decoder_architecture=True, num_kv_heads=2)
    assert (second.kept_per_token, second.cache_parts) == (2 * 2 * 2 * 16, 2)
    # Layers of Gemma 4 that look back to the first have fewer key-value heads than others.
    kinds = [*["sliding_attention"] * 5, "full_attention"]
    gemma = _shape("gemma4_text", **SMALL_TEXT, layer_types=kinds, sliding_window=32, num_global_key_value_heads=1,
                   global_head_dim=32, attention_k_eq_v=True)  # fmt: skip
    assert (gemma.kept_per_token, gemma.cache_parts) == (2 * 32, 1)


def test_a_context_goes_by_several_names() -> None:
    bloom = _shape("bloom", hidden_size=64, n_layer=2, n_head=4, vocab_size=100, seq_length=2048)
    mpt = _shape("mpt", d_model=64, n_layers=2, n_heads=4, vocab_size=100, max_seq_len=4096)
    assert (bloom.context, mpt.context) == (2048, 4096)


@pytest.mark.parametrize(("tied", "own_head"), [(True, 0), (False, 100 * 64)])
def test_a_head_of_its_own_is_held_and_no_token_reads_the_embedding_beside_it(tied: bool, own_head: int) -> None:
    shape = _shape("qwen2", **SMALL_TEXT, tie_word_embeddings=tied)
    assert shape.parameters - shape.active_parameters == shape.unread_parameters == own_head


def test_layers_that_differ_are_counted_one_by_one() -> None:
    config = {**SMALL_TEXT, "layer_types": ["sliding_attention", "full_attention"] * 3, "sliding_window": 32}
    found = _shape("gemma4_text", **config, global_head_dim=32, num_kv_shared_layers=2, vocab_size_per_layer_input=100,
                   hidden_size_per_layer_input=8)  # fmt: skip
    # The last two use what others have kept.
    assert (found.kept_per_token, found.kept_in_window) == (2 * 2 * 2 * 32, 2 * 2 * 2 * 16)
    # A token needs one row of its table of embeddings per layer.
    assert found.unread_parameters == 100 * 6 * 8


def test_text_goes_past_layers_that_look_at_an_image_and_not_past_an_encoder() -> None:
    text = {**SMALL_TEXT, "num_hidden_layers": 4, "pad_token_id": 0}
    vision = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_global_layers": 1,
              "attention_heads": 2, "image_size": 56, "vision_output_dim": 64}  # fmt: skip
    shapes = [
        _shape("mllama", text_config={**text, "cross_attention_layers": crossing}, vision_config=vision)
        for crossing in ([1, 3], [1])
    ]
    assert [shape.layers for shape in shapes] == [2, 3]
    assert [shape.kept_per_token for shape in shapes] == [2 * 64, 3 * 64]
    assert shapes[0].active_parameters < shapes[1].active_parameters
    tower = {**SMALL_TEXT, "num_hidden_layers": 2}
    pair = _shape("t5gemma", encoder=tower, decoder=tower)
    assert pair.unread_parameters == 0


def test_a_window_never_holds_more_than_it_is_wide() -> None:
    shape = Decoder(1.0, 1.0, layers=1, kept_per_token=0, kept_in_window=1.0, window=100)
    # Growing all the time, full from the first token, and half of each.
    assert [shape.moved(into, out) for into, out in ((10, 20), (200, 20), (90, 20))] == [20, 100, 97.5]
    assert [shape.held(tokens) for tokens in (30, 220)] == [30, 100]


@given(st.integers(1, 300), st.integers(1, 300), st.integers(1, 300))
def test_a_window_is_the_mean_over_the_tokens_that_come_out(window: int, into: int, out: int) -> None:
    shape = Decoder(1.0, 1.0, layers=1, kept_per_token=0, kept_in_window=1.0, window=window)
    # A straight line between whole tokens, each of which has the mean of its ends.
    held = [min(window, into + at) for at in range(out + 1)]
    assert shape.moved(into, out) == pytest.approx((sum(held) - (held[0] + held[-1]) / 2) / out)


def test_cost_grows_with_the_sequence() -> None:
    spec = resolve_model("bert-tiny")
    short, long = (cost_of(spec, batch_size=1, sequence_length=n) for n in (64, 128))
    assert long.flops > 2 * short.flops, "attention is quadratic"


def test_inputs_are_equal_for_equal_arguments_and_differ_by_seed() -> None:
    spec = resolve_model("bert-tiny")
    first, again, other = (make_inputs(spec, batch_size=3, sequence_length=7, seed=s) for s in (1, 1, 2))
    assert first["input_ids"].shape == (3, 7)
    assert first["input_ids"].max() < config_of(spec).vocab_size
    np.testing.assert_array_equal(first["input_ids"], again["input_ids"])
    assert (first["input_ids"] != other["input_ids"]).any()


def test_encoder_decoders_get_decoder_inputs() -> None:
    for name in ("t5-small", "bart-base", "whisper-base"):
        inputs = {item.name: item for item in describe_inputs(resolve_model(name), batch_size=2)}
        assert inputs["decoder_input_ids"].shape[0] == 2
        assert inputs["decoder_input_ids"].kind == "tokens"


def test_a_length_means_nothing_to_an_image_and_too_long_a_text_is_refused() -> None:
    assert sequence_length_for(resolve_model("vit-base"), 64) is None
    assert sequence_length_for(resolve_model("bert-base"), None) == 128
    with pytest.raises(InvalidInput, match="at most 512"):
        describe_inputs(resolve_model("bert-base"), batch_size=1, sequence_length=513)
    with pytest.raises(InvalidInput, match="batch size"):
        describe_inputs(resolve_model("bert-base"), batch_size=0)
    with pytest.raises(InvalidInput, match="at least 1"):
        sequence_length_for(resolve_model("bert-base"), 0)


@pytest.mark.slow
def test_every_process_gets_the_same_random_weights() -> None:
    script = (
        "import hashlib; from accel_platform.workloads.build import build_model;"
        "from accel_platform.workloads.model_catalog import resolve_model;"
        "state = build_model(resolve_model('bert-tiny')).state_dict();"
        "digest = hashlib.sha256(b''.join(k.encode() + v.numpy().tobytes() for k, v in sorted(state.items())));"
        "print(digest.hexdigest())"
    )
    runs = [
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=env)
        for env in ({"PYTHONHASHSEED": "1", "OMP_NUM_THREADS": "1"}, {"PYTHONHASHSEED": "2", "OMP_NUM_THREADS": "2"})
    ]
    assert len(runs[0].stdout.strip()) == 64
    assert runs[0].stdout == runs[1].stdout


def test_building_leaves_the_callers_random_state_alone() -> None:
    import torch

    from accel_platform.workloads.build import build_model

    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    build_model(resolve_model("bert-tiny"))
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("spec", _ONE_OF_EACH_ARCHITECTURE, ids=lambda spec: spec.model_id)
def test_every_architecture_can_be_built_with_the_head_it_is_trained_with(spec: ModelSpec) -> None:
    with torch.device("meta"):
        model = getattr(transformers, training_head(spec)).from_config(config_of(spec))
    assert sum(parameter.numel() for parameter in model.parameters()) > 0
