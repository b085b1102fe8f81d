"""Losses that are reduced stay in prepared programs, also where another operator reads them."""

import pytest
import torch
import torch.nn.functional as F

import staticrt

LOSSES = {
    "mse": F.mse_loss,
    "smooth_l1": lambda x, y, **how: F.smooth_l1_loss(x, y, beta=0.5, **how),
    "huber": lambda x, y, **how: F.huber_loss(x, y, delta=0.7, **how),
    "soft_margin": lambda x, y, **how: F.soft_margin_loss(x, y.sign(), **how),
    "bce": lambda x, y, **how: F.binary_cross_entropy(x.sigmoid(), y.sigmoid(), weight=y.abs(), **how),
}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("trains", [False, True])
def test_a_loss_that_another_operator_reads(name, reduction, trains):
    run = lambda x, y: LOSSES[name](x * 2, y, reduction=reduction) + x.mean()  # noqa: E731
    compiled = staticrt.compile(run)
    for rows in (4, 6, 5, 5, 5, 5):
        x, y = torch.randn(rows, 7, requires_grad=trains), torch.randn(rows, 7)
        found = []
        for f in (compiled, run):
            out = f(x, y)
            found.append((out, torch.autograd.grad(out.sum(), x) if trains else None))
        torch.testing.assert_close(*found)
    last = compiled.explain().traces[-1].signatures
    assert sum(signature.calls for signature in last) == 2, compiled.explain()
