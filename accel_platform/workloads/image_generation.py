"""Models that draw images: text encoders, a denoiser that runs step by step, and a decoder of its result.

One pass makes a batch of images from noise and the tokens of prompts. Denoisers and decoders are those of diffusers,
text encoders those of transformers, which builds, saves and loads the whole once it is registered at the end of this
module. Add an architecture here, to `IMAGE_GENERATORS` and to `sets.toml`.
"""

from __future__ import annotations

import importlib
from abc import abstractmethod
from dataclasses import field
from typing import Any, ClassVar, NamedTuple

import torch
import transformers
from transformers import AutoConfig, AutoModel, PreTrainedConfig, PreTrainedModel

from accel_platform.workloads.repetition import repeat

GUIDANCE_SCALE = 5.0
"""Weight of the prompt in guided steps; no time depends on it."""
_CLIP_L = {
    "architectures": ["CLIPTextModel"],
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "projection_dim": 768,
}
_CLIP_L_PROJECTED = {**_CLIP_L, "architectures": ["CLIPTextModelWithProjection"]}
_CLIP_G = {
    "architectures": ["CLIPTextModelWithProjection"],
    "hidden_size": 1280,
    "intermediate_size": 5120,
    "num_hidden_layers": 32,
    "num_attention_heads": 20,
    "hidden_act": "gelu",
    "projection_dim": 1280,
}
_T5_XXL = {
    "architectures": ["T5EncoderModel"],
    "d_model": 4096,
    "d_ff": 10240,
    "num_layers": 24,
    "num_heads": 64,
    "feed_forward_proj": "gated-gelu",
    "tie_word_embeddings": False,
}
_DECODER: dict[str, Any] = {
    "block_out_channels": [128, 256, 512, 512],
    "down_block_types": ["DownEncoderBlock2D"] * 4,
    "up_block_types": ["UpDecoderBlock2D"] * 4,
    "layers_per_block": 2,
}
_DECODER_OF_16_CHANNELS = {**_DECODER, "latent_channels": 16, "use_quant_conv": False, "use_post_quant_conv": False}


class StableDiffusionConfig(PreTrainedConfig):  # type: ignore[no-untyped-call]
    """Config of a denoiser that is a U-Net, as Stable Diffusion 1 and 2 have; the figures are those of 1.5.

    Parts are given by the fields of their published configs, and are replaced whole.
    """

    model_type = "stable-diffusion"
    edge_unit: ClassVar[int] = 8
    """Pixels of which the edge of an image is a multiple."""

    image_size: int = 512
    """Pixels along each edge."""
    steps: int = 50
    """Denoising steps, as the model's publisher runs it."""
    guided: bool = True
    """True if each step also computes the image without the prompt (classifier-free guidance)."""
    prompt_tokens: int = 77
    """Tokens that T5 reads; CLIP reads as many as it has positions."""
    text_encoders: dict[str, Any] = field(default_factory=lambda: {"clip": _CLIP_L})
    denoiser: dict[str, Any] = field(default_factory=lambda: {"cross_attention_dim": 768})
    decoder: dict[str, Any] = field(default_factory=lambda: _DECODER)

    def encoder_config(self, name: str) -> Any:
        """Return the transformers config of a text encoder."""
        fields = self.text_encoders[name]
        return _encoder_class(fields).config_class(**fields)

    def tokens_of(self, name: str) -> int:
        """Return how many tokens a text encoder reads."""
        return int(getattr(self.encoder_config(name), "max_position_embeddings", self.prompt_tokens))

    @property
    def latent_shape(self) -> tuple[int, int, int]:
        """Channels, height and width of what is denoised: each block of the decoder but the last doubles its edges."""
        edge = self.image_size // 2 ** (len(self.decoder["block_out_channels"]) - 1)
        return int(self.decoder.get("latent_channels", 4)), edge, edge


class StableDiffusionXLConfig(StableDiffusionConfig):  # type: ignore[no-untyped-call]
    """Config of Stable Diffusion XL: a U-Net that also reads a summary of the prompt and the image's size."""

    model_type = "stable-diffusion-xl"

    image_size: int = 1024
    text_encoders: dict[str, Any] = field(default_factory=lambda: {"clip": _CLIP_L, "clip_2": _CLIP_G})
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


