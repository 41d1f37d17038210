"""Wan, CogVideoX, HunyuanVideo and LTX-Video: transformers that denoise all frames of a video at once."""

from __future__ import annotations

from dataclasses import field
from typing import Any, ClassVar

import torch
from diffusers.models.autoencoders.autoencoder_kl_cogvideox import CogVideoXSafeConv3d
from diffusers.models.embeddings import get_3d_rotary_pos_embed
from diffusers.models.transformers.transformer_wan import WanRotaryPosEmbed

from accel_platform.workloads.image_generation.base import CLIP_L, T5_XXL, ImageGenerator, ImageGeneratorConfig, Prompt

_UMT5_XXL = {**T5_XXL, "architectures": ["UMT5EncoderModel"], "vocab_size": 256384}
_LLAMA_3_8B = {
    "architectures": ["LlamaModel"],
    "vocab_size": 128320,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "use_cache": False,
}


class VideoGeneratorConfig(ImageGeneratorConfig):  # type: ignore[no-untyped-call]
    """Config of a model that draws videos."""

    space: ClassVar[int] = 8
    """Pixels along an edge of what one latent stands for."""

    width: int = 832
    height: int = 480
    """Pixels along the edges; `image_size` is not read."""
    frames: int = 81
    frames_per_latent: int = 4
    """Frames that one latent stands for, but the first, which has one of its own."""

    @property
    def latent_frames(self) -> int:
        """Frames of what is denoised."""
        return (self.frames - 1) // self.frames_per_latent + 1

    @property
    def latent_shape(self) -> tuple[int, ...]:
        """Channels, frames, height and width of what is denoised."""
        channels = int(self.decoder.get(self.decoder_channels, 16))
        return channels, self.latent_frames, self.height // self.space, self.width // self.space


class WanConfig(VideoGeneratorConfig):  # type: ignore[no-untyped-call]
    """Config of Wan; the figures are those of Wan2.1 14B."""

    model_type = "wan"
    decoder_blocks: ClassVar[str] = "dim_mult"
    decoder_channels: ClassVar[str] = "z_dim"

    text_encoders: dict[str, Any] = field(default_factory=lambda: {"umt5": _UMT5_XXL})
    denoiser: dict[str, Any] = field(default_factory=dict)
    decoder: dict[str, Any] = field(default_factory=lambda: {"dim_mult": [1, 2, 4, 4], "z_dim": 16})

    @property
    def space(self) -> int:  # type: ignore[override]
        """Pixels along an edge of what one latent stands for: twice as many where the decoder makes patches."""
        return 8 * int(self.decoder.get("patch_size") or 1)


class CogVideoXConfig(VideoGeneratorConfig):  # type: ignore[no-untyped-call]
    """Config of CogVideoX; the figures are those of the model of 5 billion parameters."""

    model_type = "cogvideox"

    width: int = 720
    frames: int = 49
    prompt_tokens: int = 226
    text_encoders: dict[str, Any] = field(default_factory=lambda: {"t5": T5_XXL})
    denoiser: dict[str, Any] = field(
        default_factory=lambda: {
            "num_layers": 42,
            "num_attention_heads": 48,
            "use_rotary_positional_embeddings": True,
        }
    )
    decoder: dict[str, Any] = field(default_factory=lambda: {"block_out_channels": [128, 256, 256, 512]})


class HunyuanVideoConfig(VideoGeneratorConfig):  # type: ignore[no-untyped-call]
    """Config of HunyuanVideo, which learned guidance, so that each step runs once."""

    model_type = "hunyuan-video"

    width: int = 1280
    height: int = 720
    frames: int = 129
    guided: bool = False
    prompt_tokens: int = 256
    text_encoders: dict[str, Any] = field(default_factory=lambda: {"llama": _LLAMA_3_8B, "clip": CLIP_L})
    denoiser: dict[str, Any] = field(default_factory=dict)
    decoder: dict[str, Any] = field(default_factory=lambda: {"block_out_channels": [128, 256, 512, 512]})


class LTXVideoConfig(VideoGeneratorConfig):  # type: ignore[no-untyped-call]
    """Config of LTX-Video; the figures are those of its first version."""

    model_type = "ltx-video"
    space: ClassVar[int] = 32

    width: int = 704
    frames: int = 161
    frames_per_latent: int = 8
    prompt_tokens: int = 128
    text_encoders: dict[str, Any] = field(default_factory=lambda: {"t5": T5_XXL})
    denoiser: dict[str, Any] = field(default_factory=dict)
    decoder: dict[str, Any] = field(
        default_factory=lambda: {"block_out_channels": [128, 256, 512, 512], "latent_channels": 128}
    )


