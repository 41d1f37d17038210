"""YOLOv5, YOLOv8 and YOLO11: detectors that find objects in an image in one pass.

Layers and figures are those of the published configs. Outputs are boxes and scores as exported detectors put them out:
before overlapping boxes are dropped.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import field
from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn import functional
from transformers import AutoConfig, AutoModel, PreTrainedConfig, PreTrainedModel

from accel_platform.workloads.leveling import level

STRIDES = (8, 16, 32)
"""Pixels between two places of each grid on which boxes are predicted."""
_HEAD_CHANNELS = 64
"""Channels that one attention head of YOLO11 reads."""


class YoloConfig(PreTrainedConfig):  # type: ignore[no-untyped-call]
    """Config of a detector; the sizes of a family differ in these factors."""

    edge_unit: ClassVar[int] = STRIDES[-1]
    """Pixels of which the edge of an image is a multiple."""

    depth: float = 1.0
    """Share of the repeated blocks that a size has."""
    width: float = 1.0
    """Share of the channels that a size has."""
    most_channels: int = 1024
    """Channels before `width` applies are cut to this."""
    classes: int = 80
    image_size: int = 640
    """Pixels along each edge."""
    bins: int = 16
    """Distances among which each edge of a box is predicted."""

    def channels(self, wide: int) -> int:
        """Return the channels of a layer that has so many at width 1: a multiple of 8."""
        return int(-(-min(wide, self.most_channels) * self.width // 8)) * 8

    def repeats(self, deep: int) -> int:
        """Return the blocks of a layer that has so many at depth 1."""
        return max(round(deep * self.depth), 1)


class YoloV5Config(YoloConfig):  # type: ignore[no-untyped-call]
    """Config of YOLOv5, as of its version 6."""

    model_type = "yolov5"

    anchors: list[list[list[int]]] = field(
        default_factory=lambda: [
            [[10, 13], [16, 30], [33, 23]],
            [[30, 61], [62, 45], [59, 119]],
            [[116, 90], [156, 198], [373, 326]],
        ]
    )
    """Width and height in pixels of the boxes that each place of each grid changes."""


class YoloV8Config(YoloConfig):  # type: ignore[no-untyped-call]
    """Config of YOLOv8."""

    model_type = "yolov8"


class Yolo11Config(YoloConfig):  # type: ignore[no-untyped-call]
    """Config of YOLO11."""

    model_type = "yolo11"

    nested: bool = False
    """True for the sizes m, l and x, all of whose layers nest blocks in blocks."""


class ConvNorm(nn.Sequential):
    """Convolution, batch normalization and, unless `linear`, SiLU."""

    def __init__(
        self, read: int, put_out: int, kernel: int = 1, stride: int = 1, groups: int = 1, linear: bool = False
    ) -> None:
        super().__init__(
            # As many places as the stride leaves: an even kernel reads one pixel less around.
            nn.Conv2d(read, put_out, kernel, stride, (kernel - 1) // 2, groups=groups, bias=False),
            nn.BatchNorm2d(put_out, eps=1e-3),
            nn.Identity() if linear else nn.SiLU(),
        )


class Bottleneck(nn.Module):
    """Two convolutions, the last of 3 x 3 pixels, whose input may be added to their output."""

    def __init__(self, channels: int, share: float, add: bool, first_kernel: int = 3) -> None:
        super().__init__()
        between = int(channels * share)
        self.layers = nn.Sequential(ConvNorm(channels, between, first_kernel), ConvNorm(between, channels, 3))
        self.add = add

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        read: torch.Tensor = self.layers(image)
        return image + read if self.add else read


class NestedBlock(nn.Module):
    """Bottlenecks beside a convolution: a layer of YOLOv5 (C3), or one block of YOLO11 (C3k)."""

    def __init__(self, read: int, put_out: int, blocks: Sequence[nn.Module]) -> None:
        super().__init__()
        half = put_out // 2
        self.first, self.beside = ConvNorm(read, half), ConvNorm(read, half)
        self.blocks = nn.Sequential(*blocks)
        self.last = ConvNorm(2 * half, put_out)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        read: torch.Tensor = self.last(torch.cat([self.blocks(self.first(image)), self.beside(image)], dim=1))
        return read


class PartialLayer(nn.Module):
    """Blocks that follow each other on half of the channels; all of their outputs are read (C2f, C3k2)."""

    def __init__(self, read: int, put_out: int, channels: int, blocks: Sequence[nn.Module]) -> None:
        super().__init__()
        self.first = ConvNorm(read, 2 * channels)
        self.blocks = nn.ModuleList(blocks)
        self.last = ConvNorm((2 + len(blocks)) * channels, put_out)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        parts = list(self.first(image).chunk(2, dim=1))
        for block in self.blocks:
            parts.append(block(parts[-1]))
        read: torch.Tensor = self.last(torch.cat(parts, dim=1))
        return read


class PyramidPooling(nn.Module):
    """Largest values around each place, at four distances (SPPF)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.last = ConvNorm(channels, channels // 2), ConvNorm(2 * channels, channels)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        parts = [self.first(image)]
        for _ in range(3):
            parts.append(functional.max_pool2d(parts[-1], 5, 1, 2))
        read: torch.Tensor = self.last(torch.cat(parts, dim=1))
        return read


class PlaceAttention(nn.Module):
    """Attention between all places of an image, then a layer for each place (PSABlock)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.heads = channels // _HEAD_CHANNELS
        self.key_channels = channels // self.heads // 2
        self.read = ConvNorm(channels, channels + 2 * self.key_channels * self.heads, linear=True)
        self.places = ConvNorm(channels, channels, 3, groups=channels, linear=True)
        self.put_out = ConvNorm(channels, channels, linear=True)
        self.each_place = nn.Sequential(ConvNorm(channels, 2 * channels), ConvNorm(2 * channels, channels, linear=True))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        batch, channels, height, width = image.shape
        read = self.read(image).view(batch, self.heads, -1, height * width)
        query, key, value = read.split([self.key_channels, self.key_channels, channels // self.heads], dim=2)
        share = (query.transpose(2, 3) @ key * self.key_channels**-0.5).softmax(dim=-1)
        attended = (value @ share.transpose(2, 3)).reshape(image.shape) + self.places(value.reshape(image.shape))
        image = image + self.put_out(attended)
        sample: torch.Tensor = image + self.each_place(image)
        return sample


class AttentionLayer(nn.Module):
    """Blocks of attention on half of the channels (C2PSA)."""

    def __init__(self, channels: int, repeats: int) -> None:
        super().__init__()
        self.first, self.last = ConvNorm(channels, channels), ConvNorm(channels, channels)
        self.blocks = nn.Sequential(*(PlaceAttention(channels // 2) for _ in range(repeats)))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        beside, read = self.first(image).chunk(2, dim=1)
        put_out: torch.Tensor = self.last(torch.cat([beside, self.blocks(read)], dim=1))
        return put_out


class Yolo(PreTrainedModel):  # type: ignore[no-untyped-call]
    """Detector: a backbone, layers that carry what it sees between its three grids, and a head for each grid."""

    main_input_name = "pixel_values"
    stage_channels: ClassVar[tuple[int, ...]]
    """Channels at width 1 that the stages of the backbone put out."""
    stem_kernel: ClassVar[int] = 3
    """Pixels along the edges of the first convolution."""
    narrows: ClassVar[bool] = False
    """True if a convolution narrows a grid before it is joined with a finer one."""

    def __init__(self, config: YoloConfig) -> None:
        super().__init__(config)
        stem, *convolved = (config.channels(wide) for wide in (64, 128, 256, 512, 1024))
        stages = [config.channels(wide) for wide in self.stage_channels]
        fine, middle, coarse = config.channels(256), config.channels(512), stages[-1]
        self.stem = ConvNorm(3, stem, self.stem_kernel, 2)
        self.stages = nn.ModuleList(
            nn.Sequential(ConvNorm(read, between, 3, 2), self.stage(number, between, put_out))
            for number, (read, between, put_out) in enumerate(zip((stem, *stages[:-1]), convolved, stages, strict=True))
        )
        self.pooling = self.pool(coarse)
        # Channels of the grids when they meet a finer one.
        of_coarse, of_middle = (middle, fine) if self.narrows else (coarse, middle)
        self.narrow = nn.ModuleList(
            [ConvNorm(coarse, middle), ConvNorm(middle, fine)] if self.narrows else [nn.Identity(), nn.Identity()]
        )
        read = (
            (of_coarse + stages[2], middle),
            (of_middle + stages[1], fine),
            (fine + of_middle, middle),
            (middle + of_coarse, coarse),
        )
        joins = [self.join(*sizes, coarsest=sizes is read[-1]) for sizes in read]
        self.up, self.down = nn.ModuleList(joins[:2]), nn.ModuleList(joins[2:])
        self.shrink = nn.ModuleList([ConvNorm(fine, fine, 3, 2), ConvNorm(middle, middle, 3, 2)])
        self.make_heads((fine, middle, coarse))
        self.post_init()  # type: ignore[no-untyped-call]
        if self.device.type != "meta":
            level(self, 4 * STRIDES[-1])

    def make_heads(self, grids: tuple[int, ...]) -> None:
        """Make the layers that read boxes and scores of grids with so many channels."""
        config: Any = self.config
        in_boxes = max(16, grids[0] // 4, 4 * config.bins)
        in_scores = max(grids[0], min(config.classes, 100))
        self.boxes = nn.ModuleList(
            nn.Sequential(
                ConvNorm(read, in_boxes, 3), ConvNorm(in_boxes, in_boxes, 3), nn.Conv2d(in_boxes, 4 * config.bins, 1)
            )
            for read in grids
        )
        self.scores = nn.ModuleList(
            nn.Sequential(
                self.score(read, in_scores), self.score(in_scores, in_scores), nn.Conv2d(in_scores, config.classes, 1)
            )
            for read in grids
        )

    @abstractmethod
    def stage(self, number: int, read: int, put_out: int) -> nn.Module:
        """Return the blocks of a stage of the backbone."""

    @abstractmethod
    def join(self, read: int, put_out: int, *, coarsest: bool) -> nn.Module:
        """Return a layer that reads two grids; `coarsest` if it puts out the coarsest of the three."""

    @abstractmethod
    def pool(self, channels: int) -> nn.Module:
        """Return the end of the backbone."""

    @abstractmethod
    def score(self, read: int, put_out: int) -> nn.Module:
        """Return a layer of the heads that score classes."""

    def forward(self, pixel_values: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return boxes and scores of all places.

        Parameters
        ----------
        pixel_values
            Shape (batch, 3, edge, edge).

        Returns
        -------
        `boxes`, shape (batch, places, 4): center, width and height in pixels. `scores`, shape (batch, places, classes):
        from 0 to 1.
        """
        seen = [self.stem(pixel_values)]
        for stage in self.stages:
            seen.append(stage(seen[-1]))
        coarse = self.narrow[0](self.pooling(seen[-1]))
        middle = self.narrow[1](self.up[0](torch.cat([_twice(coarse), seen[3]], dim=1)))
        fine = self.up[1](torch.cat([_twice(middle), seen[2]], dim=1))
        middle = self.down[0](torch.cat([self.shrink[0](fine), middle], dim=1))
        coarse = self.down[1](torch.cat([self.shrink[1](middle), coarse], dim=1))
        return self.find((fine, middle, coarse))

    def find(self, grids: tuple[torch.Tensor, ...]) -> dict[str, torch.Tensor]:
        """Return the boxes and scores that the heads read from the grids."""
        boxes = [self._boxes(head(grid), stride) for head, grid, stride in zip(self.boxes, grids, STRIDES, strict=True)]
        scores = [head(grid).flatten(2).transpose(1, 2) for head, grid in zip(self.scores, grids, strict=True)]
        return {"boxes": torch.cat(boxes, dim=1), "scores": torch.cat(scores, dim=1).sigmoid()}

    def _boxes(self, read: torch.Tensor, stride: int) -> torch.Tensor:
        """Return the boxes of one grid; a head puts out how likely each distance to each edge is."""
        batch, _, height, width = read.shape
        distances = torch.arange(self.config.bins, device=read.device, dtype=read.dtype)
        likely = read.view(batch, 4, self.config.bins, height * width).softmax(dim=2)
        before, after = (likely * distances.view(1, 1, -1, 1)).sum(dim=2).chunk(2, dim=1)
        rows, columns = (torch.arange(edge, device=read.device, dtype=read.dtype) + 0.5 for edge in (height, width))
        places = torch.stack([columns.repeat(height), rows.repeat_interleave(width)])
        return torch.cat([places + (after - before) / 2, before + after], dim=1).transpose(1, 2) * stride


class YoloV5(Yolo):  # type: ignore[no-untyped-call]
    """YOLOv5."""

    config_class = YoloV5Config
    stage_channels = (128, 256, 512, 1024)
    stem_kernel = 6
    narrows = True

    def stage(self, number: int, read: int, put_out: int) -> nn.Module:
        return self._layer(read, put_out, (3, 6, 9, 3)[number], add=True)

    def join(self, read: int, put_out: int, *, coarsest: bool) -> nn.Module:  # noqa: ARG002 - all are alike here
        return self._layer(read, put_out, 3, add=False)

    def pool(self, channels: int) -> nn.Module:
        return PyramidPooling(channels)

    def score(self, read: int, put_out: int) -> nn.Module:
        return nn.Conv2d(read, put_out, 1)

    def make_heads(self, grids: tuple[int, ...]) -> None:
        config: Any = self.config
        self.heads = nn.ModuleList(
            self.score(read, len(anchors) * (5 + config.classes))
            for read, anchors in zip(grids, config.anchors, strict=True)
        )

    def find(self, grids: tuple[torch.Tensor, ...]) -> dict[str, torch.Tensor]:
        found = [
            self._changed(head(grid), anchors, stride)
            for head, grid, anchors, stride in zip(self.heads, grids, self.config.anchors, STRIDES, strict=True)
        ]
        boxes, scores = (torch.cat(each, dim=1) for each in zip(*found, strict=True))
        return {"boxes": boxes, "scores": scores}

    def _changed(self, read: torch.Tensor, anchors: list[list[int]], stride: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the boxes of one grid and their scores: how surely there is an object, times how surely of a class."""
        batch, _, height, width = read.shape
        share = read.view(batch, len(anchors), -1, height, width).permute(0, 1, 3, 4, 2).sigmoid()
        rows, columns = (torch.arange(edge, device=read.device, dtype=read.dtype) for edge in (height, width))
        places = torch.stack([columns.expand(height, width), rows.unsqueeze(1).expand(height, width)], dim=-1)
        sizes = torch.tensor(anchors, device=read.device, dtype=read.dtype).view(1, -1, 1, 1, 2)
        centers = (2 * share[..., :2] - 0.5 + places) * stride
        boxes = torch.cat([centers, (2 * share[..., 2:4]) ** 2 * sizes], dim=-1)
        scores = share[..., 4:5] * share[..., 5:]
        return boxes.flatten(1, 3), scores.flatten(1, 3)

    def _layer(self, read: int, put_out: int, deep: int, *, add: bool) -> nn.Module:
        blocks = [Bottleneck(put_out // 2, 1.0, add, first_kernel=1) for _ in range(self.config.repeats(deep))]
        return NestedBlock(read, put_out, blocks)


class YoloV8(Yolo):  # type: ignore[no-untyped-call]
    """YOLOv8."""

    config_class = YoloV8Config
    stage_channels = (128, 256, 512, 1024)

    def stage(self, number: int, read: int, put_out: int) -> nn.Module:
        return self._layer(read, put_out, self.config.repeats((3, 6, 6, 3)[number]), add=True)

    def join(self, read: int, put_out: int, *, coarsest: bool) -> nn.Module:  # noqa: ARG002 - all are alike here
        return self._layer(read, put_out, self.config.repeats(3), add=False)

    def pool(self, channels: int) -> nn.Module:
        return PyramidPooling(channels)

    def score(self, read: int, put_out: int) -> nn.Module:
        return ConvNorm(read, put_out, 3)

    @staticmethod
    def _layer(read: int, put_out: int, repeats: int, *, add: bool) -> nn.Module:
        half = put_out // 2
        return PartialLayer(read, put_out, half, [Bottleneck(half, 1.0, add) for _ in range(repeats)])


class Yolo11(Yolo):  # type: ignore[no-untyped-call]
    """YOLO11."""

    config_class = Yolo11Config
    stage_channels = (256, 512, 512, 1024)

    def stage(self, number: int, read: int, put_out: int) -> nn.Module:
        return self._layer(read, put_out, put_out // (4 if number < 2 else 2), nested=number >= 2)

    def join(self, read: int, put_out: int, *, coarsest: bool) -> nn.Module:
        return self._layer(read, put_out, put_out // 2, nested=coarsest)

    def pool(self, channels: int) -> nn.Module:
        return nn.Sequential(PyramidPooling(channels), AttentionLayer(channels, self.config.repeats(2)))

    def score(self, read: int, put_out: int) -> nn.Module:
        return nn.Sequential(ConvNorm(read, read, 3, groups=read), ConvNorm(read, put_out))

    def _layer(self, read: int, put_out: int, channels: int, *, nested: bool) -> nn.Module:
        nested = nested or self.config.nested
        blocks = [
            NestedBlock(channels, channels, [Bottleneck(channels // 2, 1.0, True) for _ in range(2)])
            if nested
            else Bottleneck(channels, 0.5, True)
            for _ in range(self.config.repeats(2))
        ]
        return PartialLayer(read, put_out, channels, blocks)


def _twice(grid: torch.Tensor) -> torch.Tensor:
    """Return a grid with each place repeated along both edges."""
    return functional.interpolate(grid, scale_factor=2.0, mode="nearest")


for _model in (YoloV5, YoloV8, Yolo11):
    AutoConfig.register(_model.config_class.model_type, _model.config_class)
    AutoModel.register(_model.config_class, _model)
