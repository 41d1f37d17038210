"""VGG, DenseNet and MobileNetV3: classifiers of images that transformers lacks.

Layers and figures are those of torchvision's models. Outputs are scores of the 1,000 classes of ImageNet.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from transformers import AutoConfig, AutoModel, PreTrainedConfig, PreTrainedModel


class ConvNetConfig(PreTrainedConfig):  # type: ignore[no-untyped-call]
    """Config that all of these share."""

    image_size: int = 224
    """Pixels along each edge."""
    classes: int = 1000


class VGGConfig(ConvNetConfig):  # type: ignore[no-untyped-call]
    """Config of VGG; the figures are those of VGG-16."""

    model_type = "vgg"

    depths: list[int] = field(default_factory=lambda: [2, 2, 3, 3, 3])
    """Convolutions of each stage."""
    normalized: bool = False
    """True if batch normalization follows each convolution."""


class DenseNetConfig(ConvNetConfig):  # type: ignore[no-untyped-call]
    """Config of DenseNet; the figures are those of DenseNet-121."""

    model_type = "densenet"

    depths: list[int] = field(default_factory=lambda: [6, 12, 24, 16])
    """Layers of each block."""
    growth: int = 32
    """Channels that each layer adds."""


class MobileNetV3Config(ConvNetConfig):  # type: ignore[no-untyped-call]
    """Config of MobileNetV3; the figures are those of the large one."""

    model_type = "mobilenet-v3"

    blocks: list[list[int]] = field(
        default_factory=lambda: [
            [3, 16, 16, 0, 0, 1], [3, 64, 24, 0, 0, 2], [3, 72, 24, 0, 0, 1], [5, 72, 40, 1, 0, 2],
            [5, 120, 40, 1, 0, 1], [5, 120, 40, 1, 0, 1], [3, 240, 80, 0, 1, 2], [3, 200, 80, 0, 1, 1],
            [3, 184, 80, 0, 1, 1], [3, 184, 80, 0, 1, 1], [3, 480, 112, 1, 1, 1], [3, 672, 112, 1, 1, 1],
            [5, 672, 160, 1, 1, 2], [5, 960, 160, 1, 1, 1], [5, 960, 160, 1, 1, 1],
        ]
    )  # fmt: skip
    """Kernel, inner channels, output channels, squeeze-and-excitation, hard swish and stride of each block."""
    last_channels: int = 1280
    """Width of the layer before the classes."""


class _ConvNet(PreTrainedModel):  # type: ignore[no-untyped-call]
    """Layers for images, and layers that score classes by what these put out."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.features, self.classifier = self.layers(config)
        self.post_init()  # type: ignore[no-untyped-call]

    def layers(self, config: Any) -> tuple[nn.Module, nn.Module]:
        """Return the layers for images, and those that score classes."""
        raise NotImplementedError

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Give random weights that keep the size of what they read, however many layers there are."""
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)

    def forward(self, pixel_values: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return scores of classes, shape (batch, classes), of images of shape (batch, 3, edge, edge)."""
        return {"logits": self.classifier(self.features(pixel_values))}


class VGG(_ConvNet):  # type: ignore[no-untyped-call]
    """VGG (Simonyan and Zisserman 2014)."""

    config_class = VGGConfig

    def layers(self, config: Any) -> tuple[nn.Module, nn.Module]:
        features: list[nn.Module] = []
        read = 3
        for depth, channels in zip(config.depths, (64, 128, 256, 512, 512), strict=True):
            for _ in range(depth):
                norm = [nn.BatchNorm2d(channels)] if config.normalized else []
                features += [nn.Conv2d(read, channels, 3, padding=1), *norm, nn.ReLU()]
                read = channels
            features.append(nn.MaxPool2d(2))
        classifier = [
            nn.AdaptiveAvgPool2d(7), nn.Flatten(), nn.Linear(read * 49, 4096), nn.ReLU(), nn.Linear(4096, 4096),
            nn.ReLU(), nn.Linear(4096, config.classes),
        ]  # fmt: skip
        return nn.Sequential(*features), nn.Sequential(*classifier)


