"""Which calls are traced with their backward: those whose results need gradients of whatever the function reaches."""

import functools

import pytest
import torch
from torch import nn

import staticrt
from tests.support.joint_traces import joint_calls


def _net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


KINDS = {
    "method": lambda model: model.forward,
    "closure": lambda model: lambda x: model(x) * 2,
    "partial": lambda model: functools.partial(lambda net, x: net(x), model),
    "call of a wrapper": lambda model: types_holder(model).run,
}


def types_holder(model):
    class Holder:
        def __init__(self):
            self.net = model

        def run(self, x):
            return self.net(x)

    return Holder()


@pytest.mark.parametrize("kind", KINDS)
def test_functions_that_reach_parameters_have_one_trace_with_its_backward(kind):
    model = _net()
    function = KINDS[kind](model)
    compiled = staticrt.compile(function)
    for size in (3, 3, 3):
        x = torch.randn(size, 4)
        found = []
        for run in (compiled, function):
            model.zero_grad()
            run(x).pow(2).sum().backward()
            found.append([p.grad for p in model.parameters()])
        torch.testing.assert_close(*found)
    assert joint_calls(compiled) == 3
    assert [r.route for r in compiled.explain().traces] == ["training"]
    assert not compiled.explain().eager
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), function(x))
    model.requires_grad_(False)
    assert not compiled(x).requires_grad
    model.requires_grad_(True)
    assert compiled(x).requires_grad
    assert compiled._executor._splits.regions == []


class Features(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin, self.detaches = nn.Linear(4, 2), True

    def forward(self, x):
        if not self.detaches:
            return self.lin(x)
        with torch.no_grad():
            return self.lin(x)


def test_results_that_need_no_gradient_are_traced_without_a_backward():
    model = Features()
    compiled = staticrt.compile(model)
    for size in (3, 5, 3, 4):
        x = torch.randn(size, 4, requires_grad=size == 4)
        out = compiled(x)
        assert not out.requires_grad
        torch.testing.assert_close(out, model(x))
    assert not compiled.explain().eager
    assert [r.route for r in compiled.explain().traces] == ["whole"] * 2  # x needs a gradient, or not
    model.detaches = False
    x = torch.randn(3, 4)
    for _call in range(2):
        model.zero_grad()
        compiled(x).sum().backward()
        torch.testing.assert_close(model.lin.weight.grad, x.sum(0).expand(2, 4))
    assert joint_calls(compiled) == 2
    model.detaches = True
    assert not compiled(x).requires_grad
    for turn in range(40):
        model.detaches = turn % 2 == 0
        assert compiled(x).requires_grad is not model.detaches
    assert compiled._executor._splits.regions == []


def test_fullgraph_takes_both():
    model = _net()
    assert staticrt.compile(lambda x: model(x), fullgraph=True)(torch.randn(3, 4)).requires_grad
    assert not staticrt.compile(Features(), fullgraph=True)(torch.randn(3, 4)).requires_grad
