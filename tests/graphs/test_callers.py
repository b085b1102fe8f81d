"""What callers do with outputs of captured calls, against eager: nothing of it may reach another call."""

import copy

import pytest
import torch
from torch import nn

from staticrt.graphs.policy import Policy
from tests.support.graph_harness import device

CALLS = 6


@pytest.fixture(params=["cpu", "cpu_copy"])
def real(request, make_tree):
    return make_tree(device(request.param), Policy())


@pytest.mark.parametrize(
    "do",
    [
        lambda y: y.fill_(9),
        lambda y: y.resize_(12).fill_(9),
        lambda y: y.unsqueeze_(0),
        lambda y: y.set_(torch.ones(3)),
        lambda y: setattr(y, "data", torch.ones(2)),
        lambda y: y.untyped_storage().resize_(0),
        lambda y: setattr(y, "itself", [y]),
        lambda y: y.requires_grad_().sum().backward(),
    ],
    ids=["filled", "resized", "reshaped", "set", "data", "freed", "cycle", "leaf"],
)
def test_an_output_is_the_callers_to_change(real, do):
    f = real.wrap(lambda x: (x * 2, x + 1))
    others = []
    for number in range(CALLS):
        x = torch.full((4,), float(number))
        changed, other = f(x)
        assert torch.equal(changed, x * 2)
        do(changed)
        others.append((other, x + 1))
        del changed
    for other, expected in others:
        assert torch.equal(other, expected)
    real.trained = True  # a cycle of Python's may still hold an output
    del other, others


def test_an_output_grows_within_a_step(make_tree, copying):
    tree = make_tree(copying, Policy())
    f, g = tree.wrap(lambda x: (x * 2, x + 1)), tree.wrap(lambda y: y - 1)
    for number in range(CALLS):
        with tree.step():
            grown, other = f(torch.full((4,), float(number)))
            grown.resize_(1000).fill_(9)
            assert torch.equal(g(other), torch.full((4,), float(number)))
            assert torch.equal(g(grown), torch.full((1000,), 8.0))
        assert torch.equal(grown, torch.full((1000,), 9.0))


def test_only_the_storage_object_survives(real):
    f = real.wrap(lambda x: x * 2)
    for number in range(CALLS):
        storage = f(torch.full((4,), float(number))).untyped_storage()
        f(torch.zeros(4))
        assert torch.empty(0).set_(storage, 0, (4,)).tolist() == [number * 2.0] * 4
    del storage


def test_two_contexts_take_each_others_outputs(make_tree):
    first, second = (make_tree(device("cpu_copy"), Policy()) for _ in range(2))
    f, g = first.wrap(lambda x: x * 2), second.wrap(lambda x: x + 1)
    held = []
    for number in range(10):
        y = f(torch.full((3,), float(number)))
        z = g(y)
        held.append((y, z, f(z)))
        if number == 5:
            first.ctx.trim()
        if number == 7:
            second.ctx.trim()
    for number, (y, z, w) in enumerate(held):
        assert y.tolist() == [number * 2.0] * 3
        assert z.tolist() == [number * 2.0 + 1] * 3
        assert w.tolist() == [number * 4.0 + 2] * 3
    del y, z, w


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise ValueError("planned")


def test_hooks_and_failing_backwards(real):
    torch._dynamo.reset()
    mine = nn.Linear(4, 4)
    theirs = copy.deepcopy(mine)
    f = real.wrap(mine)
    for number in range(CALLS):
        x = torch.randn(2, 4)
        seen = []
        for model, call in ((mine, f), (theirs, theirs)):
            y = call(x)
            y.retain_grad()
            y.register_hook(lambda gradient: gradient * 2)
            if number % 2:
                with pytest.raises(ValueError, match="planned"):
                    Fails.apply(y).sum().backward()
            y.square().sum().backward()
            seen.append([y.detach(), y.grad, *(p.grad for p in model.parameters())])
        torch.testing.assert_close(*seen)
    real.trained = True
    del y, seen
    torch._dynamo.reset()


def test_keywords_in_any_order(real):
    f = real.wrap(lambda a, b: a - b)
    for _ in range(CALLS):
        x, y = torch.randn(3), torch.randn(3)
        for got in (f(a=x, b=y), f(b=y, a=x), f(x, b=y), f(x, y)):
            assert torch.equal(got, x - y)
        assert torch.equal(f(b=x, a=y), y - x)
    del got
