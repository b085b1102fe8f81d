"""Control flow that depends on data: a branch and a loop, as higher-order operators.

They are called as operators: `torch.cond` outside of a compiled region compiles at every new shape.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

cond = torch.ops.higher_order.cond
while_loop = torch.ops.higher_order.while_loop


class FixedPoint(nn.Module):
    """Refine a state until it is near a fixed point or `limit` steps are done, then branch on its sign.

    forward: x float32 [batch, dim] -> (float32 [batch, dim], steps done int64 []).
    """

    def __init__(self, dim: int = 32, limit: int = 8, tolerance: float = 1e-3) -> None:
        super().__init__()
        self.limit = limit
        self.tolerance = tolerance
        self.weight = nn.Parameter(torch.randn(dim, dim) * (0.5 / dim**0.5))
        self.bias = nn.Parameter(torch.randn(dim) * 0.1)
        self.positive = nn.Linear(dim, dim)
        self.negative = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        def unfinished(step: Tensor, _state: Tensor, change: Tensor, *_weights: Tensor) -> Tensor:
            return (step < self.limit) & (change > self.tolerance)

        def refine(
            step: Tensor, state: Tensor, _change: Tensor, x: Tensor, weight: Tensor, bias: Tensor
        ) -> tuple[Tensor, Tensor, Tensor]:
            after = torch.tanh(F.linear(state, weight, bias) + x)
            return step + 1, after, (after - state).abs().amax()

        def take(state: Tensor, weight: Tensor, bias: Tensor, _w: Tensor, _b: Tensor) -> tuple[Tensor]:
            return (F.linear(state, weight, bias).relu(),)

        def leave(state: Tensor, _w: Tensor, _b: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor]:
            return (torch.sigmoid(F.linear(state, weight, bias)),)

        begin = torch.zeros((), dtype=torch.int64)
        far = torch.ones((), dtype=x.dtype)
        steps, state, _change = while_loop(
            unfinished, refine, (begin, torch.zeros_like(x), far), (x, self.weight, self.bias)
        )
        branches = (self.positive.weight, self.positive.bias, self.negative.weight, self.negative.bias)
        (out,) = cond(state.sum() > 0, take, leave, (state, *branches))
        return out, steps
