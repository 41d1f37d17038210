"""Inputs of a model by modality: names, shapes and values as numpy arrays."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from accel_platform.errors import InvalidInput
from accel_platform.workloads.input_shapes import parse_shape
from accel_platform.workloads.model_catalog import DETECTORS, VIDEO_GENERATORS, ModelSpec, sequence_length_for
from accel_platform.workloads.sources import is_sourced

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Kind = Literal["tokens", "mask", "size", "signal"]

SAMPLES_PER_S = 16_000
"""Sampling rate of wav2vec2 and similar models, in Hz."""
WAVEFORM_SAMPLES = 5 * SAMPLES_PER_S
FRAMES_PER_S = 100
"""Spectra that models such as Whisper and Parakeet read of a second of sound."""
QUESTION_TOKENS = 64
"""Tokens of a question about an image."""
DECODER_TOKENS = 16
"""Tokens of a short text, decoded in one forward pass beside the sound or the image that the encoder reads."""
FIRST_PLAIN_TOKEN = 10
"""Lowest id of a plain token: lower ids are padding and other specials in most vocabularies."""


@dataclass(frozen=True)
class InputSpec:
    """One input array: `tokens` are int64 ids below `vocabulary`, `mask` is int64 ones, `signal` float32 noise; a
    `size` is int64 `value`s that the model's own shapes depend on.
    """

    name: str
    shape: tuple[int, ...]
    kind: Kind
    vocabulary: int = 0
    value: int = 0
    image_tokens: int = 0
    """Number of tokens after the first that stand for the image; their id is `vocabulary`."""


def describe_inputs(
    spec: ModelSpec, *, batch_size: int, sequence_length: int | None = None, audio_seconds: float | None = None
) -> tuple[InputSpec, ...]:
    """Return names and shapes of the forward pass's inputs, batch first, with decoder tokens for encoder-decoders.

    Raises InvalidInput for a batch size below 1, a length beyond the model's positions, or seconds of sound for a model
    that takes none or a fixed number.
    """
    from accel_platform.workloads.build import config_of

    if batch_size < 1:
        raise InvalidInput(f"A batch size must be at least 1, not {batch_size}.")
    length = sequence_length_for(spec, sequence_length)
    if is_sourced(spec):
        if audio_seconds is not None:
            raise InvalidInput(f"{spec.model_id} reads what its input's shape states: leave out audio_seconds.")
        return _source_inputs(spec, batch_size, length)
    config = config_of(spec)
    if spec.modality == "audio":
        return _audio_inputs(config, batch_size, audio_seconds)
    if audio_seconds is not None:
        raise InvalidInput(f"{spec.model_id} reads no sound of any length: leave out audio_seconds.")
    if spec.modality == "text":
        assert length is not None
        return _text_inputs(config, spec, batch_size, length)
    if spec.draws_images:
        return _image_generation_inputs(config, spec, batch_size)
    if spec.architecture in DETECTORS:
        _check_edge(config, spec, "reads")
    if spec.modality == "vision":
        return _vision_inputs(config, batch_size)
    assert length is not None
    return _multimodal_inputs(config, spec, batch_size, length)


def make_inputs(
    spec: ModelSpec, *, batch_size: int, sequence_length: int | None = None, seed: int = 0
) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of one forward pass; equal arguments give equal values on every machine."""
    import numpy as np

    generator = np.random.default_rng(seed)
    return {
        item.name: _values(item, generator, np)
        for item in describe_inputs(spec, batch_size=batch_size, sequence_length=sequence_length)
    }


def _values(item: InputSpec, generator: np.random.Generator, np: Any) -> npt.NDArray[Any]:
    if item.kind == "tokens":
        first = FIRST_PLAIN_TOKEN if item.vocabulary > FIRST_PLAIN_TOKEN else 0
        tokens = generator.integers(first, item.vocabulary, item.shape, dtype=np.int64)
        if item.image_tokens:
            tokens[:, 1 : 1 + item.image_tokens] = item.vocabulary
        return tokens
    if item.kind in ("mask", "size"):
        return np.full(item.shape, 1 if item.kind == "mask" else item.value, dtype=np.int64)  # type: ignore[no-any-return]
    return generator.standard_normal(item.shape, dtype=np.float32)


def _source_inputs(spec: ModelSpec, batch: int, length: int | None) -> tuple[InputSpec, ...]:
    shapes = {name: parse_shape(name, text) for name, text in spec.config["inputs"].items()}
    return tuple(InputSpec(n, (batch, *shape.at(length)), shape.kind, shape.vocabulary) for n, shape in shapes.items())


