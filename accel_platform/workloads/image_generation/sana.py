"""Sana: linear attention on latents of 32 x 32 pixels, with a small language model that reads the prompt."""

from __future__ import annotations

from dataclasses import field
from typing import Any, ClassVar

import torch

from accel_platform.workloads.image_generation.base import ImageGenerator, ImageGeneratorConfig, Prompt

_GEMMA_2_2B = {"architectures": ["Gemma2Model"], "use_cache": False}
"""Gemma 2 2B, which transformers' defaults describe."""
_DECODER = {
    "encoder_block_types": ["ResBlock"] * 3 + ["EfficientViTBlock"] * 3,
    "decoder_block_types": ["ResBlock"] * 3 + ["EfficientViTBlock"] * 3,
    "decoder_block_out_channels": [128, 256, 512, 512, 1024, 1024],
    "latent_channels": 32,
    "downsample_block_type": "conv",
    "upsample_block_type": "interpolate",
    "scaling_factor": 0.41407,
}
"""dc-ae-f32c32-sana by diffusers' conversion script."""


class SanaConfig(ImageGeneratorConfig):  # type: ignore[no-untyped-call]
    """Config of Sana; the figures are those of 1.6B at 1024 pixels.

    The instruction that its pipeline puts before a prompt is not counted: the denoiser does not read it.
    """

    model_type = "sana"
    edge_unit: ClassVar[int] = 32
    decoder_blocks: ClassVar[str] = "decoder_block_out_channels"

    steps: int = 20
    prompt_tokens: int = 300
    text_encoders: dict[str, Any] = field(default_factory=lambda: {"gemma": _GEMMA_2_2B})
    denoiser: dict[str, Any] = field(default_factory=dict)
    decoder: dict[str, Any] = field(default_factory=lambda: _DECODER)


class Sana(ImageGenerator):  # type: ignore[no-untyped-call]
    """Sana."""

    config_class = SanaConfig
    denoiser_class = "SanaTransformer2DModel"
    decoder_class = "AutoencoderDC"

    def predict(self, latents: torch.Tensor, time: torch.Tensor, prompt: Prompt) -> torch.Tensor:
        sample: torch.Tensor = self.denoiser(
            latents, prompt.words, 1000 * time, guidance=self.learned_guidance(time)
        ).sample
        return sample
