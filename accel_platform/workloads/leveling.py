"""Scales of normalizations in models with random weights, so that no signal fades on its way through many layers."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn


@torch.no_grad()
def level(model: nn.Module, edge: int) -> None:
    """Set the scale of each normalization to that of what it reads of a random image with this edge in pixels.

    Scales are powers of two, because sums differ by machine in their last digits, and weights may not.
    """

    def set_scale(norm: Any, read: tuple[torch.Tensor]) -> None:
        norm.running_var.fill_(4.0 ** round(math.log(float(read[0].var()), 4)))

    norms = (module for module in model.modules() if isinstance(module, nn.BatchNorm2d))
    hooks = [norm.register_forward_pre_hook(set_scale) for norm in norms]
    model.train(False)(torch.randn(1, 3, edge, edge))
    for hook in hooks:
        hook.remove()