def _text_inputs(config: Any, spec: ModelSpec, batch: int, length: int) -> tuple[InputSpec, ...]:
    from accel_platform.workloads.build import text_part

    # A model that also reads images is measured on text: only the part that reads text counts.
    if config.model_type in _SERIES:
        return _series_inputs(config, spec, batch, length)
    if config.model_type == "musicgen":
        prompt, sound = config.text_encoder, config.decoder
        return (
            InputSpec("input_ids", (batch, length), "tokens", prompt.vocab_size),
            InputSpec("attention_mask", (batch, length), "mask"),
            InputSpec("decoder_input_ids", (batch * sound.num_codebooks, length), "tokens", sound.vocab_size),
        )
    text = text_part(config)
    _check_length(text, spec, length)
    inputs: tuple[InputSpec, ...] = (
        InputSpec("input_ids", (batch, length), "tokens", text.vocab_size),
        InputSpec("attention_mask", (batch, length), "mask"),
    )
    if config.is_encoder_decoder:
        inputs += (InputSpec("decoder_input_ids", (batch, length), "tokens", text.vocab_size),)
    return inputs


_SERIES = ("chronos-bolt", "timesfm", "timesfm2_5")
"""Architectures that read a series of values, one for each position of the sequence."""


def _series_inputs(config: Any, spec: ModelSpec, batch: int, length: int) -> tuple[InputSpec, ...]:
    """Return values of series, none of which is padding, and the kind of their frequency where it is read."""
    if length % config.patch_length:
        raise InvalidInput(
            f"{spec.model_id} reads series in patches of {config.patch_length} values, not {length}: ask a multiple."
        )
    values = InputSpec("past_values", (batch, length), "signal")
    if config.model_type == "chronos-bolt":
        return (values,)
    padding = InputSpec("past_values_padding", (batch, length), "tokens", 1)
    frequency = (InputSpec("freq", (batch, 1), "tokens", 1),) if hasattr(config, "freq_size") else ()
    return (values, padding, *frequency)


def whisper_window_s(positions: int) -> float:
    """Return the seconds of sound that Whisper reads at once, by its encoder's positions: two frames each."""
    return 2 * positions / FRAMES_PER_S


