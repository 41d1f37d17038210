"""Z-Image: one transformer for patches and words together."""

from __future__ import annotations

from dataclasses import field
from typing import Any

import torch
from torch.nn.functional import pad

from accel_platform.workloads.image_generation.base import (
    DECODER_OF_16_CHANNELS,
    ImageGeneratorConfig,
    PatchGenerator,
    Prompt,
)

_QWEN_3_4B = {
    "architectures": ["Qwen3Model"],
    "vocab_size": 151936,
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40960,
    "use_cache": False,
}


class ZImageConfig(ImageGeneratorConfig):  # type: ignore[no-untyped-call]
    """Config of Z-Image; its denoiser is the one that diffusers' defaults describe."""

    model_type = "z-image"

    text_encoders: dict[str, Any] = field(default_factory=lambda: {"qwen": _QWEN_3_4B})
    denoiser: dict[str, Any] = field(default_factory=dict)
    decoder: dict[str, Any] = field(default_factory=lambda: DECODER_OF_16_CHANNELS)


class ZImage(PatchGenerator):  # type: ignore[no-untyped-call]
    """Z-Image."""

    config_class = ZImageConfig
    denoiser_class = "ZImageTransformer2DModel"

    def encode(self, tokens: dict[str, torch.Tensor]) -> Prompt:
        return Prompt(self._read_prompt(tokens).hidden_states[-2])

    def pack(self, latents: torch.Tensor) -> torch.Tensor:
        # The channels of a place lie side by side here.
        packed = super().pack(latents)
        return packed.reshape(*packed.shape[:2], -1, 4).transpose(2, 3).flatten(2)

    def unpack(self, latents: torch.Tensor) -> torch.Tensor:
        return super().unpack(latents.reshape(*latents.shape[:2], 4, -1).transpose(2, 3).flatten(2))

    def predict(self, latents: torch.Tensor, time: torch.Tensor, prompt: Prompt) -> torch.Tensor:
        """Run the denoiser's layers on the batch at once.

        Its own forward pass takes images one by one, because their sizes may differ, and fills up to a multiple of 32
        tokens.
        """
        denoiser, rotations = self.denoiser, self.denoiser.rope_embedder
        order = torch.arange(prompt.words.shape[1], device=latents.device) + 1
        of_words = rotations(pad(order.unsqueeze(1), (0, 2))).unsqueeze(0)
        of_image = rotations(pad(self.places(latents.device), (1, 0), value=len(order) + 1)).unsqueeze(0)
        when = denoiser.t_embedder((1 - time) * denoiser.t_scale)
        image, words = denoiser.all_x_embedder["2-1"](latents), denoiser.cap_embedder(prompt.words)
        for layer in denoiser.noise_refiner:
            image = layer(image, None, of_image, when)
        for layer in denoiser.context_refiner:
            words = layer(words, None, of_words)
        tokens, turned = torch.cat([image, words], dim=1), torch.cat([of_image, of_words], dim=1)
        for layer in denoiser.layers:
            tokens = layer(tokens, None, turned, when)
        sample: torch.Tensor = denoiser.all_final_layer["2-1"](tokens, c=when)
        return -sample[:, : image.shape[1]]
