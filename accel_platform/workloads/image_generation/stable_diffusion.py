"""Stable Diffusion: a U-Net that reads the prompt by cross-attention, and since version 3 a transformer."""

from __future__ import annotations

from dataclasses import field
from typing import Any, ClassVar

import torch

from accel_platform.workloads.image_generation.base import (
    CLIP_L,
    DECODER,
    DECODER_OF_16_CHANNELS,
    T5_XXL,
    ImageGenerator,
    ImageGeneratorConfig,
    Prompt,
)

_CLIP_L_PROJECTED = {**CLIP_L, "architectures": ["CLIPTextModelWithProjection"]}
_CLIP_G = {
    "architectures": ["CLIPTextModelWithProjection"],
    "hidden_size": 1280,
    "intermediate_size": 5120,
    "num_hidden_layers": 32,
    "num_attention_heads": 20,
    "hidden_act": "gelu",
    "projection_dim": 1280,
}


class StableDiffusionConfig(ImageGeneratorConfig):  # type: ignore[no-untyped-call]
    """Config of a denoiser that is a U-Net, as Stable Diffusion 1 and 2 have; the figures are those of 1.5."""

    model_type = "stable-diffusion"
    edge_unit: ClassVar[int] = 8

    image_size: int = 512
    text_encoders: dict[str, Any] = field(default_factory=lambda: {"clip": CLIP_L})
    denoiser: dict[str, Any] = field(default_factory=lambda: {"cross_attention_dim": 768})
    decoder: dict[str, Any] = field(default_factory=lambda: DECODER)


class StableDiffusionXLConfig(StableDiffusionConfig):  # type: ignore[no-untyped-call]
    """Config of Stable Diffusion XL: a U-Net that also reads a summary of the prompt and the image's size."""

    model_type = "stable-diffusion-xl"

    image_size: int = 1024
    text_encoders: dict[str, Any] = field(default_factory=lambda: {"clip": CLIP_L, "clip_2": _CLIP_G})
    denoiser: dict[str, Any] = field(
        default_factory=lambda: {
            "block_out_channels": [320, 640, 1280],
            "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"],
            "up_block_types": ["CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"],
            "transformer_layers_per_block": [1, 2, 10],
            "attention_head_dim": [5, 10, 20],
            "cross_attention_dim": 2048,
            "use_linear_projection": True,
            "addition_embed_type": "text_time",
            "addition_time_embed_dim": 256,
            "projection_class_embeddings_input_dim": 2816,
        }
    )


class StableDiffusion3Config(ImageGeneratorConfig):  # type: ignore[no-untyped-call]
    """Config of Stable Diffusion 3: a transformer that reads prompt and image together; the figures are 3.5 large's."""

    model_type = "stable-diffusion-3"

    steps: int = 28
    prompt_tokens: int = 256
    text_encoders: dict[str, Any] = field(
        default_factory=lambda: {"clip": _CLIP_L_PROJECTED, "clip_2": _CLIP_G, "t5": T5_XXL}
    )
    denoiser: dict[str, Any] = field(
        default_factory=lambda: {
            "num_layers": 38,
            "num_attention_heads": 38,
            "attention_head_dim": 64,
            "joint_attention_dim": 4096,
            "caption_projection_dim": 2432,
            "pooled_projection_dim": 2048,
            "pos_embed_max_size": 192,
            "qk_norm": "rms_norm",
        }
    )
    decoder: dict[str, Any] = field(default_factory=lambda: DECODER_OF_16_CHANNELS)


class StableDiffusion(ImageGenerator):  # type: ignore[no-untyped-call]
    """Stable Diffusion 1 and 2."""

    config_class = StableDiffusionConfig
    denoiser_class = "UNet2DConditionModel"

    def encode(self, tokens: dict[str, torch.Tensor]) -> Prompt:
        read = self._read("clip", tokens)
        return Prompt(read.last_hidden_state, read.pooler_output)

    def predict(self, latents: torch.Tensor, time: torch.Tensor, prompt: Prompt) -> torch.Tensor:
        sample: torch.Tensor = self.denoiser(latents, 999 * time, prompt.words).sample
        return sample


class StableDiffusionXL(ImageGenerator):  # type: ignore[no-untyped-call]
    """Stable Diffusion XL and models distilled from it."""

    config_class = StableDiffusionXLConfig
    denoiser_class = "UNet2DConditionModel"

    def encode(self, tokens: dict[str, torch.Tensor]) -> Prompt:
        first, second = self._read("clip", tokens), self._read("clip_2", tokens)
        return Prompt(torch.cat([first.hidden_states[-2], second.hidden_states[-2]], dim=-1), second.text_embeds)

    def predict(self, latents: torch.Tensor, time: torch.Tensor, prompt: Prompt) -> torch.Tensor:
        edge = self.config.image_size
        # The size that the image is to look like, its crop, and its own size.
        sizes = latents.new_tensor([edge, edge, 0, 0, edge, edge]).repeat(len(latents), 1)
        added = {"text_embeds": prompt.summary, "time_ids": sizes}
        sample: torch.Tensor = self.denoiser(latents, 999 * time, prompt.words, added_cond_kwargs=added).sample
        return sample


class StableDiffusion3(ImageGenerator):  # type: ignore[no-untyped-call]
    """Stable Diffusion 3 and 3.5."""

    config_class = StableDiffusion3Config
    denoiser_class = "SD3Transformer2DModel"

    def encode(self, tokens: dict[str, torch.Tensor]) -> Prompt:
        first, second = self._read("clip", tokens), self._read("clip_2", tokens)
        long = self._read("t5", tokens).last_hidden_state
        short = torch.cat([first.hidden_states[-2], second.hidden_states[-2]], dim=-1)
        padded = torch.nn.functional.pad(short, (0, long.shape[-1] - short.shape[-1]))
        return Prompt(torch.cat([padded, long], dim=1), torch.cat([first.text_embeds, second.text_embeds], dim=-1))

    def predict(self, latents: torch.Tensor, time: torch.Tensor, prompt: Prompt) -> torch.Tensor:
        sample: torch.Tensor = self.denoiser(
            latents, encoder_hidden_states=prompt.words, pooled_projections=prompt.summary, timestep=1000 * time
        ).sample
        return sample
