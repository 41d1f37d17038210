"""PixArt-Sigma: a small transformer that reads the prompt by cross-attention."""

from __future__ import annotations

from dataclasses import field
from typing import Any

import torch

from accel_platform.workloads.image_generation.base import DECODER, T5_XXL, ImageGenerator, ImageGeneratorConfig, Prompt


class PixArtSigmaConfig(ImageGeneratorConfig):  # type: ignore[no-untyped-call]
    """Config of PixArt-Sigma; the figures are those of XL-2-1024-MS by diffusers' conversion script."""

    model_type = "pixart-sigma"

    steps: int = 20
    prompt_tokens: int = 300
    text_encoders: dict[str, Any] = field(default_factory=lambda: {"t5": T5_XXL})
    denoiser: dict[str, Any] = field(
        default_factory=lambda: {
            "caption_channels": 4096,
            "interpolation_scale": 2,
            "use_additional_conditions": False,
        }
    )
    decoder: dict[str, Any] = field(default_factory=lambda: DECODER)


class PixArtSigma(ImageGenerator):  # type: ignore[no-untyped-call]
    """PixArt-Sigma."""

    config_class = PixArtSigmaConfig
    denoiser_class = "PixArtTransformer2DModel"

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        # Stored with the weights, because transformers would load a model without what is computed at its start.
        table = self.denoiser.pos_embed
        table.register_buffer("pos_embed", table.pos_embed)

    def predict(self, latents: torch.Tensor, time: torch.Tensor, prompt: Prompt) -> torch.Tensor:
        sample: torch.Tensor = self.denoiser(latents, prompt.words, 999 * time).sample
        # The other half of the channels is the variance, which samplers drop.
        return sample.chunk(2, dim=1)[0]
