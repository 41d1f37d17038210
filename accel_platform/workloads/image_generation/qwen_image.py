"""Qwen-Image: a transformer of 20 billion parameters that denoises patches beside the words of the prompt."""

from __future__ import annotations

from dataclasses import field
from typing import Any, ClassVar

import torch

from accel_platform.workloads.image_generation.base import ImageGeneratorConfig, PatchGenerator, Prompt

_QWEN_2_5_VL_7B = {
    "architectures": ["Qwen2_5_VLForConditionalGeneration"],
    "text_config": {
        "vocab_size": 152064,
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "max_position_embeddings": 128000,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0, "mrope_section": [16, 24, 24]},
        "use_cache": False,
    },
    "vision_config": {"hidden_size": 1280, "out_hidden_size": 3584},
    "tie_word_embeddings": False,
}


class QwenImageConfig(ImageGeneratorConfig):  # type: ignore[no-untyped-call]
    """Config of Qwen-Image; its denoiser is the one that diffusers' defaults describe.

    The template that its pipeline puts around a prompt is not counted: the denoiser does not read it.
    """

    model_type = "qwen-image"
    decoder_blocks: ClassVar[str] = "dim_mult"
    decoder_channels: ClassVar[str] = "z_dim"

    image_size: int = 1328
    text_encoders: dict[str, Any] = field(default_factory=lambda: {"qwen": _QWEN_2_5_VL_7B})
    denoiser: dict[str, Any] = field(default_factory=dict)
    decoder: dict[str, Any] = field(default_factory=lambda: {"dim_mult": [1, 2, 4, 4], "z_dim": 16})


class QwenImage(PatchGenerator):  # type: ignore[no-untyped-call]
    """Qwen-Image."""

    config_class = QwenImageConfig
    denoiser_class = "QwenImageTransformer2DModel"
    decoder_class = "AutoencoderKLQwenImage"

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        # Made again, because transformers loads a model without what is computed at its start.
        table = self.denoiser.pos_embed
        with torch.device("cpu"):
            self.denoiser.pos_embed = type(table)(table.theta, table.axes_dim, table.scale_rope)

    def encode(self, tokens: dict[str, torch.Tensor]) -> Prompt:
        return Prompt(self._read_prompt(tokens).hidden_states[-1])

    def predict(self, latents: torch.Tensor, time: torch.Tensor, prompt: Prompt) -> torch.Tensor:
        images = [latents] if prompt.picture is None else [latents, prompt.picture]
        sample: torch.Tensor = self.denoiser(
            torch.cat(images, dim=1),
            encoder_hidden_states=prompt.words,
            timestep=time,
            img_shapes=[[(1, self.patches, self.patches)] * len(images)] * len(latents),
        ).sample
        return sample[:, : latents.shape[1]]

    def look_at(self, picture: torch.Tensor) -> torch.Tensor:
        latents = self.decoder.encode(picture.unsqueeze(2)).latent_dist.mode().squeeze(2)
        mean, deviation = self._spread(latents)
        changed: torch.Tensor = (latents - mean) / deviation
        return changed

    def _spread(self, latents: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return mean and deviation of each channel."""
        known = self.decoder.config
        mean, deviation = (latents.new_tensor(each).view(-1, 1, 1) for each in (known.latents_mean, known.latents_std))
        return mean, deviation

    def decode(self, latents: torch.Tensor) -> torch.Tensor:
        mean, deviation = self._spread(latents)
        # The decoder is one for videos: an image is a video of one frame.
        video: torch.Tensor = self.decoder.decode((latents * deviation + mean).unsqueeze(2)).sample
        return video.squeeze(2)
