"""A plain multi-layer perceptron: the smallest model whose cost is all per-call overhead."""

from __future__ import annotations

from torch import Tensor, nn


class Mlp(nn.Module):
    """`depth` linear layers of one width, ReLU between them.

    forward: x float32 [batch, width] -> float32 [batch, width].
    """

    def __init__(self, width: int = 64, depth: int = 3) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            x = layer(x).relu()
        out: Tensor = self.layers[-1](x)
        return out
