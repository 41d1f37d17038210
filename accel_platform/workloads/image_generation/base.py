"""Common base of models that draw images: their config, parts that several share, and the loop from noise to images."""

from __future__ import annotations

import importlib
from abc import abstractmethod
from dataclasses import field
from typing import Any, ClassVar, NamedTuple

import torch
import transformers
from transformers import PreTrainedConfig, PreTrainedModel

from accel_platform.workloads.repetition import repeat

CLIP_L = {
    "architectures": ["CLIPTextModel"],
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "projection_dim": 768,
}
T5_XXL = {
    "architectures": ["T5EncoderModel"],
    "d_model": 4096,
    "d_ff": 10240,
    "num_layers": 24,
    "num_heads": 64,
    "feed_forward_proj": "gated-gelu",
    "tie_word_embeddings": False,
}
DECODER: dict[str, Any] = {
    "block_out_channels": [128, 256, 512, 512],
    "down_block_types": ["DownEncoderBlock2D"] * 4,
    "up_block_types": ["UpDecoderBlock2D"] * 4,
    "layers_per_block": 2,
}
DECODER_OF_16_CHANNELS = {**DECODER, "latent_channels": 16, "use_quant_conv": False, "use_post_quant_conv": False}


GUIDANCE_SCALE = 5.0
"""Weight of the prompt in guided steps; no time depends on it."""


class ImageGeneratorConfig(PreTrainedConfig):  # type: ignore[no-untyped-call]
    """Config of a model that draws images.

    Parts are given by the fields of their published configs, and are replaced whole.
    """

    edge_unit: ClassVar[int] = 16
    """Pixels of which the edge of an image is a multiple."""
    decoder_blocks: ClassVar[str] = "block_out_channels"
    """Field of the decoder's config with an entry per block."""
    decoder_channels: ClassVar[str] = "latent_channels"
    """Field of the decoder's config with the channels that it reads."""

    image_size: int = 1024
    """Pixels along each edge."""
    steps: int = 50
    """Denoising steps, as the model's publisher runs it."""
    guided: bool = True
    """True if each step also computes the image without the prompt (classifier-free guidance)."""
    edits: bool = False
    """True for a model that reads an image beside the prompt, to change it."""
    prompt_tokens: int = 512
    """Tokens that text encoders read; CLIP reads as many as it has positions."""
    text_encoders: dict[str, Any] = field(default_factory=dict)
    denoiser: dict[str, Any] = field(default_factory=dict)
    decoder: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self, **others: Any) -> None:
        """Refuse parts that cannot be built; transformers would fail in the middle of building them."""
        super().__post_init__(**others)  # type: ignore[no-untyped-call]
        usual = type(self).__dataclass_fields__["text_encoders"].default_factory()
        # The only one of a family goes by any name: FLUX.2 klein has another language model than FLUX.2 dev.
        if len(self.text_encoders) != len(usual) or (len(usual) > 1 and set(self.text_encoders) != set(usual)):
            names = [", ".join(sorted(encoders)) or "none" for encoders in (self.text_encoders, usual)]
            raise ValueError(f"text_encoders names {names[0]}: {self.model_type} has {names[1]}")
        for name, fields in self.text_encoders.items():
            if _encoder_class(fields) is None:
                raise ValueError(f"{name} needs `architectures` with a class of transformers, such as CLIPTextModel")
        if usual and not self.decoder.get(self.decoder_blocks):
            raise ValueError(f"the decoder needs {self.decoder_blocks}, with an entry per block")

    def encoder_config(self, name: str) -> Any:
        """Return the transformers config of a text encoder."""
        fields = self.text_encoders[name]
        return _encoder_class(fields).config_class(**fields)

    def tokens_of(self, name: str) -> int:
        """Return how many tokens a text encoder reads."""
        config = self.encoder_config(name)
        return int(config.max_position_embeddings if config.model_type == "clip_text_model" else self.prompt_tokens)

    def vocabulary_of(self, name: str) -> int:
        """Return how many tokens a text encoder knows."""
        return int(self.encoder_config(name).get_text_config().vocab_size)

    @property
    def latent_shape(self) -> tuple[int, ...]:
        """Channels, height and width of what is denoised: each block of the decoder but the last doubles its edges."""
        edge = self.image_size // 2 ** (len(self.decoder[self.decoder_blocks]) - 1)
        return int(self.decoder.get(self.decoder_channels, 4)), edge, edge


class Prompt(NamedTuple):
    """Output of the text encoders."""

    words: Any
    """A row of numbers per token."""
    summary: Any = None
    """One row of numbers per prompt; None for a denoiser that reads words alone."""
    picture: Any = None
    """Packed latents of the image to edit; None for a model that draws without one."""