class _DenseLayer(nn.Module):
    """Normalized convolutions of 1 and 3 pixels, whose output lies beside their input."""

    def __init__(self, read: int, growth: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.BatchNorm2d(read), nn.ReLU(), nn.Conv2d(read, 4 * growth, 1, bias=False), nn.BatchNorm2d(4 * growth),
            nn.ReLU(), nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False),
        )  # fmt: skip

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return torch.cat([image, self.layers(image)], dim=1)


class DenseNet(_ConvNet):  # type: ignore[no-untyped-call]
    """DenseNet (Huang et al. 2017)."""

    config_class = DenseNetConfig

    def layers(self, config: Any) -> tuple[nn.Module, nn.Module]:
        channels = 2 * config.growth
        features: list[nn.Module] = [
            nn.Conv2d(3, channels, 7, 2, 3, bias=False), nn.BatchNorm2d(channels), nn.ReLU(), nn.MaxPool2d(3, 2, 1),
        ]  # fmt: skip
        for number, depth in enumerate(config.depths):
            if number:
                half = channels // 2
                features += [
                    nn.BatchNorm2d(channels), nn.ReLU(), nn.Conv2d(channels, half, 1, bias=False), nn.AvgPool2d(2),
                ]  # fmt: skip
                channels = half
            for _ in range(depth):
                features.append(_DenseLayer(channels, config.growth))
                channels += config.growth
        features += [nn.BatchNorm2d(channels), nn.ReLU()]
        classifier = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, config.classes)]
        return nn.Sequential(*features), nn.Sequential(*classifier)


class _ConvNorm(nn.Sequential):
    """Convolution, batch normalization and an activation."""

    def __init__(self, read: int, put_out: int, kernel: int, stride: int, activation: nn.Module, groups: int = 1):
        super().__init__(
            nn.Conv2d(read, put_out, kernel, stride, kernel // 2, groups=groups, bias=False),
            nn.BatchNorm2d(put_out, eps=1e-3),
            activation,
        )


class _Excitation(nn.Module):
    """Scale of each channel by the means of all channels (squeeze and excitation)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        squeezed = _divisible(channels / 4)
        self.first, self.last = nn.Conv2d(channels, squeezed, 1), nn.Conv2d(squeezed, channels, 1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        means = functional.adaptive_avg_pool2d(image, 1)
        return image * functional.hardsigmoid(self.last(functional.relu(self.first(means))))


class _InvertedResidual(nn.Module):
    """Wide layer between narrow ones, added to its input where their shapes are equal."""

    def __init__(self, read: int, kernel: int, inner: int, put_out: int, excited: int, swish: int, stride: int) -> None:
        super().__init__()
        activation = nn.Hardswish if swish else nn.ReLU
        self.layers = nn.Sequential(
            *([_ConvNorm(read, inner, 1, 1, activation())] if inner != read else []),
            _ConvNorm(inner, inner, kernel, stride, activation(), groups=inner),
            *([_Excitation(inner)] if excited else []),
            _ConvNorm(inner, put_out, 1, 1, nn.Identity()),
        )
        self.adds = stride == 1 and read == put_out

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.layers(image)
        return image + result if self.adds else result


class MobileNetV3(_ConvNet):  # type: ignore[no-untyped-call]
    """MobileNetV3 (Howard et al. 2019)."""

    config_class = MobileNetV3Config

    def layers(self, config: Any) -> tuple[nn.Module, nn.Module]:
        read = 16
        features: list[nn.Module] = [_ConvNorm(3, read, 3, 2, nn.Hardswish())]
        for block in config.blocks:
            features.append(_InvertedResidual(read, *block))
            read = block[2]
        wide, last = 6 * read, config.last_channels
        features.append(_ConvNorm(read, wide, 1, 1, nn.Hardswish()))
        classifier = [
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(wide, last), nn.Hardswish(),
            nn.Linear(last, config.classes),
        ]  # fmt: skip
        return nn.Sequential(*features), nn.Sequential(*classifier)


def _divisible(channels: float) -> int:
    """Return the next multiple of 8, no less than nine tenths of what is asked."""
    rounded = max(8, int(channels + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * channels else rounded


for _model in (VGG, DenseNet, MobileNetV3):
    AutoConfig.register(_model.config_class.model_type, _model.config_class)
    AutoModel.register(_model.config_class, _model)
