"""Small tensors for the inputs of any architecture, by input name: text, images, sound, series.

Each maker yields the forms of its input, the usual one first, with masks, grids and sizes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import torch

from accel_platform.workloads.inputs import FIRST_PLAIN_TOKEN

Inputs = dict[str, torch.Tensor]
Names = frozenset[str]
"""Names of all arguments that the forward pass takes."""

TOKENS = 16
FRAMES = 64
SAMPLES = 7680
"""Samples of sound: about half a second at 16 kHz, and a whole number of the frames that codecs cut it into."""
STEPS = 8
_VOCABULARY_UNKNOWN = 256
"""Vocabulary size where a config states none, as for models of bytes or characters."""
_TOWERS = ("vision_config", "vision_encoder_config", "image_config", "backbone_config", "vision_model_config")
_BINS = (
    "num_mel_bins", "input_feat_size", "feature_projection_input_dim", "input_feat_per_channel", "input_dim",
    "num_mel_channels", "n_mels", "feature_size", "mel_bins",
)  # fmt: skip
_SOUND_MASKS = ("input_features_mask", "feature_attention_mask", "audio_mel_mask", "attention_mask")


def make(name: str, config: Any, names: Names, generator: torch.Generator) -> Iterator[Inputs]:
    """Yield the forms of the input of this name; nothing for an unknown name."""
    for pattern, maker in _MAKERS:
        if re.fullmatch(pattern, name):
            yield from maker(name, config, names, generator)
            return


# --- figures of a config and its sub-configs


def configs_of(config: Any) -> Iterator[Any]:
    """Yield the config and all its sub-configs, outermost first."""
    yield config
    for value in vars(config).values():
        if hasattr(value, "model_type") and hasattr(value, "to_dict"):
            yield from configs_of(value)


def plain_forward(config: Any) -> Any:
    """Return the config with caches and losses disabled in all parts."""
    for part in configs_of(config):
        for name in ("use_cache", "return_loss"):
            if getattr(part, name, None):
                setattr(part, name, False)
    return config


def look_up(config: Any, *names: str, default: Any = None) -> Any:
    """Return the first of these names that the config or the nearest sub-config has."""
    for part in configs_of(config):
        for name in names:
            value = getattr(part, name, None)
            if value is not None:
                return value
    return default


def reserved_tokens(config: Any) -> set[int]:
    """Return every id that a config gives a meaning."""
    found: set[int] = set()
    for part in configs_of(config):
        for name, value in vars(part).items():
            if re.search(r"token_(id|index)s?$", name):
                found |= {v for v in (value if isinstance(value, list) else [value]) if isinstance(v, int)}
    return found


def vocabulary_of(name: str, config: Any) -> int:
    """Return how many ids the input of this name may hold."""
    if name.startswith("decoder"):
        decoder = getattr(config, "decoder", None) or getattr(config, "decoder_config", None)
        if (own := getattr(decoder, "vocab_size", None)) is not None:
            return int(own)
    return int(look_up(config, "vocab_size", "text_vocab_size", "n_vocab", default=_VOCABULARY_UNKNOWN))


def _number(value: Any) -> int:
    return int(value[0] if isinstance(value, list | tuple) else value)


def _vision(config: Any) -> Any:
    for part in configs_of(config):
        for name in _TOWERS:
            if hasattr(found := getattr(part, name, None), "model_type"):
                return found
    return config


def _image_size(config: Any) -> tuple[int, int]:
    for part in (_vision(config), config):
        size = look_up(part, "image_size", "crop_size", "img_size")
        if isinstance(size, dict):
            size = (size["height"], size["width"])
        if size is not None:
            height, width = (size, size) if isinstance(size, int) else (size[-2], size[-1])
            return int(height), int(width)
    return 224, 224


# --- makers


def _noise(generator: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=generator)


def _text(name: str, config: Any, names: Names, generator: torch.Generator) -> Iterator[Inputs]:
    vocabulary, reserved = vocabulary_of(name, config), reserved_tokens(config)
    first = min(FIRST_PLAIN_TOKEN, vocabulary // 2)
    plain = torch.tensor([token for token in range(first, vocabulary) if token not in reserved] or [0])
    ids = plain[torch.randint(len(plain), (1, TOKENS), generator=generator)]
    # The end-of-sequence token comes last, because some models read the whole sentence off it.
    eos = look_up(config, "eos_token_id")
    if isinstance(eos, int) and 0 <= eos < vocabulary and not name.startswith("decoder"):
        ids[:, -1] = eos
    made = {name: ids}
    mask = name.replace("input_ids", "attention_mask")
    if mask in names and not name.startswith("decoder"):
        made[mask] = torch.ones(1, TOKENS, dtype=torch.int64)
    if "bbox" in names and name == "input_ids":
        made["bbox"] = torch.tensor([[[10, 20, 30, 40]] * TOKENS])
    yield made
    books = look_up(config, "num_codebooks", "n_codebooks")
    if books is not None:
        # Codec models read sound as token ids: several per step, and one more where text is among them.
        for count in (_number(books), _number(books) + 1):
            several = plain[torch.randint(len(plain), (1, TOKENS, count), generator=generator)]
            yield {name: several}
            yield {name: several.transpose(1, 2).contiguous()}
            yield {name: several[0].transpose(0, 1).contiguous()}


def _images(name: str, config: Any, names: Names, generator: torch.Generator) -> Iterator[Inputs]:
    vision = _vision(config)
    channels = _number(look_up(vision, "num_channels", "in_channels", "in_chans", default=3))
    channels = channels if channels in (1, 3, 4) else 3
    height, width = _image_size(config)
    grids = ("image_grid_thw", "video_grid_thw", "grid_thw", "image_grid_hw")
    grid = next((g for g in grids if g in names and (g != "image_grid_thw" or name != "pixel_values_videos")), None)
    if grid:
        yield from _patches(name, config, frozenset({grid}), generator)
    yield from _flat_patches(name, vision, channels, names, generator)
    frames = look_up(config, "num_frames", "frames_per_clip")
    if name == "pixel_values_videos" or frames:
        yield {name: _noise(generator, 1, _number(frames or STEPS), channels, height, width)}
    sizes: Inputs = {"image_sizes": torch.tensor([[height, width]])} if "image_sizes" in names else {}
    yield {name: _noise(generator, 1, channels, height, width), **sizes}
    if sizes:
        yield {name: _noise(generator, 1, channels, height, width)}
    # An image in several crops.
    for crops in (1, 2, 5):
        yield {name: _noise(generator, 1, crops, channels, height, width), **sizes}
    for side in (448, 224, 64):
        yield {name: _noise(generator, 1, channels, side, side), **sizes}


def _flat_patches(name: str, vision: Any, channels: int, names: Names, generator: torch.Generator) -> Iterator[Inputs]:
    """Yield images cut into rows of patches, with their place or shape."""
    patch = _number(look_up(vision, "patch_size", default=16))
    side = max(2, 64 // patch)
    flat = {name: _noise(generator, 1, side * side, channels * patch * patch)}
    for position in ("pixel_position_ids", "image_position_ids"):
        if position in names:
            yield {**flat, position: torch.tensor([[[x, y] for y in range(side) for x in range(side)]])}
    if "spatial_shapes" in names:
        mask = torch.ones(1, side * side, dtype=torch.int64)
        yield {**flat, "pixel_attention_mask": mask, "spatial_shapes": torch.tensor([[side, side]])}


def _patches(name: str, config: Any, names: Names, generator: torch.Generator) -> Iterator[Inputs]:
    """Yield images of any size cut into one row of patches, with their grid."""
    grid = next(n for n in names if n.endswith(("grid_thw", "grid_hw")))
    vision = _vision(config)
    patch = _number(look_up(vision, "patch_size", default=14))
    channels = _number(look_up(vision, "in_channels", "num_channels", "in_chans", default=3))
    merge = _number(look_up(vision, "spatial_merge_size", "merge_size", "merge_kernel_size", default=2))
    side, times = 2 * merge, _number(look_up(vision, "temporal_patch_size", "patch_temporal", default=1))
    shape = torch.tensor([[1, side, side]])
    beside: Inputs = {grid: shape if grid.endswith("thw") else shape[:, 1:]}
    for sizes in ("merge_sizes", "image_merge_sizes", "video_merge_sizes"):
        beside[sizes] = torch.tensor([merge])
    for depth in dict.fromkeys((times, 1)):
        yield {name: _noise(generator, side * side, channels * depth * patch * patch), **beside}
    yield {name: _noise(generator, side * side, channels, patch, patch), **beside}
    yield {name: _noise(generator, 1, side * side, channels * patch * patch), **beside}
    yield {name: _noise(generator, 1, side * side, channels, patch, patch), **beside}


def _hidden(name: str, config: Any, names: Names, generator: torch.Generator) -> Iterator[Inputs]:
    if "grid_thw" in names:
        yield from _patches(name, config, frozenset({"grid_thw"}), generator)
        return
    width = look_up(config, "hidden_size", "d_model", "latent_dim", default=64)
    yield {name: _noise(generator, 1, TOKENS, width)}
    yield {name: _noise(generator, 1, width, TOKENS)}
    yield {name: _noise(generator, 1, look_up(config, "channels", "audio_channels", default=1), SAMPLES)}


def _sound_features(name: str, config: Any, names: Names, generator: torch.Generator) -> Iterator[Inputs]:
    bins = _number(look_up(config, *_BINS, default=80))
    window = look_up(config, "n_window")
    frames = 2 * window if window else FRAMES
    stacked = bins * _number(look_up(config, "num_stacked_frames", default=1))
    length = look_up(config, "max_source_positions", "max_length")
    shapes: list[tuple[int, ...]] = [(1, bins, 2 * int(length))] if length else []
    shapes += [(1, frames, stacked), (1, bins, frames), (1, 1, 1024, bins), (1, bins, 3000), (1, frames, 2 * bins)]
    masks = [m for m in _SOUND_MASKS if m in names and (m != "attention_mask" or "input_ids" not in names)]
    for shape in shapes:
        made: Inputs = {name: _noise(generator, *shape)}
        count = shape[-2] if shape[-1] in (bins, stacked, 2 * bins) else shape[-1]
        for dtype in (torch.int64, torch.bool):
            yield {**made, **{mask: torch.ones(1, count, dtype=dtype) for mask in masks}}
        yield made


def _waveform(name: str, config: Any, names: Names, generator: torch.Generator) -> Iterator[Inputs]:  # noqa: ARG001
    yield {name: _noise(generator, 1, SAMPLES)}
    yield {name: _noise(generator, 1, 1, SAMPLES)}
    bins = _number(look_up(config, "num_mel_bins", default=80))
    yield {name: _noise(generator, 1, int(look_up(config, "max_length", default=FRAMES)), bins)}


def _series(name: str, config: Any, names: Names, generator: torch.Generator) -> Iterator[Inputs]:  # noqa: ARG001
    lags = getattr(config, "lags_sequence", None)
    length = look_up(config, "context_length", default=64) + (max(lags) if lags else 0)
    channels = look_up(config, "num_input_channels", "input_size", default=1)
    shape = (1, length) if lags and channels == 1 else (1, length, channels)
    if name == "past_time_features":
        yield {name: _noise(generator, 1, length, getattr(config, "num_time_features", 0))}
    elif name == "future_time_features":
        yield {name: _noise(generator, 1, config.prediction_length, getattr(config, "num_time_features", 0))}
    elif name == "past_observed_mask":
        yield {name: torch.ones(shape)}
    elif name == "freq":
        yield {name: torch.zeros(1, 1, dtype=torch.int64)}
    elif name == "past_values_padding":
        yield {name: torch.zeros(1, length)}
        yield {name: torch.zeros(1, length, dtype=torch.int64)}
    else:
        yield {name: _noise(generator, *shape)}
        yield {name: _noise(generator, 1, length)}


def _decisions(name: str, config: Any, names: Names, generator: torch.Generator) -> Iterator[Inputs]:  # noqa: ARG001
    yield {
        "states": _noise(generator, 1, STEPS, config.state_dim),
        "actions": _noise(generator, 1, STEPS, config.act_dim),
        "rewards": _noise(generator, 1, STEPS, 1),
        "returns_to_go": _noise(generator, 1, STEPS, 1),
        "timesteps": torch.arange(STEPS)[None],
        "attention_mask": torch.ones(1, STEPS, dtype=torch.int64),
    }


def _detections(name: str, config: Any, names: Names, generator: torch.Generator) -> Iterator[Inputs]:  # noqa: ARG001
    """Yield a detector's findings in an image, as vectors."""
    if name == "visual_embeds":
        yield {name: _noise(generator, 1, STEPS, config.visual_embedding_dim)}
    else:
        places = _noise(generator, 1, STEPS, config.visual_pos_dim)
        yield {name: _noise(generator, 1, STEPS, config.visual_feat_dim), "visual_pos": places}


def _mask(name: str, config: Any, names: Names, generator: torch.Generator) -> Iterator[Inputs]:  # noqa: ARG001
    yield {name: torch.ones(1, FRAMES, dtype=torch.int64)}
    yield {name: torch.ones(1, FRAMES, dtype=torch.bool)}


_MAKERS = (
    (r".*input_ids|task_inputs|text_inputs", _text),
    (r"pixel_values(_videos)?|prompt_pixel_values", _images),
    (r"input_features|audio_mel", _sound_features),
    (r"input_values", _waveform),
    (r"past_(values|time_features|observed_mask|values_padding)|future_time_features|freq", _series),
    (r"states", _decisions),
    (r"visual_(feats|embeds)", _detections),
    (r"latents|hidden_states|inputs_embeds|noise_embeds|query_embeds|encoder_hidden_states|inputs", _hidden),
    (r".*_mask", _mask),
)
