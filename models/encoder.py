"""Transformer encoders: one small layer, and BERT.

BERT after Devlin et al., arXiv:1810.04805: layer norm after each residual, learned positions, padding mask.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from staticrt.models.attention import Block


class TinyEncoder(nn.Module):
    """Encoder layers over vectors.

    forward: x float32 [batch, seq, dim] -> float32 [batch, seq, dim].
    """

    def __init__(self, dim: int = 64, heads: int = 4, layers: int = 1) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(dim, heads, 4 * dim, norm_first=False) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x, _cache = block(x)
        return x


class Bert(nn.Module):
    """BERT without its pre-training heads.

    forward: tokens int64 [batch, seq], mask bool [batch, seq] (False at padding)
    -> (float32 [batch, seq, dim], pooled float32 [batch, dim]).
    """

    def __init__(
        self, dim: int = 768, heads: int = 12, layers: int = 12, vocabulary: int = 2000, longest: int = 512
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, dim)
        self.positions = nn.Embedding(longest, dim)
        self.norm = nn.LayerNorm(dim)
        self.dropout = nn.Dropout(0.1)
        self.blocks = nn.ModuleList(Block(dim, heads, 4 * dim, norm_first=False) for _ in range(layers))
        self.pooler = nn.Linear(dim, dim)

    def forward(self, tokens: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.dropout(self.norm(self.words(tokens) + self.positions(positions)))
        visible = mask[:, None, None, :]
        for block in self.blocks:
            x, _cache = block(x, visible)
        return x, torch.tanh(self.pooler(x[:, 0]))
