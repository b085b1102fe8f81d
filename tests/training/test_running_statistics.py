"""Buffers that a region writes, when it is differentiated twice: what is copied, and what need not be."""

import copy

import torch
from torch import nn

from staticrt.training.statistics import unread_inputs


def _net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Tanh(), nn.Flatten(), nn.Linear(64, 3))


def _penalty(model, run, x, disturb):
    """Gradients of a gradient penalty; `disturb` changes the running statistics before the second backward."""
    x = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(run(x).square().sum(), x, create_graph=True)
    with torch.no_grad():
        disturb(model[1])
    return [
        slope.detach(),
        *torch.autograd.grad(slope.square().sum(), list(model.parameters()), allow_unused=True),
    ]


def test_statistics_that_change_before_the_second_backward(compiler):
    def disturb(norm):  # past the version counters, by which eager would refuse
        norm.running_mean.data.fill_(7)
        norm.running_var.data.mul_(3)
        norm.num_batches_tracked.data.add_(1)

    model = _net()
    theirs = copy.deepcopy(model)
    run = compiler(model)
    for _ in range(3):
        x = torch.randn(5, 2, 6, 6)
        torch.testing.assert_close(
            _penalty(model, run, x, disturb), _penalty(theirs, theirs, x, disturb), rtol=1e-4, atol=1e-5
        )
        torch.testing.assert_close(model.state_dict(), theirs.state_dict())


def test_a_written_buffer_that_is_read_is_kept(compiler):
    def make():
        buffer = torch.full((3,), 2.0)

        def function(x):
            scaled = x.sin() * buffer.exp()
            buffer.add_(1)
            return scaled * scaled

        return function, buffer

    function, buffer = make()
    eager, eager_buffer = make()
    run = compiler(function)
    for _ in range(2):
        x = torch.randn(3, requires_grad=True)
        found = []
        for f in (run, eager):
            out = f(x)
            # Kept, and differentiated twice: the second replay finds what the first one found.
            orders = []
            for _ in range(2):
                (first,) = torch.autograd.grad(out.sum(), x, create_graph=True)
                orders += [first.detach(), *torch.autograd.grad(first.sum(), x, retain_graph=True)]
            found.append(orders)
        torch.testing.assert_close(found[0], found[1])
        torch.testing.assert_close(buffer, eager_buffer)


def test_which_inputs_are_unread():
    graphs = []

    def backend(gm, inputs):
        graphs.append((gm, inputs))
        return gm.forward

    torch._dynamo.reset()
    model = _net()
    torch.compile(model, backend=backend)(torch.randn(2, 2, 6, 6))
    gm, inputs = graphs[0]
    unread = [inputs[i] for i in unread_inputs(gm)]
    assert len(unread) == 3
    assert all(any(t is b for b in model.buffers()) for t in unread)
    graphs.clear()
    torch._dynamo.reset()
    model = _net().eval()
    torch.compile(model, backend=backend)(torch.randn(2, 2, 6, 6))
    assert not unread_inputs(graphs[0][0])
