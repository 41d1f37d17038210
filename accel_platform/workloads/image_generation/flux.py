"""FLUX: transformers that denoise patches beside the words of the prompt."""

from __future__ import annotations

from dataclasses import field
from typing import Any

import torch
from torch.nn.functional import pad

from accel_platform.workloads.image_generation.base import (
    CLIP_L,
    DECODER,
    DECODER_OF_16_CHANNELS,
    T5_XXL,
    ImageGeneratorConfig,
    PatchGenerator,
    Prompt,
)

_MISTRAL_SMALL = {
    "architectures": ["Mistral3ForConditionalGeneration"],
    "text_config": {
        "model_type": "mistral",
        "vocab_size": 131072,
        "hidden_size": 5120,
        "intermediate_size": 32768,
        "num_hidden_layers": 40,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 131072,
        "sliding_window": None,
        "use_cache": False,
    },
    "tie_word_embeddings": False,
}
"""Mistral Small 3.2, with the tower for images that transformers' defaults describe."""


class FluxConfig(ImageGeneratorConfig):  # type: ignore[no-untyped-call]
    """Config of FLUX.1: a transformer that learned guidance, so that each step runs once; the figures are dev's."""

    model_type = "flux"

    guided: bool = False
    text_encoders: dict[str, Any] = field(default_factory=lambda: {"clip": CLIP_L, "t5": T5_XXL})
    denoiser: dict[str, Any] = field(default_factory=lambda: {"guidance_embeds": True})
    decoder: dict[str, Any] = field(default_factory=lambda: DECODER_OF_16_CHANNELS)


class Flux2Config(ImageGeneratorConfig):  # type: ignore[no-untyped-call]
    """Config of FLUX.2: some layers of a language model are what the denoiser reads; the figures are dev's."""

    model_type = "flux-2"

    guided: bool = False
    text_encoders: dict[str, Any] = field(default_factory=lambda: {"mistral": _MISTRAL_SMALL})
    prompt_layers: list[int] = field(default_factory=lambda: [10, 20, 30])
    """Layers of the text encoder whose outputs the denoiser reads side by side."""
    denoiser: dict[str, Any] = field(default_factory=dict)
    decoder: dict[str, Any] = field(default_factory=lambda: {**DECODER, "latent_channels": 32})


class Flux(PatchGenerator):  # type: ignore[no-untyped-call]
    """FLUX.1."""

    config_class = FluxConfig
    denoiser_class = "FluxTransformer2DModel"

    def encode(self, tokens: dict[str, torch.Tensor]) -> Prompt:
        return Prompt(self._read("t5", tokens).last_hidden_state, self._read("clip", tokens).pooler_output)

    def predict(self, latents: torch.Tensor, time: torch.Tensor, prompt: Prompt) -> torch.Tensor:
        places = pad(self.places(latents.device), (1, 0))
        seen = latents
        if prompt.picture is not None:
            # Kontext tells the image from the one it draws by the first number of each place.
            places = torch.cat([places, pad(places[:, 1:], (1, 0), value=1)])
            seen = torch.cat([latents, prompt.picture], dim=1)
        sample: torch.Tensor = self.denoiser(
            seen,
            encoder_hidden_states=prompt.words,
            pooled_projections=prompt.summary,
            timestep=time,
            img_ids=places,
            txt_ids=latents.new_zeros((prompt.words.shape[1], 3)),
            guidance=self.learned_guidance(time),
        ).sample
        return sample[:, : latents.shape[1]]


class Flux2(PatchGenerator):  # type: ignore[no-untyped-call]
    """FLUX.2."""

    config_class = Flux2Config
    denoiser_class = "Flux2Transformer2DModel"
    decoder_class = "AutoencoderKLFlux2"

    def encode(self, tokens: dict[str, torch.Tensor]) -> Prompt:
        layers = self._read_prompt(tokens).hidden_states
        return Prompt(torch.cat([layers[number] for number in self.config.prompt_layers], dim=-1))

    def predict(self, latents: torch.Tensor, time: torch.Tensor, prompt: Prompt) -> torch.Tensor:
        order = torch.arange(prompt.words.shape[1], device=latents.device)
        sample: torch.Tensor = self.denoiser(
            latents,
            encoder_hidden_states=prompt.words,
            timestep=time,
            img_ids=pad(self.places(latents.device), (1, 1)),
            txt_ids=pad(order.unsqueeze(1), (3, 0)),
            guidance=self.learned_guidance(time),
        ).sample
        return sample

    def unpack(self, latents: torch.Tensor) -> torch.Tensor:
        norm = self.decoder.bn
        return super().unpack(latents * torch.sqrt(norm.running_var + norm.eps) + norm.running_mean)

    def decode(self, latents: torch.Tensor) -> torch.Tensor:
        images: torch.Tensor = self.decoder.decode(latents).sample
        return images