class ImageGenerator(PreTrainedModel):  # type: ignore[no-untyped-call]
    """Text encoders, denoiser and decoder as one module, whose pass makes a batch of images."""

    config_class = ImageGeneratorConfig
    denoiser_class: ClassVar[str]
    """Name of a class of diffusers."""
    decoder_class: ClassVar[str] = "AutoencoderKL"
    """Name of a class of diffusers."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        # Imported late, because the other backends and models do without it.
        diffusers: Any = importlib.import_module("diffusers")
        for name, fields in config.text_encoders.items():
            # Each is a child of its own, because transformers ties the weights of direct children alone.
            self.add_module(name, _encoder_class(fields)(config.encoder_config(name)))
        self.denoiser = getattr(diffusers, self.denoiser_class)(**config.denoiser)
        self.decoder = getattr(diffusers, self.decoder_class)(**config.decoder)
        self.post_init()  # type: ignore[no-untyped-call]

    def forward(
        self, noise: torch.Tensor, picture: torch.Tensor | None = None, **tokens: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """Return images of shape (batch, 3, edge, edge).

        Parameters
        ----------
        noise
            Shape (batch, *config.latent_shape).
        picture
            Images to edit, shape (batch, 3, edge, edge); None for a model that draws without.
        tokens
            Ids of the prompts' tokens, shape (batch, tokens), by the name of the text encoder.
        """
        config: Any = self.config
        if config.guided:
            tokens = {name: torch.cat([torch.zeros_like(ids), ids]) for name, ids in tokens.items()}
        prompt, latents = self.encode(tokens), self.pack(noise)
        if picture is not None:
            seen = self.pack(self.look_at(picture))
            prompt = prompt._replace(picture=torch.cat([seen, seen]) if config.guided else seen)
        for step in repeat(config.steps):
            change = self._change(latents, 1 - step / config.steps, prompt)
            latents = latents - change / config.steps
        return {"images": self.decode(self.unpack(latents))}

    def _change(self, latents: torch.Tensor, time: float, prompt: Prompt) -> torch.Tensor:
        """Return what a step subtracts; `time` falls from 1 to 0."""
        if not self.config.guided:
            return self.predict(latents, latents.new_full((len(latents),), time), prompt)
        twice = torch.cat([latents, latents])
        without, with_prompt = self.predict(twice, twice.new_full((len(twice),), time), prompt).chunk(2)
        return without + GUIDANCE_SCALE * (with_prompt - without)

    def encode(self, tokens: dict[str, torch.Tensor]) -> Prompt:
        """Return the encoded prompts: what the only text encoder puts out last, unless a model reads other layers."""
        return Prompt(self._read_prompt(tokens).last_hidden_state)

    @abstractmethod
    def predict(self, latents: torch.Tensor, time: torch.Tensor, prompt: Prompt) -> torch.Tensor:
        """Return the denoiser's output at a time per image."""

    def learned_guidance(self, time: torch.Tensor) -> torch.Tensor | None:
        """Return what denoisers read that learned guidance, such as FLUX.1 dev's; None for others."""
        return torch.full_like(time, GUIDANCE_SCALE) if self.denoiser.config.guidance_embeds else None

    def pack(self, latents: torch.Tensor) -> torch.Tensor:
        """Return latents in the layout that the denoiser reads."""
        return latents

    def unpack(self, latents: torch.Tensor) -> torch.Tensor:
        """Return latents in the layout that the decoder reads."""
        return latents

    def look_at(self, picture: torch.Tensor) -> torch.Tensor:
        """Return the latents that stand for images."""
        latents: torch.Tensor = self.decoder.encode(picture).latent_dist.mode() * self.decoder.config.scaling_factor
        return latents

    def decode(self, latents: torch.Tensor) -> torch.Tensor:
        """Return the images that latents stand for."""
        images: torch.Tensor = self.decoder.decode(latents / self.decoder.config.scaling_factor).sample
        return images

    def _read(self, name: str, tokens: dict[str, torch.Tensor]) -> Any:
        """Return the output of a text encoder with those of all its layers."""
        return self.get_submodule(name)(tokens[name], output_hidden_states=True)

    def _read_prompt(self, tokens: dict[str, torch.Tensor]) -> Any:
        """Return the output of the only text encoder, whatever it is called."""
        (name,) = tokens
        return self._read(name, tokens)


class PatchGenerator(ImageGenerator):  # type: ignore[no-untyped-call]
    """Generator whose denoiser reads patches of 2 x 2 latents as tokens."""

    @property
    def patches(self) -> int:
        """Patches along each edge."""
        return int(self.config.latent_shape[-1]) // 2

    def pack(self, latents: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.pixel_unshuffle(latents, 2).flatten(2).transpose(1, 2)

    def unpack(self, latents: torch.Tensor) -> torch.Tensor:
        image = latents.transpose(1, 2).reshape(len(latents), -1, self.patches, self.patches)
        return torch.nn.functional.pixel_shuffle(image, 2)

    def places(self, device: torch.device) -> torch.Tensor:
        """Return row and column of each patch, shape (patches, 2)."""
        along = torch.arange(self.patches, device=device)
        return torch.stack([along.repeat_interleave(self.patches), along.repeat(self.patches)], dim=-1)


def _encoder_class(fields: dict[str, Any]) -> Any:
    """Return the class of transformers that a published config names; None where it names none."""
    (name, *_) = fields.get("architectures") or [""]
    return getattr(transformers, name, None)
