"""Compiled modules whose `forward` is replaced, as accelerate's mixed precision does."""

import copy
import types

import pytest
import torch
from torch import nn

import staticrt
from tests.support.joint_traces import joint_calls


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x):
        return self.last(torch.relu(self.first(x)))


def in_float(function):
    def forward(*args, **kwargs):
        return function(*args, **kwargs).float()

    forward.__wrapped__ = function
    return forward


def wrap(model):
    """As `accelerate.Accelerator.prepare_model` with `mixed_precision="bf16"`."""
    autocast = torch.autocast("cpu", dtype=torch.bfloat16)
    model.forward = types.MethodType(autocast(model.forward.__func__), model)
    model.forward = types.MethodType(in_float(model.forward.__func__), model)
    return model


def twice(self, x):
    return 2 * self.last(self.first(x))


@pytest.mark.parametrize("copied", [False, True])
def test_a_wrapper_of_forward_is_traced_around_what_it_wraps(copied):
    torch.manual_seed(0)
    model = Net()
    eager, compiled = wrap(copy.deepcopy(model)), wrap(staticrt.compile(model))
    if copied:
        model = compiled = copy.deepcopy(compiled)
    x = torch.randn(3, 4)
    for _call in range(3):
        got, want = compiled(x), eager(x)
        assert got.dtype is torch.float32
        assert not torch.equal(want, Net.forward(eager, x))  # it is in bfloat16 that it computes
        torch.testing.assert_close(got, want)
        got.sum().backward()
        want.sum().backward()
    for p, q in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=2e-2, atol=1e-2)
    assert joint_calls(compiled) == 3
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), eager(x))
    assert [r.route for r in compiled.explain().traces].count("training") == 1
    assert not compiled.explain().eager
    torch.testing.assert_close(compiled.forward(x), eager(x))


def test_hooks_run_around_the_wrapper():
    model, seen = Net(), []
    compiled = wrap(staticrt.compile(model))
    model.register_forward_hook(lambda _module, _inputs, out: seen.append(out.dtype))
    compiled(torch.randn(3, 4))
    compiled(torch.randn(3, 4))
    assert seen == [torch.float32] * 2


def test_another_forward_takes_the_place_of_the_module_s_own():
    torch.manual_seed(0)
    model = Net()
    compiled, x = staticrt.compile(model), torch.randn(3, 4)
    torch.testing.assert_close(compiled(x), model(x))
    compiled.forward = types.MethodType(twice, compiled)
    want = 2 * model.last(model.first(x))
    torch.testing.assert_close(compiled(x), want)
    torch.testing.assert_close(compiled.forward(x), want)
    del compiled.forward
    torch.testing.assert_close(compiled(x), Net.forward(model, x))
    assert compiled.forward.__func__ is type(compiled).forward


def test_a_forward_that_the_module_had_before_is_what_is_wrapped():
    torch.manual_seed(0)
    model = Net()
    model.forward = types.MethodType(twice, model)
    compiled, x = staticrt.compile(model), torch.randn(3, 4)
    want = 2 * model.last(model.first(x))
    torch.testing.assert_close(compiled.forward(x), want)
    assert joint_calls(compiled) == 1
    compiled.forward = in_float(compiled.forward)
    torch.testing.assert_close(compiled(x), want)
