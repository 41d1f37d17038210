"""Models as torch modules: from their config with seeded random weights, or with real weights from a folder.

Inputs are in `inputs.py`, what a model costs in `cost.py`, where real weights are found in `weights.py`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from accel_platform.errors import NotFound, one_line
from accel_platform.workloads.heads import Head
from accel_platform.workloads.model_catalog import CONVOLUTIONAL, DETECTORS, FORECASTERS, IMAGE_GENERATORS, ModelSpec
from accel_platform.workloads.sources import build_source, is_sourced

if TYPE_CHECKING:
    from torch import nn


def config_of(spec: ModelSpec) -> Any:
    """Return the transformers config of a model, made without a network."""
    return _without_cache(new_config(spec.architecture, **spec.config))


def text_part(config: Any) -> Any:
    """Return the text part of a config with towers for images or sound, else the whole config."""
    return config if config.is_encoder_decoder else config.get_text_config()


def new_config(model_type: str, **fields: Any) -> Any:
    """Return a transformers config with these fields."""
    from transformers import AutoConfig

    register_architecture(model_type)
    config = AutoConfig.for_model(model_type, **fields)
    # The first of several classes is taken (DeiT has one with a teacher and one without). transformers 5.23 fails on
    # None.
    config.architectures = config.architectures or []
    return config


def register_architecture(model_type: str) -> None:
    """Make known to `AutoModel` what it lacks: architectures of this platform, and those that have a head alone."""
    if model_type in IMAGE_GENERATORS:
        import accel_platform.workloads.image_generation
    elif model_type in DETECTORS:
        import accel_platform.workloads.yolo
    elif model_type in CONVOLUTIONAL:
        import accel_platform.workloads.convnets
    elif model_type in FORECASTERS:
        import accel_platform.workloads.chronos  # noqa: F401 - importing it registers them
    elif model_type in _WITH_HEAD_ALONE:
        import transformers

        model = getattr(transformers, _WITH_HEAD_ALONE[model_type])
        # Transformers skips classes of its own unless they may replace others.
        transformers.AutoModel.register(model.config_class, model, exist_ok=True)


_WITH_HEAD_ALONE = {
    "depth_anything": "DepthAnythingForDepthEstimation",
    "musicgen": "MusicgenForConditionalGeneration",
    "vision-encoder-decoder": "VisionEncoderDecoderModel",
    "vitpose": "VitPoseForPoseEstimation",
}
"""Architectures without a model of their own in transformers: what is measured has a head."""


_FADING = ("efficientnet", "mobilenet_v1", "mobilenet_v2")
"""Architectures whose outputs would all be zero, because transformers' random weights let signals fade."""
_LEVELED_AT = 128
"""Pixels along the edges of the image by which their normalizations are scaled."""


def build_model(spec: ModelSpec, *, head: Head = "AutoModel") -> nn.Module:
    """Return the model, with or without a head, in float32 and evaluation mode.

    Without real weights its parameters are random, seeded by the config: equal on every machine. Raises NotFound where
    the weights cannot be read or belong to another model.
    """
    return build_with_gaps(spec, head=head)[0]


def build_with_gaps(spec: ModelSpec, *, head: Head = "AutoModel") -> tuple[nn.Module, tuple[str, ...]]:
    """Return the model of `build_model`, and the names of parameters that its real weights lack, which are random."""
    import torch
    import transformers

    if is_sourced(spec):
        return build_source(spec, seed_of(spec)), ()
    auto: Any = getattr(transformers, head)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_of(spec))
        if spec.weights is None:
            model = auto.from_config(config_of(spec), dtype=torch.float32).eval()
            if spec.architecture in _FADING:
                from accel_platform.workloads.leveling import level

                for layer in model.modules():
                    if isinstance(layer, (torch.nn.Conv2d, torch.nn.BatchNorm2d)):
                        layer.reset_parameters()
                level(model, _LEVELED_AT)
            return model, ()
        try:
            how = {name: spec.config[name] for name in ("attn_implementation",) if name in spec.config}
            model, loading = auto.from_pretrained(
                spec.weights.folder, dtype=torch.float32, output_loading_info=True, **how
            )
        except Exception as error:
            raise NotFound(f"The weights {spec.weights.source} cannot be loaded: {one_line(error)}") from error
    lacking = tuple(sorted(loading["missing_keys"]))
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    if sum(sizes.get(name, 0) for name in lacking) > sum(sizes.values()) / 2:
        raise NotFound(f"The weights {spec.weights.source} hold less than half of {spec.model_id}'s parameters.")
    _without_cache(model.config)
    return model.eval(), lacking


def seed_of(spec: ModelSpec) -> int:
    """Return the seed of a model's random weights, from architecture and config, so that a renamed model keeps them.

    The weights depend neither on the way attention is computed nor on the place of the file.
    """
    config = {key: value for key, value in spec.config.items() if key not in ("attn_implementation", "source")}
    text = f"{spec.architecture} {sorted(config.items(), key=lambda kv: kv[0])!r}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")


def tensors_of(output: Any) -> dict[str, Any]:
    """Return the tensors of a transformers output by name, in order, without nested outputs and caches."""
    import torch

    return {name: value for name, value in output.items() if isinstance(value, torch.Tensor)}


def outputs_of(model: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arrays that a model on the processor computes from these arrays, by name."""
    import torch

    with torch.inference_mode():
        output = tensors_of(model(**{name: torch.from_numpy(array) for name, array in inputs.items()}))
    return {name: value.numpy() for name, value in output.items()}


def _without_cache(config: Any) -> Any:
    """Disable the key-value cache, because one forward pass is measured."""
    parts: list[Any] = [config, getattr(config, "text_config", None)]
    for part in parts:
        if getattr(part, "use_cache", None):
            part.use_cache = False
    return config
