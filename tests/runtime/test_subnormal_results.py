"""Results that eager rounds to 0 are no subnormal numbers here, with which a following product takes many times as long."""

import pytest
import torch
from torch.nn import functional as F

import staticrt


def subnormal(t):
    return int(((t != 0) & (t.abs() < torch.finfo(t.dtype).tiny)).sum())


@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize("needs_gradient", [False, True])
def test_gelu_far_below_zero(approximate, needs_gradient):
    def model(x, weight):
        return F.gelu(x @ weight, approximate=approximate)

    compiled = staticrt.compile(model)
    x = torch.linspace(-20, 20, 64 * 64).reshape(64, 64)
    weight = torch.eye(64).requires_grad_(needs_gradient)
    for _ in range(2):
        x.grad = None
        ours = compiled(x.requires_grad_(needs_gradient), weight)
        torch.testing.assert_close(ours, model(x, weight))
        assert subnormal(ours) == 0
        if needs_gradient:
            (gradient,) = torch.autograd.grad(ours.sum(), x)
            (theirs,) = torch.autograd.grad(model(x, weight).sum(), x)
            torch.testing.assert_close(gradient, theirs)
            assert subnormal(gradient) <= subnormal(theirs)
