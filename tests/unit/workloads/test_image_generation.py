"""Models that draw images: what they compute, cost and refuse, by tiny ones and by the published figures."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from accel_platform.backends.pytorch import PyTorchBackend
from accel_platform.bench.plan.plan import plan_cells
from accel_platform.bench.plan.support import unsupported_reason
from accel_platform.bench.prepare import worker
from accel_platform.bench.prepare.artifacts import Artifacts
from accel_platform.bench.prepare.description import describe_model, read_description
from accel_platform.errors import InvalidInput
from accel_platform.workloads.build import build_model, outputs_of
from accel_platform.workloads.cost import cost_of, meta_model, parameters_of
from accel_platform.workloads.custom_models import custom_models
from accel_platform.workloads.inputs import describe_inputs, make_inputs, with_image_size
from accel_platform.workloads.model_catalog import (
    IMAGE_GENERATORS,
    VIDEO_GENERATORS,
    ModelSpec,
    known_models,
    resolve_model,
)
from accel_platform.workloads.operators import trace_operators
from predictor.data.config_worker import spec_from_config

_CLIP = {
    "architectures": ["CLIPTextModel"], "vocab_size": 100, "hidden_size": 32, "intermediate_size": 64,
    "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 16, "projection_dim": 32,
    "bos_token_id": 98, "eos_token_id": 99,
}  # fmt: skip
_PROJECTED = {**_CLIP, "architectures": ["CLIPTextModelWithProjection"]}
_T5 = {
    "architectures": ["T5EncoderModel"], "vocab_size": 100, "d_model": 64, "d_ff": 64, "d_kv": 16, "num_layers": 2,
    "num_heads": 4,
}  # fmt: skip
_GPT = {
    "vocab_size": 100, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "use_cache": False,
}  # fmt: skip
_QWEN_VL = {
    "architectures": ["Qwen2_5_VLForConditionalGeneration"],
    "text_config": {
        **_GPT, "bos_token_id": 98, "eos_token_id": 99,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]},
    },
    "vision_config": {
        "depth": 1, "hidden_size": 32, "out_hidden_size": 32, "intermediate_size": 32, "num_heads": 2,
        "fullatt_block_indexes": [0],
    },
}  # fmt: skip
_MISTRAL = {
    "architectures": ["Mistral3ForConditionalGeneration"],
    "text_config": {**_GPT, "model_type": "mistral", "sliding_window": None},
    "vision_config": {
        "model_type": "pixtral", "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1,
        "num_attention_heads": 2, "image_size": 28, "patch_size": 14,
    },
    "tie_word_embeddings": False,
}  # fmt: skip
_U_NET = {
    "block_out_channels": [16, 32], "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D"],
    "up_block_types": ["CrossAttnUpBlock2D", "UpBlock2D"], "layers_per_block": 1, "norm_num_groups": 8,
    "attention_head_dim": 4, "cross_attention_dim": 32,
}  # fmt: skip
_VIDEO = {"width": 64, "height": 32, "frames": 5}
_TINY: dict[str, dict[str, Any]] = {
    "stable-diffusion": {"text_encoders": {"clip": _CLIP}, "denoiser": _U_NET},
    "stable-diffusion-xl": {
        "text_encoders": {"clip": _CLIP, "clip_2": _PROJECTED},
        "denoiser": {
            **_U_NET, "cross_attention_dim": 64, "transformer_layers_per_block": [1, 2], "use_linear_projection": True,
            "addition_embed_type": "text_time", "addition_time_embed_dim": 8,
            "projection_class_embeddings_input_dim": 80,
        },
    },
    "stable-diffusion-3": {
        "text_encoders": {"clip": _PROJECTED, "clip_2": _PROJECTED, "t5": _T5},
        "denoiser": {
            "num_layers": 2, "num_attention_heads": 4, "attention_head_dim": 8, "joint_attention_dim": 64,
            "caption_projection_dim": 32, "pooled_projection_dim": 64, "pos_embed_max_size": 32, "in_channels": 4,
            "out_channels": 4,
        },
    },
    "flux": {
        "text_encoders": {"clip": _CLIP, "t5": _T5},
        "denoiser": {
            "num_layers": 1, "num_single_layers": 1, "attention_head_dim": 16, "num_attention_heads": 2,
            "joint_attention_dim": 64, "pooled_projection_dim": 32, "in_channels": 16, "axes_dims_rope": [4, 6, 6],
            "guidance_embeds": True,
        },
    },
    "flux-2": {
        "text_encoders": {"mistral": _MISTRAL}, "prompt_layers": [1, 2],
        "denoiser": {
            "num_layers": 1, "num_single_layers": 1, "attention_head_dim": 16, "num_attention_heads": 2,
            "joint_attention_dim": 64, "in_channels": 16, "axes_dims_rope": [4, 4, 4, 4],
        },
    },
    "pixart-sigma": {
        "text_encoders": {"t5": _T5},
        "denoiser": {
            "num_layers": 2, "num_attention_heads": 4, "attention_head_dim": 8, "cross_attention_dim": 32,
            "caption_channels": 64, "sample_size": 16,
        },
    },
    "qwen-image": {
        "text_encoders": {"qwen": _QWEN_VL},
        "denoiser": {
            "num_layers": 2, "attention_head_dim": 16, "num_attention_heads": 2, "joint_attention_dim": 32,
            "in_channels": 16, "out_channels": 4, "axes_dims_rope": [4, 6, 6],
        },
        "decoder": {
            "base_dim": 8, "z_dim": 4, "dim_mult": [1, 1], "num_res_blocks": 1, "temperal_downsample": [False],
            "latents_mean": [0.5] * 4, "latents_std": [2.0] * 4,
        },
    },
    "sana": {
        "text_encoders": {"gemma": {**_GPT, "architectures": ["Gemma2Model"]}},
        "denoiser": {
            "in_channels": 4, "out_channels": 4, "num_layers": 2, "num_attention_heads": 4, "attention_head_dim": 8,
            "num_cross_attention_heads": 2, "cross_attention_head_dim": 16, "cross_attention_dim": 32,
            "caption_channels": 32,
        },
        "decoder": {
            "latent_channels": 4, "attention_head_dim": 8, "encoder_block_types": ["ResBlock", "EfficientViTBlock"],
            "decoder_block_types": ["ResBlock", "EfficientViTBlock"], "encoder_block_out_channels": [8, 16],
            "decoder_block_out_channels": [8, 16], "encoder_layers_per_block": [1, 1],
            "decoder_layers_per_block": [1, 1], "encoder_qkv_multiscales": [[], [5]],
            "decoder_qkv_multiscales": [[], [5]],
        },
    },
    "z-image": {
        "text_encoders": {"qwen": {**_GPT, "architectures": ["Qwen3Model"]}},
        "denoiser": {
            "in_channels": 4, "dim": 32, "n_layers": 2, "n_refiner_layers": 1, "n_heads": 2, "n_kv_heads": 2,
            "cap_feat_dim": 32, "axes_dims": [4, 6, 6],
        },
    },
    "wan": {
        **_VIDEO, "text_encoders": {"umt5": {**_T5, "architectures": ["UMT5EncoderModel"]}},
        "denoiser": {
            "num_layers": 1, "num_attention_heads": 2, "attention_head_dim": 16, "in_channels": 4, "out_channels": 4,
            "text_dim": 64, "freq_dim": 16, "ffn_dim": 32,
        },
        "decoder": {
            "base_dim": 8, "z_dim": 4, "dim_mult": [1, 1, 1, 1], "num_res_blocks": 1, "latents_mean": [0.5] * 4,
            "latents_std": [2.0] * 4,
        },
    },
    "cogvideox": {
        **_VIDEO, "frames": 9, "text_encoders": {"t5": _T5},
        "denoiser": {
            "num_layers": 1, "num_attention_heads": 2, "attention_head_dim": 16, "in_channels": 4, "out_channels": 4,
            "text_embed_dim": 64, "time_embed_dim": 16, "max_text_seq_length": 8,
            "use_rotary_positional_embeddings": True,
        },
        "decoder": {
            "block_out_channels": [8, 8, 8, 8], "layers_per_block": 1, "norm_num_groups": 2, "latent_channels": 4,
        },
    },
    "hunyuan-video": {
        **_VIDEO, "text_encoders": {"llama": {**_GPT, "architectures": ["LlamaModel"]}, "clip": _CLIP},
        "denoiser": {
            "num_layers": 1, "num_single_layers": 1, "num_refiner_layers": 1, "num_attention_heads": 2,
            "attention_head_dim": 16, "in_channels": 4, "out_channels": 4, "text_embed_dim": 32,
            "pooled_projection_dim": 32, "rope_axes_dim": [4, 6, 6],
        },
        "decoder": {
            "block_out_channels": [8, 8, 8, 8], "layers_per_block": 1, "norm_num_groups": 2, "latent_channels": 4,
        },
    },
    "ltx-video": {
        **_VIDEO, "frames": 9, "text_encoders": {"t5": _T5},
        "denoiser": {
            "num_layers": 1, "num_attention_heads": 2, "attention_head_dim": 16, "in_channels": 4, "out_channels": 4,
            "cross_attention_dim": 32, "caption_channels": 64,
        },
        "decoder": {
            "block_out_channels": [8, 8, 8, 8], "decoder_block_out_channels": [8, 8, 8, 8],
            "layers_per_block": [1] * 5, "decoder_layers_per_block": [1] * 5, "latent_channels": 4,
        },
    },
}  # fmt: skip
_DECODER = {
    "block_out_channels": [16, 16], "down_block_types": ["DownEncoderBlock2D"] * 2,
    "up_block_types": ["UpDecoderBlock2D"] * 2, "layers_per_block": 1, "norm_num_groups": 8, "latent_channels": 4,
}  # fmt: skip


def _tiny(architecture: str, **config: Any) -> ModelSpec:
    shape = {"image_size": 32, "steps": 3, "prompt_tokens": 8, "decoder": _DECODER}
    described = {"architecture": architecture, "config": {**shape, **_TINY[architecture], **config}}
    (spec,) = custom_models({"tiny": described}, where="test").values()
    return spec


def _clip_of(spec: ModelSpec) -> tuple[int, ...]:
    """Return frames, height and width of what is drawn; of an image no frames."""
    if spec.architecture not in VIDEO_GENERATORS:
        return 32, 32
    return spec.config["frames"], spec.config["height"], spec.config["width"]


@pytest.mark.slow
def test_each_architecture_draws_images_and_is_traced_as_it_computes() -> None:
    assert set(_TINY) == set(IMAGE_GENERATORS)
    for architecture in IMAGE_GENERATORS:
        spec = _tiny(architecture)
        # torch's counter fails on parameters that are handed to modules, unless nothing is learned.
        model, arrays = build_model(spec).requires_grad_(False), make_inputs(spec, batch_size=2)
        # Attention is counted as the products that it is made of.
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            (images,) = outputs_of(model, arrays).values()
        assert images.shape == (2, 3, *_clip_of(spec))
        assert np.isfinite(images).all()
        # A trace runs one step of three, and counts the FLOPs of all three. It counts only the pairs of CLIP's causal
        # attention that meet.
        traced = cost_of(spec, batch_size=2).flops
        assert traced == pytest.approx(counter.get_total_flops(), rel=2e-3), architecture
        assert not np.array_equal(images[0], images[1])


@pytest.mark.slow
def test_steps_guidance_and_size_change_what_is_computed() -> None:
    one, two, three = (trace_operators(_tiny("stable-diffusion", steps=steps)).of_two for steps in (1, 2, 3))
    by_steps = [sum(operator.count * operator.flops for operator in operators) for operators in (one, two, three)]
    assert by_steps[2] - by_steps[1] == by_steps[1] - by_steps[0] > 0
    assert len(two) == len(three)
    plain = cost_of(_tiny("stable-diffusion", guided=False), batch_size=1)
    guided = cost_of(_tiny("stable-diffusion"), batch_size=1)
    assert 1.3 * plain.flops < guided.flops < 2 * plain.flops
    larger = with_image_size(_tiny("stable-diffusion"), 64)
    assert describe_inputs(larger, batch_size=1)[0].shape == (1, 4, 32, 32)
    assert describe_model(larger).image_size == 64
    assert cost_of(larger, batch_size=1).flops > 2 * guided.flops


@pytest.mark.slow
def test_a_prepared_model_runs_and_draws_what_the_reference_draws(tmp_path: Path) -> None:
    for architecture in IMAGE_GENERATORS:
        spec, artifacts = _tiny(architecture), Artifacts(tmp_path / architecture)
        messages: list[dict[str, Any]] = []
        job = {
            "model": asdict(spec), "folder": str(artifacts.folder), "kinds": ["weights"], "shapes": [(1, None)],
            "threads": 1,
        }  # fmt: skip
        worker.prepare_job(job, messages.append)
        assert messages == [{"kind": "prepared", "drawn": ()}]
        data = np.load(artifacts.data((1, None)))
        backend = PyTorchBackend(device="cpu", threads=1)
        backend.load(artifacts.weights, precision="float32")
        inputs = {name.removeprefix("input/"): data[name] for name in data.files if name.startswith("input/")}
        backend.compile(inputs)
        backend.bind(inputs)
        backend.run()
        assert np.allclose(backend.outputs()["images"], data["reference/images"], atol=1e-5)
        assert backend.precision_share() == 1.0
        if architecture == "flux":
            loaded = backend.model.t5
            assert loaded.encoder.embed_tokens.weight is loaded.shared.weight
        described, reason = read_description(spec, artifacts)
        assert reason is None
        assert described.image_size == (None if architecture in VIDEO_GENERATORS else 32)


@pytest.mark.slow
def test_editors_read_an_image_in_each_step() -> None:
    for architecture, guided in (("flux", False), ("qwen-image", True)):
        plain, editor = _tiny(architecture, guided=guided), _tiny(architecture, guided=guided, edits=True)
        arrays = make_inputs(editor, batch_size=2)
        assert arrays["picture"].shape == (2, 3, 32, 32)
        model = build_model(editor)
        (images,) = outputs_of(model, arrays).values()
        (others,) = outputs_of(model, {**arrays, "picture": arrays["picture"] + 1}).values()
        assert images.shape == others.shape == (2, 3, 32, 32)
        assert not np.allclose(images, others)
        by_steps = [
            cost_of(replace(spec, config={**spec.config, "steps": steps}), batch_size=1).flops
            for spec in (plain, editor)
            for steps in (1, 2)
        ]
        # Twice as many patches beside as many words; the image itself is read once.
        assert 1.4 < (by_steps[3] - by_steps[2]) / (by_steps[1] - by_steps[0]) < 2.5
    kontext, dev = resolve_model("flux-kontext"), resolve_model("flux-dev")
    assert parameters_of(kontext) == parameters_of(dev)


def test_z_image_computes_a_batch_as_diffusers_does_one_by_one() -> None:
    # Not above: it imports for 2 s, which each process of tests would wait for.
    from accel_platform.workloads.image_generation.base import Prompt

    model: Any = build_model(_tiny("z-image", image_size=64, prompt_tokens=32, guided=False, steps=1))
    noise, words, time = torch.randn(2, 4, 32, 32), torch.randn(2, 32, 32), torch.tensor([0.7, 0.7])
    with torch.inference_mode():
        alone = model.denoiser(list(noise.unsqueeze(2)), 1 - time, list(words)).sample
        together = model.unpack(model.predict(model.pack(noise), time, Prompt(words)))
    assert torch.allclose(together, -torch.stack(alone).squeeze(2), atol=1e-5)
    assert together.std() > 0.01


def test_a_language_model_reads_prompts_of_the_length_asked_for() -> None:
    for architecture, tokens in (("flux-2", 8), ("flux", 16)):
        inputs = {item.name: item for item in describe_inputs(_tiny(architecture), batch_size=1)}
        assert inputs["mistral" if architecture == "flux-2" else "clip"].shape == (1, tokens)
    assert inputs["t5"].shape == (1, 8)
    short, long = (cost_of(_tiny("flux-2", prompt_tokens=tokens), batch_size=1).flops for tokens in (8, 16))
    assert short < long


def test_runs_that_cannot_be_are_refused_with_the_reason() -> None:
    spec = _tiny("stable-diffusion")
    reasons = {
        (cell.hardware, cell.mode): unsupported_reason(cell)
        for hardware, mode in (("cpu", "inference"), ("onnxruntime", "inference"), ("cpu:compile", "inference"),
                               ("cpu", "training"), ("cpu", "generation"))
        for cell in plan_cells([spec], [hardware], (1,), modes=(mode,))
    }  # fmt: skip
    assert reasons.pop(("cpu", "inference")) is None
    found = {key: reason.reason for key, reason in reasons.items() if reason is not None}
    assert "it runs on cpu, cuda, rocm, mps" in found["onnxruntime", "inference"]
    assert "repeats its denoiser" in found["cpu:compile", "inference"]
    assert "measured in inference, not in training" in found["cpu", "training"]
    assert "does not generate" in found["cpu", "generation"]


def test_wrong_sizes_steps_and_fields_are_refused_with_what_is_right() -> None:
    for architecture, unit, sizes in (
        ("stable-diffusion", 8, "24 or 32"),
        ("flux", 16, "16 or 32"),
        ("sana", 32, "32"),
    ):
        with pytest.raises(InvalidInput, match=f"multiples of {unit} pixels, not of 30: ask for {sizes}"):
            describe_inputs(_tiny(architecture, image_size=30), batch_size=1)
    with pytest.raises(InvalidInput, match="at least 1 step to draw an image, not 0"):
        cost_of(_tiny("flux", steps=0), batch_size=1)
    with pytest.raises(InvalidInput, match="has no 'step', did you mean steps"):
        _tiny("flux", step=4)
    with pytest.raises(InvalidInput, match="draws videos of the size that its config states: leave out image_size"):
        with_image_size(_tiny("wan"), 64)
    for wrong, words in (
        ({"text_encoders": {"clip": _CLIP}}, "text_encoders names clip: flux has clip, t5"),
        (
            {"text_encoders": {"clip": {"architectures": ["Clip"]}, "t5": _T5}},
            "clip needs `architectures` .*CLIPTextMod",
        ),
        ({"decoder": {"layers_per_block": 2}}, "the decoder needs block_out_channels"),
    ):
        with pytest.raises(InvalidInput, match=f"its config is refused: {words}"):
            _tiny("flux", **wrong)


def test_catalog_entries_state_their_steps() -> None:
    drawing = [spec for spec in known_models() if spec.architecture in IMAGE_GENERATORS]
    assert len(drawing) >= 8
    assert all(spec.config["steps"] >= 1 for spec in drawing)
    assert resolve_model("sdxl") == resolve_model("stabilityai/stable-diffusion-xl-base-1.0")
    assert resolve_model("black-forest-labs/FLUX.1-dev").config["steps"] == 50
    assert resolve_model("black-forest-labs/FLUX.2-klein-4B").config["steps"] == 4
    assert resolve_model("Tongyi-MAI/Z-Image-Turbo") == resolve_model("z-image-turbo")
    assert resolve_model("Qwen/Qwen-Image-2512") == resolve_model("qwen-image")


def test_a_published_config_describes_one_too() -> None:
    spec = spec_from_config({"model_type": "flux", "steps": 4, **_TINY["flux"]})
    assert (spec.family, spec.modality, spec.sequence_length) == ("flux", "vision", None)
    assert spec.config["steps"] == 4


@pytest.mark.slow
def test_parts_have_the_parameters_of_the_published_ones() -> None:
    published = {
        "stable-diffusion-v1-5": (859.5, [123.1], 83.7),
        "stable-diffusion-2-1": (865.9, [340.4], 83.7),
        "stable-diffusion-xl-base-1.0": (2567.5, [123.1, 694.7], 83.7),
        "stable-diffusion-3-medium": (2028.3, [123.7, 694.7, 4762.3], 83.8),
        "stable-diffusion-3.5-medium": (2243.2, [123.7, 694.7, 4762.3], 83.8),
        "stable-diffusion-3.5-large": (8056.6, [123.7, 694.7, 4762.3], 83.8),
        "flux.1-dev": (11901.4, [123.1, 4762.3], 83.8),
        "flux.1-schnell": (11891.2, [123.1, 4762.3], 83.8),
    }
    for name, (denoiser, encoders, decoder) in published.items():
        assert _parameters_of_parts(name) == pytest.approx([denoiser, *encoders, decoder], abs=0.06), name


@pytest.mark.slow
def test_parts_have_the_billions_that_their_publishers_or_files_state() -> None:
    published = {
        "qwen-image": (20, 8.29, 0.127),
        "z-image": (6, 4.02, 0.0838),
        "flux.2-dev": (32, 24, 0.0841),
        "flux.2-klein-4b": (4, 4.02, 0.0841),
        "flux.2-klein-9b": (9, 8.2, 0.0841),
        "pixart-sigma": (0.611, 4.76, 0.0837),
        "sana-1.6b": (1.6, 2.61, 0.312),
        "sana-0.6b": (0.6, 2.61, 0.312),
        "sana-sprint-1.6b": (1.6, 2.61, 0.312),
        "wan2.1-t2v-1.3b": (1.42, 5.68, 0.127),
        "wan2.1-t2v-14b": (14.3, 5.68, 0.127),
        "wan2.2-ti2v-5b": (5, 5.68, 0.705),
        "cogvideox-2b": (1.69, 4.76, 0.216),
        "cogvideox-5b": (5.57, 4.76, 0.216),
        "hunyuan-video": (12.8, 7.5, 0.123, 0.246),
        "ltx-video": (1.92, 4.76, 0.419),
    }
    for name, billions in published.items():
        assert _parameters_of_parts(name) == pytest.approx([1000 * part for part in billions], rel=0.035), name


def _parameters_of_parts(name: str) -> list[float]:
    """Return the millions of parameters of the denoiser, of each text encoder and of the decoder."""
    model = meta_model(resolve_model(name), "AutoModel")
    parts = [model.denoiser, *map(model.get_submodule, model.config.text_encoders), model.decoder]
    return [sum(p.numel() for p in part.parameters()) / 1e6 for part in parts]


@pytest.mark.slow
def test_the_denoisers_compute_as_much_as_published() -> None:
    """Published are multiply-adds of one step without guidance at the usual size."""
    for name, macs in (("stable-diffusion-v1-5", 338.7e9), ("stable-diffusion-xl-base-1.0", 2990e9)):
        spec = resolve_model(name)
        one, two = (
            cost_of(replace(spec, config={**spec.config, "steps": steps, "guided": False}), batch_size=1).flops
            for steps in (1, 2)
        )
        assert two - one == pytest.approx(2 * macs, rel=0.2), name
    assert parameters_of(resolve_model("sdxl-turbo")) == parameters_of(resolve_model("sdxl"))
