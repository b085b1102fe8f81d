"""Multi-head self-attention and the transformer block that encoders, decoders and ViT share."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class SelfAttention(nn.Module):
    """Scaled dot-product self-attention with one fused query-key-value projection.

    forward: x float32 [batch, seq, dim]; `mask` bool, broadcastable to [batch, heads, seq, keys], True
    where a key may be seen; `past` keys and values of earlier tokens, float32 [batch, heads, past, head_dim]
    each -> (float32 [batch, seq, dim], (keys, values) with the past in front).
    """

    def __init__(self, dim: int, heads: int, *, causal: bool = False) -> None:
        super().__init__()
        self.heads = heads
        self.causal = causal
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(
        self, x: Tensor, mask: Tensor | None = None, past: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        # [batch, seq, 3 * dim] -> 3 x [batch, heads, seq, head_dim]
        query, key, value = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        if past is not None:
            key = torch.cat([past[0], key], 2)
            value = torch.cat([past[1], value], 2)
        # One new token may see all of the past, so that no mask is needed beside a cache.
        causal = self.causal and past is None
        seen = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=causal)
        return self.out(seen.transpose(1, 2).flatten(2)), (key, value)


class Block(nn.Module):
    """Attention and a GELU feed-forward, each with a residual and a layer norm before or after it.

    Shapes as in SelfAttention.
    """

    def __init__(
        self, dim: int, heads: int, hidden: int, *, causal: bool = False, norm_first: bool = True
    ) -> None:
        super().__init__()
        self.norm_first = norm_first
        self.attention = SelfAttention(dim, heads, causal=causal)
        self.feed_forward = nn.Sequential(nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, dim))
        self.norm1 = nn.LayerNorm(dim)
        self.norm2 = nn.LayerNorm(dim)

    def forward(
        self, x: Tensor, mask: Tensor | None = None, past: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        if self.norm_first:
            seen, cache = self.attention(self.norm1(x), mask, past)
            x = x + seen
            return x + self.feed_forward(self.norm2(x)), cache
        seen, cache = self.attention(x, mask, past)
        x = self.norm1(x + seen)
        return self.norm2(x + self.feed_forward(x)), cache