class Wan(ImageGenerator):  # type: ignore[no-untyped-call]
    """Wan."""

    config_class = WanConfig
    denoiser_class = "WanTransformer3DModel"
    decoder_class = "AutoencoderKLWan"

    @torch.no_grad()
    def _init_weights(self, module: torch.nn.Module) -> None:
        """Compute the table of places again, because transformers loads a model without it."""
        super()._init_weights(module)  # type: ignore[no-untyped-call]
        if isinstance(module, WanRotaryPosEmbed):
            table: Any = module
            computed: Any = WanRotaryPosEmbed(table.attention_head_dim, table.patch_size, table.max_seq_len)
            table.freqs_cos.copy_(computed.freqs_cos)
            table.freqs_sin.copy_(computed.freqs_sin)

    def predict(self, latents: torch.Tensor, time: torch.Tensor, prompt: Prompt) -> torch.Tensor:
        sample: torch.Tensor = self.denoiser(latents, timestep=1000 * time, encoder_hidden_states=prompt.words).sample
        return sample

    def decode(self, latents: torch.Tensor) -> torch.Tensor:
        known = self.decoder.config
        mean, deviation = (
            latents.new_tensor(each).view(-1, 1, 1, 1) for each in (known.latents_mean, known.latents_std)
        )
        video: torch.Tensor = self.decoder.decode(latents * deviation + mean).sample
        return video


class CogVideoX(ImageGenerator):  # type: ignore[no-untyped-call]
    """CogVideoX."""

    config_class = CogVideoXConfig
    denoiser_class = "CogVideoXTransformer3DModel"
    decoder_class = "AutoencoderKLCogVideoX"

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        for layer in self.decoder.modules():
            # It computes inputs of more than 2 GiB in parts, so that a batch of three would have other operators.
            if isinstance(layer, CogVideoXSafeConv3d):
                layer.__class__ = torch.nn.Conv3d  # type: ignore[assignment]

    def predict(self, latents: torch.Tensor, time: torch.Tensor, prompt: Prompt) -> torch.Tensor:
        # Frames come before channels here.
        sample: torch.Tensor = self.denoiser(
            latents.transpose(1, 2),
            encoder_hidden_states=prompt.words,
            timestep=1000 * time,
            image_rotary_emb=self._turns(latents),
        ).sample
        return sample.transpose(1, 2)

    def _turns(self, latents: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Return by how much queries and keys are turned at each place; None where places are added."""
        known = self.denoiser.config
        if not known.use_rotary_positional_embeddings:
            return None
        _, _, frames, height, width = latents.shape
        grid = height // known.patch_size, width // known.patch_size
        turns: Any = get_3d_rotary_pos_embed(
            known.attention_head_dim, ((0, 0), grid), grid, frames, device=latents.device
        )
        cosines, sines = turns
        return cosines, sines


class HunyuanVideo(ImageGenerator):  # type: ignore[no-untyped-call]
    """HunyuanVideo."""

    config_class = HunyuanVideoConfig
    denoiser_class = "HunyuanVideoTransformer3DModel"
    decoder_class = "AutoencoderKLHunyuanVideo"

    def encode(self, tokens: dict[str, torch.Tensor]) -> Prompt:
        words = self._read("llama", tokens).hidden_states[-3]
        return Prompt(words, self._read("clip", tokens).pooler_output)

    def predict(self, latents: torch.Tensor, time: torch.Tensor, prompt: Prompt) -> torch.Tensor:
        guidance = self.learned_guidance(time)
        sample: torch.Tensor = self.denoiser(
            latents,
            timestep=1000 * time,
            encoder_hidden_states=prompt.words,
            encoder_attention_mask=torch.ones(prompt.words.shape[:2], device=latents.device, dtype=torch.long),
            pooled_projections=prompt.summary,
            guidance=None if guidance is None else 1000 * guidance,
        ).sample
        return sample


class LTXVideo(ImageGenerator):  # type: ignore[no-untyped-call]
    """LTX-Video."""

    config_class = LTXVideoConfig
    denoiser_class = "LTXVideoTransformer3DModel"
    decoder_class = "AutoencoderKLLTXVideo"

    def pack(self, latents: torch.Tensor) -> torch.Tensor:
        return latents.flatten(2).transpose(1, 2)

    def unpack(self, latents: torch.Tensor) -> torch.Tensor:
        channels, *places = self.config.latent_shape
        return latents.transpose(1, 2).reshape(len(latents), channels, *places)

    def predict(self, latents: torch.Tensor, time: torch.Tensor, prompt: Prompt) -> torch.Tensor:
        _, frames, height, width = self.config.latent_shape
        sample: torch.Tensor = self.denoiser(
            latents,
            encoder_hidden_states=prompt.words,
            timestep=1000 * time,
            encoder_attention_mask=torch.ones(prompt.words.shape[:2], device=latents.device, dtype=torch.long),
            num_frames=frames,
            height=height,
            width=width,
        ).sample
        return sample
