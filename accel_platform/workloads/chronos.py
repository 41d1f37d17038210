"""Chronos-Bolt: T5 that reads patches of a series and puts out quantiles of what follows in one pass.

Layers and figures are those of the published configs.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModel, PreTrainedConfig, PreTrainedModel, T5Config, T5Model


class ChronosBoltConfig(PreTrainedConfig):  # type: ignore[no-untyped-call]
    """Config of a forecaster; the figures are those of the smallest."""

    model_type = "chronos-bolt"

    t5: dict[str, Any] = field(
        default_factory=lambda: {"d_model": 256, "d_ff": 1024, "num_layers": 4, "num_heads": 4, "d_kv": 64}
    )
    """Fields of T5's config."""
    patch_length: int = 16
    """Values of a patch."""
    prediction_length: int = 64
    """Values that one pass predicts."""
    quantiles: int = 9
    """Quantiles that are predicted of each value."""


class _ResidualBlock(nn.Module):
    """Two layers beside a third."""

    def __init__(self, read: int, between: int, put_out: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(read, between), nn.ReLU(), nn.Linear(between, put_out))
        self.beside = nn.Linear(read, put_out)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.layers(values) + self.beside(values)
        return result


class ChronosBolt(PreTrainedModel):  # type: ignore[no-untyped-call]
    """Chronos-Bolt (Amazon 2024)."""

    config_class = ChronosBoltConfig
    main_input_name = "past_values"

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        # Two tokens: the one that ends a series, and the one that the decoder starts from.
        shape = T5Config(**{**config.t5, "vocab_size": 2, "use_cache": False})
        self.t5 = T5Model(shape)
        self.read = _ResidualBlock(2 * config.patch_length, shape.d_ff, shape.d_model)
        self.put_out = _ResidualBlock(shape.d_model, shape.d_ff, config.quantiles * config.prediction_length)
        self.post_init()  # type: ignore[no-untyped-call]

    def forward(self, past_values: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return quantiles of shape (batch, quantiles, prediction length) after series of shape (batch, length)."""
        config: Any = self.config
        mean, deviation = past_values.mean(dim=1, keepdim=True), past_values.std(dim=1, keepdim=True) + 1e-5
        patches = ((past_values - mean) / deviation).unflatten(1, (-1, config.patch_length))  # type: ignore[no-untyped-call]
        # Each value comes with a sign that it is none missing.
        words = self.read(torch.cat([patches, torch.ones_like(patches)], dim=-1))
        start, end = self.t5.shared.weight
        tokens = torch.cat([words, end.expand(len(words), 1, -1)], dim=1)
        decoded = self.t5(inputs_embeds=tokens, decoder_inputs_embeds=start.expand(len(words), 1, -1))
        predicted = self.put_out(decoded.last_hidden_state).view(len(words), config.quantiles, -1)
        return {"quantiles": predicted * deviation.unsqueeze(1) + mean.unsqueeze(1)}


AutoConfig.register(ChronosBoltConfig.model_type, ChronosBoltConfig)
AutoModel.register(ChronosBoltConfig, ChronosBolt)
