"""ConvNeXt: wide depthwise convolutions, layer norm over channels, a linear feed-forward per pixel.

After Liu et al., arXiv:2201.03545; sizes of its smallest published relative, "atto".
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class ChannelNorm(nn.Module):
    """Layer norm over the channels of [batch, channels, height, width]."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels, eps=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return out


class ConvNeXtBlock(nn.Module):
    """Depthwise 7x7, layer norm, 4x feed-forward, layer scale, shortcut."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.expand = nn.Linear(channels, 4 * channels)
        self.gelu = nn.GELU()
        self.project = nn.Linear(4 * channels, channels)
        self.scale = nn.Parameter(torch.full((channels,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        pixels: Tensor = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        pixels = self.project(self.gelu(self.expand(pixels))) * self.scale
        return x + pixels.permute(0, 3, 1, 2)


class ConvNeXt(nn.Module):
    """Image classifier.

    forward: images float32 [batch, 3, height, width], sizes >= 32 -> float32 [batch, classes].
    """

    def __init__(
        self,
        channels: tuple[int, ...] = (40, 80, 160, 320),
        depths: tuple[int, ...] = (2, 2, 6, 2),
        classes: int = 1000,
    ) -> None:
        super().__init__()
        stages: list[nn.Module] = [nn.Conv2d(3, channels[0], 4, 4), ChannelNorm(channels[0])]
        for index, (width, depth) in enumerate(zip(channels, depths, strict=True)):
            if index > 0:
                stages += [ChannelNorm(channels[index - 1]), nn.Conv2d(channels[index - 1], width, 2, 2)]
            stages += [ConvNeXtBlock(width) for _ in range(depth)]
        self.stages = nn.Sequential(*stages)
        self.norm = nn.LayerNorm(channels[-1], eps=1e-6)
        self.head = nn.Linear(channels[-1], classes)

    def forward(self, images: Tensor) -> Tensor:
        out: Tensor = self.head(self.norm(self.stages(images).mean((2, 3))))
        return out
