"""A chain of pointwise operators and normalisations: no matrix product, bound by memory and by `exp`."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class PointwiseChain(nn.Module):
    """Gated, normalised residual steps.

    forward: x float32 [rows, width] -> (float32 [rows, width], row weights float32 [rows, width]).
    """

    def __init__(self, width: int = 1024, steps: int = 4) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(steps))
        self.gains = nn.ParameterList(nn.Parameter(torch.randn(width)) for _ in range(steps))
        self.shifts = nn.ParameterList(nn.Parameter(torch.randn(width)) for _ in range(steps))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        for norm, gain, shift in zip(self.norms, self.gains, self.shifts, strict=True):
            y = F.gelu(norm(x)) * gain + shift
            y = torch.tanh(y) * torch.sigmoid(y - 1.0)
            root_mean_square = torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)
            x = x + F.silu(y * root_mean_square)
        return x, torch.softmax(x, -1)
