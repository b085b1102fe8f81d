"""U-Net: an encoder and a decoder joined by skips, so that early values live until late.

After Ronneberger et al., arXiv:1505.04597; padded convolutions, nearest upsampling to the skip's size.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from staticrt.models.resnet import conv_norm


class DoubleConv(nn.Module):
    """Two 3x3 convolutions with batch norm and ReLU."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first = conv_norm(inputs, outputs, 3)
        self.second = conv_norm(outputs, outputs, 3)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.second(F.relu(self.first(x))))


class UNet(nn.Module):
    """Per-pixel classifier.

    forward: images float32 [batch, 3, height, width], sizes >= 16 -> float32 [batch, classes, height, width].
    """

    def __init__(self, width: int = 16, depth: int = 4, classes: int = 2) -> None:
        super().__init__()
        sizes = [width << level for level in range(depth + 1)]
        self.stem = DoubleConv(3, sizes[0])
        self.down = nn.ModuleList(DoubleConv(a, b) for a, b in itertools.pairwise(sizes))
        self.up = nn.ModuleList(
            DoubleConv(deep + skip, skip) for skip, deep in zip(sizes[-2::-1], sizes[:0:-1], strict=True)
        )
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, images: Tensor) -> Tensor:
        x = self.stem(images)
        skips = []
        for block in self.down:
            skips.append(x)
            x = block(F.max_pool2d(x, 2))
        for block in self.up:
            skip = skips.pop()
            x = block(torch.cat([F.interpolate(x, size=skip.shape[2:]), skip], 1))
        out: Tensor = self.head(x)
        return out