class StableDiffusion3Config(StableDiffusionConfig):  # type: ignore[no-untyped-call]
    """Config of Stable Diffusion 3: a transformer that reads prompt and image together; the figures are 3.5 large's."""

    model_type = "stable-diffusion-3"
    edge_unit: ClassVar[int] = 16

    image_size: int = 1024
    steps: int = 28
    prompt_tokens: int = 256
    text_encoders: dict[str, Any] = field(
        default_factory=lambda: {"clip": _CLIP_L_PROJECTED, "clip_2": _CLIP_G, "t5": _T5_XXL}
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
    decoder: dict[str, Any] = field(default_factory=lambda: _DECODER_OF_16_CHANNELS)


class FluxConfig(StableDiffusionConfig):  # type: ignore[no-untyped-call]
    """Config of FLUX.1: a transformer that learned guidance, so that each step runs once; the figures are dev's."""

    model_type = "flux"
    edge_unit: ClassVar[int] = 16

    image_size: int = 1024
    guided: bool = False
    prompt_tokens: int = 512
    text_encoders: dict[str, Any] = field(default_factory=lambda: {"clip": _CLIP_L, "t5": _T5_XXL})
    denoiser: dict[str, Any] = field(default_factory=lambda: {"guidance_embeds": True})
    decoder: dict[str, Any] = field(default_factory=lambda: _DECODER_OF_16_CHANNELS)


class Prompt(NamedTuple):
    """Output of the text encoders."""

    words: Any
    """A row of numbers per token."""
    summary: Any
    """One row of numbers per prompt."""


class ImageGenerator(PreTrainedModel):  # type: ignore[no-untyped-call]
    """Text encoders, denoiser and decoder as one module, whose pass makes a batch of images."""

    config_class = StableDiffusionConfig
    denoiser_class: ClassVar[str]
    """Name of a class of diffusers."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        # Imported late, because the other backends and models do without it.
        diffusers: Any = importlib.import_module("diffusers")
        for name, fields in config.text_encoders.items():
            # Each is a child of its own, because transformers ties the weights of direct children alone.
            self.add_module(name, _encoder_class(fields)(config.encoder_config(name)))
        self.denoiser = getattr(diffusers, self.denoiser_class)(**config.denoiser)
        self.decoder = diffusers.AutoencoderKL(**config.decoder)
        self.post_init()  # type: ignore[no-untyped-call]

    def forward(self, noise: torch.Tensor, **tokens: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return images of shape (batch, 3, edge, edge).

        Parameters
        ----------
        noise
            Shape (batch, *config.latent_shape).
        tokens
            Ids of the prompts' tokens, shape (batch, tokens), by the name of the text encoder.
        """
        config: Any = self.config
        if config.guided:
            tokens = {name: torch.cat([torch.zeros_like(ids), ids]) for name, ids in tokens.items()}
        prompt, latents = self.encode(tokens), self.pack(noise)
        for step in repeat(config.steps):
            change = self._change(latents, 1 - step / config.steps, prompt)
            latents = latents - change / config.steps
        return {"images": self.decoder.decode(self.unpack(latents) / self.decoder.config.scaling_factor).sample}

    def _change(self, latents: torch.Tensor, time: float, prompt: Prompt) -> torch.Tensor:
        """Return what a step subtracts; `time` falls from 1 to 0."""
        if not self.config.guided:
            return self.predict(latents, latents.new_full((len(latents),), time), prompt)
        twice = torch.cat([latents, latents])
        without, with_prompt = self.predict(twice, twice.new_full((len(twice),), time), prompt).chunk(2)
        return without + GUIDANCE_SCALE * (with_prompt - without)

    @abstractmethod
    def encode(self, tokens: dict[str, torch.Tensor]) -> Prompt:
        """Return the encoded prompts."""

    @abstractmethod
    def predict(self, latents: torch.Tensor, time: torch.Tensor, prompt: Prompt) -> torch.Tensor:
        """Return the denoiser's output at a time per image."""

    def pack(self, latents: torch.Tensor) -> torch.Tensor:
        """Return latents in the layout that the denoiser reads."""
        return latents

    def unpack(self, latents: torch.Tensor) -> torch.Tensor:
        """Return latents in the layout that the decoder reads."""
        return latents

    def _read(self, name: str, tokens: dict[str, torch.Tensor]) -> Any:
        """Return the output of a text encoder with those of all its layers."""
        return self.get_submodule(name)(tokens[name], output_hidden_states=True)


class StableDiffusion(ImageGenerator):  # type: ignore[no-untyped-call]
    """Stable Diffusion 1 and 2."""

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


class Flux(ImageGenerator):  # type: ignore[no-untyped-call]
    """FLUX.1, which denoises patches of 2 x 2 latents."""

    config_class = FluxConfig
    denoiser_class = "FluxTransformer2DModel"

    def encode(self, tokens: dict[str, torch.Tensor]) -> Prompt:
        return Prompt(self._read("t5", tokens).last_hidden_state, self._read("clip", tokens).pooler_output)

    def pack(self, latents: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.pixel_unshuffle(latents, 2).flatten(2).transpose(1, 2)

    def unpack(self, latents: torch.Tensor) -> torch.Tensor:
        edge = self.config.latent_shape[-1] // 2
        return torch.nn.functional.pixel_shuffle(latents.transpose(1, 2).reshape(len(latents), -1, edge, edge), 2)

    def predict(self, latents: torch.Tensor, time: torch.Tensor, prompt: Prompt) -> torch.Tensor:
        edge = self.config.latent_shape[-1] // 2
        places = torch.arange(edge, device=latents.device, dtype=latents.dtype)
        rows, columns = places.repeat_interleave(edge), places.repeat(edge)
        sample: torch.Tensor = self.denoiser(
            latents,
            encoder_hidden_states=prompt.words,
            pooled_projections=prompt.summary,
            timestep=time,
            img_ids=torch.stack([torch.zeros_like(rows), rows, columns], dim=-1),
            txt_ids=latents.new_zeros((prompt.words.shape[1], 3)),
            # Read by models that learned guidance, such as dev, and ignored by schnell.
            guidance=torch.full_like(time, GUIDANCE_SCALE) if self.denoiser.config.guidance_embeds else None,
        ).sample
        return sample


def _encoder_class(fields: dict[str, Any]) -> Any:
    """Return the class of transformers that a published config names."""
    return getattr(transformers, fields["architectures"][0])


for _model in (StableDiffusion, StableDiffusionXL, StableDiffusion3, Flux):
    AutoConfig.register(_model.config_class.model_type, _model.config_class)
    AutoModel.register(_model.config_class, _model)
