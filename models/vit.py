"""Vision transformer, size S with 16x16 patches, after Dosovitskiy et al., arXiv:2010.11929."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from staticrt.models.attention import Block


class Vit(nn.Module):
    """Image classifier over patches.

    forward: images float32 [batch, 3, size, size] -> float32 [batch, classes].
    """

    def __init__(
        self,
        size: int = 224,
        patch: int = 16,
        dim: int = 384,
        heads: int = 6,
        layers: int = 12,
        classes: int = 1000,
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, dim, patch, patch)
        self.token = nn.Parameter(torch.randn(1, 1, dim) * 0.02)
        self.positions = nn.Parameter(torch.randn(1, (size // patch) ** 2 + 1, dim) * 0.02)
        self.blocks = nn.ModuleList(Block(dim, heads, 4 * dim) for _ in range(layers))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.positions
        for block in self.blocks:
            x, _cache = block(x)
        out: Tensor = self.head(self.norm(x)[:, 0])
        return out
