"""Whether the backward of a custom autograd Function is known to be linear, where it writes parts of a tensor."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.autograd import Function

import staticrt
from tests.support.joint_traces import joint_calls, notes

Backward = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def _rows_of_zeros(g: torch.Tensor, _x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(g)
    out[0] = g[0]
    return out


def _all_rows(g: torch.Tensor, _x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(g)
    out[0], out[1:] = g[0], 2 * g[1:]
    return out


def _zero_in_a_row(g: torch.Tensor, _x: torch.Tensor) -> torch.Tensor:
    out = g.clone()
    out[0] = 0
    return out


def _row_by_row(g: torch.Tensor, _x: torch.Tensor) -> torch.Tensor:
    out = g.clone()
    out[0] = g[1] * 2
    return out


def _rows_of_ones(g: torch.Tensor, _x: torch.Tensor) -> torch.Tensor:
    out = torch.ones_like(g)
    out[0] = g[0]
    return out


def _rows_of_zeros_and_a_one(g: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(g)
    out[1] = 1
    out[x > 0] = g[x > 0]
    return out


def _padded(g: torch.Tensor, _x: torch.Tensor) -> torch.Tensor:
    return nn.functional.pad(g[:, 1:], (1, 0), value=1.0)


def _joined_with_ones(g: torch.Tensor, _x: torch.Tensor) -> torch.Tensor:
    return torch.cat([g[:1], g[1:2], torch.ones_like(g[2:])])


def _both(backward: Backward) -> tuple[object, list[torch.Tensor]]:
    """A compiled model, and the gradients of a loss and its penalty in one backward: compiled, eager."""

    class Part(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * 1

        @staticmethod
        def backward(ctx, g):
            return backward(g, *ctx.saved_tensors)

    w = torch.linspace(-1, 1, 16).view(4, 4).requires_grad_()

    def model(x: torch.Tensor) -> torch.Tensor:
        return Part.apply(x @ w).tanh().square()

    compiled = staticrt.compile(model, joint_trace=True)
    found = []
    for run in (compiled, model):
        w.grad = None
        x = torch.linspace(-1, 2, 12).view(3, 4).requires_grad_()
        y = run(x)
        (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        (slope.square().sum() + y.sum()).backward()
        assert w.grad is not None
        found.append(w.grad)
    return compiled, found


@pytest.mark.parametrize("backward", [_rows_of_zeros, _all_rows, _zero_in_a_row, _row_by_row])
def test_parts_that_are_written_linearly(backward: Backward) -> None:
    compiled, found = _both(backward)
    torch.testing.assert_close(*found)
    assert joint_calls(compiled) == 1, notes(compiled)


@pytest.mark.parametrize("backward", [_rows_of_ones, _rows_of_zeros_and_a_one, _padded, _joined_with_ones])
def test_parts_beside_which_numbers_stay(backward: Backward) -> None:
    with pytest.raises(RuntimeError, match="unknown whether PartBackward is linear"):
        _both(backward)
