"""Models as torch modules: from their config with seeded random weights, or with real weights from a folder or the hub.

Inputs are in `inputs.py`, what a model costs in `cost.py`.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from accel_platform.errors import NotFound
from accel_platform.workloads.families import ModelSpec

if TYPE_CHECKING:
    from torch import nn


def config_of(spec: ModelSpec) -> Any:
    """The transformers config of a model, made without a network."""
    from transformers import AutoConfig

    return _without_cache(AutoConfig.for_model(spec.architecture, **spec.config))


def build_model(spec: ModelSpec, weights: str | None = None) -> nn.Module:
    """The model in float32 and evaluation mode.

    Without `weights` its parameters are random, seeded by the model's config: every process on every machine gets the
    same. `weights` is a folder written by `save_pretrained` or a hub id. Raises NotFound where those cannot be read.
    """
    import torch
    from transformers import AutoModel

    if weights is not None:
        try:
            model = AutoModel.from_pretrained(weights, dtype=torch.float32)
        except OSError as error:
            raise NotFound(f"The weights {weights!r} cannot be loaded: {str(error).splitlines()[0]}") from error
        _without_cache(model.config)
        return model.eval()  # type: ignore[no-any-return]
    auto: Any = AutoModel
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_of(spec))
        return auto.from_config(config_of(spec), dtype=torch.float32).eval()  # type: ignore[no-any-return]


def seed_of(spec: ModelSpec) -> int:
    """Seed of a model's random weights: its architecture and config, so that a renamed model keeps them.

    How attention is computed is no part of what the weights are.
    """
    config = {key: value for key, value in spec.config.items() if key != "attn_implementation"}
    text = f"{spec.architecture} {sorted(config.items(), key=lambda kv: kv[0])!r}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")


def tensors_of(output: Any) -> dict[str, Any]:
    """The tensors of a transformers output by name, in its order; nested outputs and caches are left out."""
    import torch

    return {name: value for name, value in output.items() if isinstance(value, torch.Tensor)}


def _without_cache(config: Any) -> Any:
    """One forward pass is measured: the keys and values that generation would keep are not computed."""
    parts: list[Any] = [config, getattr(config, "text_config", None)]
    for part in parts:
        if getattr(part, "use_cache", None):
            part.use_cache = False
    return config
