"""Models whose training steps `staticrt bench --train` measures, and such a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


class Lstm(nn.Module):
    """A cell unrolled; x: float32 [batch, steps, features]."""

    def __init__(self, features: int, hidden: int, head: bool = True) -> None:
        super().__init__()
        self.cell, self.hidden = nn.LSTMCell(features, hidden), hidden
        self.head = nn.Linear(hidden, 8) if head else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = c = x.new_zeros(x.shape[0], self.hidden)
        for t in x.unbind(1):
            h, c = self.cell(t, (h, c))
        out: torch.Tensor = self.head(h)
        return out


class Transformer(nn.Module):
    """Pre-norm blocks with causal attention; x: float32 [batch, length, width]."""

    def __init__(self, width: int, heads: int, depth: int) -> None:
        super().__init__()
        self.heads = heads
        self.layers = nn.ModuleList(
            nn.ModuleDict(
                {
                    "norm1": nn.LayerNorm(width),
                    "norm2": nn.LayerNorm(width),
                    "qkv": nn.Linear(width, 3 * width, bias=False),
                    "out": nn.Linear(width, width),
                    "up": nn.Linear(width, 4 * width),
                    "down": nn.Linear(4 * width, width),
                }
            )
            for _ in range(depth)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            parts: Any = layer
            qkv = parts["qkv"](parts["norm1"](x)).chunk(3, -1)
            q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in qkv)
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + parts["out"](mixed.transpose(1, 2).flatten(2))
            x = x + parts["down"](F.gelu(parts["up"](parts["norm2"](x))))
        return x


def mlp(width: int, depth: int) -> nn.Module:
    """Linear, GELU, LayerNorm, `depth` times; x: float32 [batch, width]."""
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width)]
    return nn.Sequential(*layers)


def mean_square(out: torch.Tensor) -> torch.Tensor:
    """A loss of one result."""
    return out.square().mean()


def training_step(
    run: Callable[..., Any],
    inputs: Sequence[torch.Tensor],
    optimizer: Any,
    loss_of: Callable[[Any], torch.Tensor] = mean_square,
) -> Callable[[], torch.Tensor]:
    """A step of `run`, a model or its compiled form, on the same inputs every time; it returns the loss."""

    def step() -> torch.Tensor:
        loss = loss_of(run(*inputs))
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step
