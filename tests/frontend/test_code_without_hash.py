"""Functions whose code has a list or dict among its constants, as Dynamo makes and programs may rewrite."""

import functools
import types

import pytest
import torch
from torch import nn

import staticrt


def without_hash(function):
    code = function.__code__
    made = types.FunctionType(
        code.replace(co_consts=(*code.co_consts, {})), function.__globals__, closure=function.__closure__
    )
    with pytest.raises(TypeError, match="unhashable"):
        hash(made.__code__)
    return made


SCALE = 2.0


def scaled(x):
    return x * SCALE


def next_number(number):
    return number + 1


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.count = 3

    def forward(self, x):
        return helper(self.linear(x)) * self.count + kept(1)


helper = without_hash(scaled)
kept = functools.cache(without_hash(next_number))
Model.forward = without_hash(Model.forward)


@pytest.mark.parametrize("training", [False, True])
def test_they_are_traced_and_guarded(training, monkeypatch):
    model = Model()
    fast = staticrt.compile(model)
    with torch.set_grad_enabled(training):
        for scale in (2.0, 3.0, 2.0):
            monkeypatch.setitem(globals(), "SCALE", scale)
            for rows in (2, 5):
                x = torch.randn(rows, 4)
                got, want = fast(x), model(x)
                torch.testing.assert_close(got, want)
                if training:
                    for one, other in zip(
                        torch.autograd.grad(got.sum(), model.parameters()),
                        torch.autograd.grad(want.sum(), model.parameters()),
                        strict=True,
                    ):
                        torch.testing.assert_close(one, other)
    explanation = fast.explain()
    assert explanation.traces
    assert not explanation.eager, str(explanation)


def test_a_training_step():
    model, twin = Model(), Model()
    twin.load_state_dict(model.state_dict())

    def step_of(module):
        optimizer = torch.optim.SGD(module.parameters(), 0.1)

        def step(x):
            optimizer.zero_grad()
            loss = module(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return without_hash(step)

    fast, slow = staticrt.compile_step(step_of(model)), step_of(twin)
    for _call in range(4):
        x = torch.randn(3, 4)
        torch.testing.assert_close(fast(x), slow(x))
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one, other)
    explanation = fast.explain()
    assert explanation.traces
    assert not explanation.eager, str(explanation)