def _audio_inputs(config: Any, batch: int, seconds: float | None) -> tuple[InputSpec, ...]:
    if config.model_type == "whisper":
        # Sound is padded or cut to a window that is the same for all.
        window = whisper_window_s(config.max_source_positions)
        if seconds not in (None, window):
            raise InvalidInput(f"whisper reads {window:g} s of sound at a time, however long it is, not {seconds:g} s.")
        # The encoder's first convolutions halve the frames down to its positions.
        frames = 2 * config.max_source_positions
        return (
            InputSpec("input_features", (batch, config.num_mel_bins, frames), "signal"),
            InputSpec("decoder_input_ids", (batch, DECODER_TOKENS), "tokens", config.vocab_size),
        )
    if config.model_type == "audio-spectrogram-transformer":
        if seconds is not None:
            raise InvalidInput(
                f"{config.model_type} reads {config.max_length} frames of sound at a time: leave out audio_seconds."
            )
        return (InputSpec("input_values", (batch, config.max_length, config.num_mel_bins), "signal"),)
    samples = WAVEFORM_SAMPLES if seconds is None else round(seconds * SAMPLES_PER_S)
    frames = samples * FRAMES_PER_S // SAMPLES_PER_S
    if config.model_type in ("wav2vec2-bert", "seamless_m4t_v2"):
        # Two spectra make one frame.
        sound = InputSpec("input_features", (batch, frames // 2, config.feature_projection_input_dim), "signal")
    elif config.model_type in ("parakeet_ctc", "parakeet_tdt"):
        sound = InputSpec("input_features", (batch, frames, config.encoder_config.num_mel_bins), "signal")
    else:
        sound = InputSpec("input_values", (batch, samples), "signal")
    # A transducer joins one token with all frames.
    tokens = 1 if config.model_type == "parakeet_tdt" else DECODER_TOKENS if config.is_encoder_decoder else 0
    if not tokens:
        return (sound,)
    return sound, InputSpec("decoder_input_ids", (batch, tokens), "tokens", config.vocab_size)


def _vision_inputs(config: Any, batch: int) -> tuple[InputSpec, ...]:
    clip = (config.num_frames,) if hasattr(config, "num_frames") else ()
    images = InputSpec("pixel_values", (batch, *clip, 3, *_image_size(config)), "signal")
    if config.model_type == "vision-encoder-decoder":
        return images, InputSpec("decoder_input_ids", (batch, DECODER_TOKENS), "tokens", config.decoder.vocab_size)
    return (images,)


def _multimodal_inputs(config: Any, spec: ModelSpec, batch: int, length: int) -> tuple[InputSpec, ...]:
    text_config = getattr(config, "text_config", config)
    _check_length(text_config, spec, length)
    if config.model_type in _IMAGE_TOKENS:
        return _image_token_inputs(config, spec, batch, length)
    text: tuple[InputSpec, ...] = (
        InputSpec("input_ids", (batch, length), "tokens", text_config.vocab_size),
        InputSpec("attention_mask", (batch, length), "mask"),
    )
    if config.model_type == "layoutlmv3":
        # Each word's corners, in thousandths of the page's width and height.
        corners = InputSpec("bbox", (batch, length, 4), "tokens", 1000)
        return (*text, corners, InputSpec("pixel_values", (batch, 3, config.input_size, config.input_size), "signal"))
    if config.model_type == "clap":
        audio = config.audio_config
        frames = (audio.spec_size // audio.num_mel_bins) * audio.spec_size
        return (*text, InputSpec("input_features", (batch, 1, frames, audio.num_mel_bins), "signal"))
    vision = config.vision_config
    clip = (vision.num_frames,) if config.model_type == "xclip" else ()
    return (*text, InputSpec("pixel_values", (batch, *clip, 3, *_image_size(vision)), "signal"))


def _llava_features(config: Any) -> int:
    return int(config.vision_config.image_size // config.vision_config.patch_size) ** 2


def _llava_next_features(config: Any) -> int:
    # A large image is seen whole and in two by two tiles, which are put together with a line's end after each row.
    side = int(config.vision_config.image_size // config.vision_config.patch_size)
    return side**2 + 2 * side * (2 * side + 1)


def _internvl_features(config: Any) -> int:
    height, width = config.vision_config.image_size
    patch_height, patch_width = config.vision_config.patch_size
    return int((height // patch_height) * (width // patch_width) * config.downsample_ratio**2)


def _florence_features(config: Any) -> int:
    height, width = _image_size(config.vision_config)
    stride: int = math.prod(config.vision_config.patch_stride)
    # The last is the mean of all others.
    return (height // stride) * (width // stride) + 1


_IMAGE_TOKENS: dict[str, Callable[[Any], int]] = {
    "blip-2": lambda config: int(config.num_query_tokens),
    "florence2": _florence_features,
    "internvl": _internvl_features,
    "llava": _llava_features,
    "llava_next": _llava_next_features,
    "llava_onevision": _llava_next_features,
    "paligemma": _llava_features,
}
"""Architectures whose text has a place for each feature of an image, and how many these are."""


def image_tokens(config: Any) -> int:
    """Return how many tokens of its text a model keeps for an image; 0 where none."""
    return _IMAGE_TOKENS[config.model_type](config) if config.model_type in _IMAGE_TOKENS else 0


def _image_token_inputs(config: Any, spec: ModelSpec, batch: int, length: int) -> tuple[InputSpec, ...]:
    """Return text with a place per image feature, and the image."""
    features = image_tokens(config)
    if length < features + 2:
        raise InvalidInput(
            f"{spec.model_id} reads {features} tokens of image beside the text's: ask a longer sequence."
        )
    height, width = _image_size(config.vision_config)
    tiles = (5,) if config.model_type in ("llava_next", "llava_onevision") else ()
    inputs: tuple[InputSpec, ...] = (
        InputSpec("input_ids", (batch, length), "tokens", config.image_token_id, image_tokens=features),
        InputSpec("attention_mask", (batch, length), "mask"),
        InputSpec("pixel_values", (batch, *tiles, 3, height, width), "signal"),
    )
    if tiles:
        inputs += (InputSpec("image_sizes", (batch, 2), "size", value=2 * height),)
    if config.is_encoder_decoder:
        inputs += (InputSpec("decoder_input_ids", (batch, DECODER_TOKENS), "tokens", config.image_token_id),)
    return inputs


def _image_generation_inputs(config: Any, spec: ModelSpec, batch: int) -> tuple[InputSpec, ...]:
    """Return noise, the image to edit if there is one, and the tokens of each text encoder."""
    if config.steps < 1:
        raise InvalidInput(f"{spec.model_id} needs at least 1 step to draw an image, not {config.steps}.")
    _check_edge(config, spec, "draws")
    tokens = (
        InputSpec(name, (batch, config.tokens_of(name)), "tokens", config.vocabulary_of(name))
        for name in config.text_encoders
    )
    noise = InputSpec("noise", (batch, *config.latent_shape), "signal")
    picture = InputSpec("picture", (batch, 3, config.image_size, config.image_size), "signal")
    return (noise, *((picture,) if config.edits else ()), *tokens)


def _check_edge(config: Any, spec: ModelSpec, verb: str) -> None:
    """Raise InvalidInput for images whose edge is no multiple of the config's `edge_unit`."""
    unit = config.edge_unit
    if config.image_size % unit:
        below = config.image_size // unit * unit
        sizes = " or ".join(str(size) for size in (below, below + unit) if size)
        raise InvalidInput(
            f"{spec.model_id} {verb} images with edges in multiples of {unit} pixels, not of {config.image_size}: ask "
            f"for {sizes}."
        )


def with_image_size(spec: ModelSpec, pixels: int) -> ModelSpec:
    """Return the model for square images of another size. Raises InvalidInput for a model without images."""
    from accel_platform.workloads.build import config_of

    if is_sourced(spec):
        raise InvalidInput(
            f"{spec.model_id} reads images of the size that its input's shape states: leave out image_size."
        )
    if spec.architecture in _FIXED_EDGES:
        edge = _FIXED_EDGES[spec.architecture]
        raise InvalidInput(f"{spec.model_id} reads images of {edge} x {edge} pixels alone: leave out image_size.")
    if spec.architecture in VIDEO_GENERATORS:
        raise InvalidInput(f"{spec.model_id} draws videos of the size that its config states: leave out image_size.")
    parts = _SIZED_PARTS.get(spec.architecture, ())
    if spec.modality == "vision" and not parts:
        return replace(spec, config={**spec.config, "image_size": pixels})
    if not parts and not hasattr(config_of(spec), "vision_config"):
        raise InvalidInput(f"{spec.model_id} reads no images: leave out image_size.")
    sized = {part: {**spec.config.get(part, {}), "image_size": pixels} for part in parts or ("vision_config",)}
    return replace(spec, config={**spec.config, **sized})


def with_steps(spec: ModelSpec, steps: int) -> ModelSpec:
    """Return the model with another number of denoising steps. Raises InvalidInput for a model that draws nothing."""
    if not spec.draws_images:
        raise InvalidInput(f"{spec.model_id} draws no images: leave out steps.")
    return replace(spec, config={**spec.config, "steps": steps})


def usual_image_size(spec: ModelSpec) -> int | None:
    """Return the edge in pixels of the images it is measured with.

    None for a model without images, with text besides, with videos, or with images that are not square.
    """
    if spec.modality != "vision" or spec.architecture in VIDEO_GENERATORS:
        return None
    if spec.draws_images:
        from accel_platform.workloads.build import config_of

        return int(config_of(spec).image_size)
    inputs = describe_inputs(spec, batch_size=1)
    shapes = [item.shape[-2:] for item in inputs if item.kind == "signal" and len(item.shape) == 4]
    return shapes[0][0] if shapes and shapes[0][0] == shapes[0][1] else None


_FIXED_EDGES = {"layoutlmv3": 224, "sam2": 1024}
"""Pixels along the edges of images, where further parts of a config follow from them."""
_PROCESSED_EDGES = {
    "d_fine": 640, "depth_anything": 518, "detr": 800, "florence_vision": 768, "mask2former": 384, "rt_detr": 640,
    "rt_detr_v2": 640, "table-transformer": 800,
}  # fmt: skip
"""Pixels along the shorter edge of images, by image processors, where the config does not say."""
_SIZED_PARTS = {
    "rf_detr": ("backbone_config",),
    "sam": ("vision_config", "prompt_encoder_config"),
    "vision-encoder-decoder": ("encoder",),
    "vitpose": ("backbone_config",),
}
"""Parts of a config that state the size of images, where the whole states none."""


def _image_size(config: Any) -> tuple[int, int]:
    """Return height and width in pixels: the config's, else those that the architecture's image processor makes."""
    name = config.model_type
    part = getattr(config, _SIZED_PARTS[name][0]) if name in _SIZED_PARTS else config
    size: Any = _FIXED_EDGES.get(name) or getattr(part, "image_size", _PROCESSED_EDGES.get(name, 224))
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def _check_length(config: Any, spec: ModelSpec, length: int) -> None:
    longest = getattr(config, "max_position_embeddings", None)
    # XLNet says -1: no limit.
    if longest is not None and 0 <= longest < length:
        raise InvalidInput(f"{spec.model_id} reads at most {longest} tokens, not {length}: ask a shorter sequence.")
